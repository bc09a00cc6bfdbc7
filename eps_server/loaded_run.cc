#include "eps_server/loaded_run.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "common/base/log.h"
#include "common/base/memory_room.h"
#include "common/base/memory_speed.h"
#include "common/base/status_macros.h"
#include "common/checkpoint/checkpoint_files.h"
#include "common/checkpoint/evaluated_run.h"
#include "common/checkpoint/manifest.h"
#include "common/checkpoint/resumed_run.h"
#include "common/model/hf_config.h"
#include "common/samples/class_names.h"
#include "common/samples/tokenizer_of_ids.h"
#include "common/schedule/loss_scale.h"
#include "common/spec/spec_warnings.h"
#include "eps_server/checkpoint/checkpoint_folder.h"
#include "eps_server/data/corpus_tokens.h"
#include "eps_server/data/data_mark.h"
#include "eps_server/memory/room_check.h"

namespace eps::server {
namespace {

// The optimizer's threads against the memory: measured once, before the model takes its own.
constexpr absl::Duration kFloorTime = absl::Milliseconds(50);

constexpr size_t kMaxClassesLogged = 100;

// `needed_bytes`: of the daemon as a whole.
absl::StatusOr<std::unique_ptr<Store>> CreateStore(const ModelSpec& model, const RunConfig& run, int64_t needed_bytes) {
  absl::StatusOr<std::unique_ptr<Store>> store = Store::Create(model, run);
  if (!absl::IsResourceExhausted(store.status())) return store;
  return DoesNotFit(needed_bytes, store.status().message());
}

// Errors: CANCELLED it was given up
absl::Status BeginStage(LongWork& work, const char* what) {
  EPS_RETURN_IF_ERROR(work.Add(0));
  work.Begin(what);
  return absl::OkStatus();
}

class RunLoader {
 public:
  RunLoader(const DaemonOptions& options, const RunFolder& folder, std::function<absl::Status()> claim, LongWork& work,
            LoadedRun& run)
      : options_(options),
        folder_(folder),
        claim_(std::move(claim)),
        work_(work),
        run_(run),
        goes_on_(options.resume && folder.HoldsCheckpoints()) {}

  absl::Status Load() {
    EPS_RETURN_IF_ERROR(PlanMemory());
    if (options_.evaluates()) return LoadToEvaluate();
    EPS_RETURN_IF_ERROR(OpenData());
    EPS_ASSIGN_OR_RETURN(run_.model, BuildModel(run_.config.model));
    EPS_RETURN_IF_ERROR(TakeMemory());
    if (goes_on_) {
      EPS_RETURN_IF_ERROR(Resume());
      return SettleTokens(CheckData());
    }
    EPS_RETURN_IF_ERROR(CheckData());
    run_.state.loss_scale = FirstLossScale(run_.config.precision.loss_scale);
    return LoadFirstWeights();
  }

 private:
  absl::Status LoadFirstWeights() {
    const std::string& folder = run_.config.model_from;
    if (folder.empty()) return InitStore(run_.model, options_.threads, *run_.store, &work_);
    EPS_ASSIGN_OR_RETURN(const bool has_adapters, FolderHadAdapters());
    return LoadHuggingFace(folder, run_.model, has_adapters ? NewAdapters::kRefused : NewAdapters::kTaken,
                           options_.threads, *run_.store, &work_);
  }

  // When the RunSpec was read, and with it the run's source.
  absl::StatusOr<bool> FolderHadAdapters() const {
    EPS_CHECK(run_.source.has_value());  // it is a new run
    const auto text = run_.source->files.find(kConfigFile);
    if (text == run_.source->files.end()) return false;
    const absl::StatusOr<ModelConfig> config = ModelConfigFromJson(text->second);
    EPS_RETURN_IF_ERROR_WITH(config.status(), absl::StrCat(run_.source->place, "/", kConfigFile));
    return config->lora.is_on();
  }

  // Without the data that it was trained on, unless a part of them is what it is evaluated on.
  absl::Status LoadToEvaluate() {
    const RunConfig& config = run_.config;
    if (config.evaluation.path.empty()) {
      EPS_RETURN_IF_ERROR(OpenData());
    } else {
      EPS_ASSIGN_OR_RETURN(run_.evaluation_data,
                           EvaluationData::Open(config, /*training=*/nullptr, folder_.evaluation_tokens(),
                                                options_.threads, FormerTokens::kReplaced, &work_));
    }
    EPS_ASSIGN_OR_RETURN(run_.model, BuildModel(config.model));
    EPS_RETURN_IF_ERROR(TakeMemory());
    if (!IsStepFolder(run_.evaluated)) {
      return LoadHuggingFace(run_.evaluated, run_.model, NewAdapters::kRefused, options_.threads, *run_.store, &work_);
    }
    EPS_ASSIGN_OR_RETURN(const Manifest manifest, ReadManifestOfWholeWeights(run_.evaluated, &work_));
    EPS_RETURN_IF_ERROR(
        LoadTensors(run_.evaluated, run_.model, manifest, LoadWhat::kMasters, options_.threads, *run_.store, &work_));
    run_.state = manifest.state;
    run_.state.updates.clear();        // of blobs that have other names, as others train
    run_.state.choices.clear();        // bits are promised for training alone
    run_.state.device_models.clear();  // whose bits these are nobody goes on with
    return config.evaluation.path.empty() ? CheckData() : absl::OkStatus();
  }

  // Before data are made tokens, which may take hours.
  absl::Status PlanMemory() {
    EPS_ASSIGN_OR_RETURN(const ModelSpec model, BuildModel(run_.config.model));
    run_.memory = ComputeDaemonMemory(model, run_.config, options_.expected_workers);
    if (options_.window_bytes > 0) run_.memory.contribution_window_bytes = options_.window_bytes;
    return CheckRoom(run_.memory, FindMemoryRoom());
  }

  // Changes config.model only by its classes' names.
  absl::Status OpenData() {
    const RunConfig& config = run_.config;
    const FormerTokens former = goes_on_ ? FormerTokens::kKept : FormerTokens::kReplaced;
    EPS_ASSIGN_OR_RETURN(RunConfig readable, goes_on_ ? WithKeptTokenizer(folder_.path(), config) : config);
    if (goes_on_) SayWhatIsGone();
    EPS_ASSIGN_OR_RETURN(RunConfig of_tokens,
                         WithTokenFiles(readable, folder_.tokens(), options_.threads, former, &work_));
    NameChatTemplate(of_tokens);
    EPS_RETURN_IF_ERROR(NameClasses(of_tokens));
    EPS_RETURN_IF_ERROR(BeginStage(work_, "reading the data"));
    EPS_ASSIGN_OR_RETURN(run_.data, StepData::Create(of_tokens, &work_));
    if (!config.evaluation.is_on()) return absl::OkStatus();
    readable.model.class_names = config.model.class_names;
    EPS_ASSIGN_OR_RETURN(
        run_.evaluation_data,
        EvaluationData::Open(readable, run_.data.get(), folder_.evaluation_tokens(), options_.threads, former, &work_));
    return absl::OkStatus();
  }

  // Of what the run began with: what it keeps is taken in its place.
  void SayWhatIsGone() const {
    const std::vector<std::string> gone = FindGoneSources(run_.config);
    if (gone.empty()) return;
    LogInfo("kept_source_taken", {{"gone", absl::StrJoin(gone, ", ")}, {"kept_in", ModelSourceFolder(folder_.path())}});
  }

  // What "auto" has turned out to be.
  void NameChatTemplate(const RunConfig& of_tokens) {
    if (!run_.source.has_value() || run_.source->chat_template.empty()) return;
    const std::vector<DataSource> given = run_.config.all_sources(), made = of_tokens.all_sources();
    for (size_t i = 0; i < given.size(); ++i) {
      if (!given[i].data.needs_tokenizing() || made[i].data.chat_template.empty()) continue;
      run_.source->chat_template = made[i].data.chat_template;
      return;
    }
  }

  // The names are part of the run from here on, in its checkpoints too.
  absl::Status NameClasses(RunConfig& of_tokens) {
    std::vector<std::string>& names = run_.config.model.class_names;
    // Begun before there were names, or with numbers: the files' own numbers, as before.
    if (goes_on_ && names.empty()) return absl::OkStatus();
    EPS_ASSIGN_OR_RETURN(names, ClassNamesOf(run_.config, of_tokens));
    of_tokens.model.class_names = names;
    for (size_t i = 0; i < std::min(names.size(), kMaxClassesLogged); ++i) {
      LogInfo("class_named", {{"class", i}, {"name", names[i]}});
    }
    return absl::OkStatus();
  }

  absl::Status TakeMemory() {
    // A smaller state may lie in caches, which are faster: it has no floor in the memory.
    if (run_.memory.model_state_bytes() >= static_cast<int64_t>(kMemorySpeedBytes)) {
      run_.floor_bytes_per_second = MeasureMemorySpeed(options_.threads, kFloorTime).per_thread();
    }
    EPS_RETURN_IF_ERROR(BeginStage(work_, "taking memory"));
    EPS_ASSIGN_OR_RETURN(run_.store, CreateStore(run_.model, run_.config, run_.memory.total_bytes()));
    return absl::OkStatus();
  }

  absl::Status Resume() {
    EPS_ASSIGN_OR_RETURN(run_.checkpointer,
                         Checkpointer::Create(folder_.checkpoints().path(), run_.model, run_.config, claim_));
    EPS_ASSIGN_OR_RETURN(run_.state, run_.checkpointer->LoadLatest(*run_.store, options_.threads, &work_));
    LogInfo("run_resumed", {{"checkpoint", run_.checkpointer->LatestPath()}, {"step", run_.state.version.value()}});
    return absl::OkStatus();
  }

  // Of a run that goes on tokens that had to be made are taken only if they are what it began with.
  absl::Status SettleTokens(absl::Status checked) const {
    for (const std::string& folder : {folder_.tokens(), folder_.evaluation_tokens()}) {
      if (checked.ok()) {
        checked = AcceptNewTokens(folder);
      } else {
        DropNewTokens(folder);
      }
    }
    return checked;
  }

  // What a run goes on with is what it began with: its bits are those of a run that was never disturbed.
  absl::Status CheckData() {
    EPS_ASSIGN_OR_RETURN(const DataMark mark, MarkDataFiles(run_.data->files()));
    const DataMark& former = run_.state.data;
    if (former.is_known() && former != mark) return OtherData(former, mark);
    run_.state.data = mark;
    return absl::OkStatus();
  }

  absl::Status OtherData(const DataMark& former, const DataMark& mark) const {
    std::vector<std::string> paths;
    for (const DataSource& source : run_.config.all_sources()) paths.push_back(source.data.path);
    const bool is_one = run_.config.sources.empty();
    const bool is_read_itself = run_.data->files() == paths;
    const std::string what = absl::StrCat(is_one ? "data.path: " : "data.sources: ", absl::StrJoin(paths, ", "),
                                          is_one ? " is not the file that " : " are not the files that ");
    const std::string difference = absl::StrCat(
        is_read_itself ? "" : "by the tokens and the index that are read: ",
        former.num_bytes != mark.num_bytes ? absl::StrCat(former.num_bytes, " bytes then, ", mark.num_bytes, " now")
                                           : std::string("the same size, and other content"));
    if (options_.evaluates()) {
      return absl::FailedPreconditionError(absl::StrCat(
          what, run_.evaluated, " was trained on: ", difference, "; put back what was there, say where it is (",
          is_one ? "data.path" : "data.sources[N].path", "), or evaluate on another file (evaluation.path)"));
    }
    // Tokens of an earlier version, which kept no sums of them, may be damaged, and their data as it was.
    const bool may_be_damaged = !is_read_itself && !HoldsNewTokens(folder_.tokens());
    const std::string remedy = may_be_damaged
                                   ? absl::StrCat("remove ", folder_.tokens(),
                                                  ", and the data is tokenized anew; where it is other data indeed, ")
                                   : std::string();
    return absl::FailedPreconditionError(absl::StrCat(what, run_.checkpointer->LatestPath(),
                                                      " was trained on: ", difference, "; ", remedy,
                                                      "put back what was there, or start the run in another folder"));
  }

  const DaemonOptions& options_;
  const RunFolder& folder_;
  const std::function<absl::Status()> claim_;
  LongWork& work_;
  LoadedRun& run_;
  const bool goes_on_;  // from a checkpoint; false: from the start, --resume or not
};

}  // namespace

absl::Status ReadRun(const DaemonOptions& options, const RunFolder& folder, LoadedRun& run) {
  if (options.evaluates()) {
    EPS_ASSIGN_OR_RETURN(EvaluatedRun found, FindEvaluatedRun(options.evaluate_folder, options.overrides));
    run.evaluated = std::move(found.folder);
    run.config = std::move(found.config);
    WarnOfOtherTokenizers(run.config);
    return CheckTokenizerOfIds(run.config);
  }
  EPS_ASSIGN_OR_RETURN(run.config, options.resume ? LoadRunOfFolder(folder.path(), options.run_file, options.overrides)
                                                  : LoadRunConfig(options.run_file, options.overrides));
  for (const SpecWarning& warning : FindSpecWarnings(run.config)) {  // of a branch (`eps branch`), too
    LogWarning("run_spec_is_odd", {{"field", warning.field}, {"why", warning.why}});
  }
  // A run that goes on has kept its source at its start.
  if (folder.HoldsCheckpoints() && HoldsModelSource(folder.path())) return absl::OkStatus();
  EPS_ASSIGN_OR_RETURN(run.source, ReadModelSource(run.config));
  if (folder.HoldsCheckpoints()) return absl::OkStatus();
  EPS_RETURN_IF_ERROR(CheckTokenizerOfIds(run.config));
  WarnOfOtherTokenizers(run.config);
  return absl::OkStatus();
}

absl::Status LoadRun(const DaemonOptions& options, const RunFolder& folder, std::function<absl::Status()> claim,
                     LongWork& work, LoadedRun& run) {
  return RunLoader(options, folder, std::move(claim), work, run).Load();
}

}  // namespace eps::server
