#include "common/checkpoint/grow_model.h"

#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <system_error>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/file_util.h"
#include "common/base/log.h"
#include "common/base/pending_file.h"
#include "common/base/status_macros.h"
#include "common/checkpoint/checkpoint_directory.h"
#include "common/checkpoint/checkpoint_files.h"
#include "common/checkpoint/checkpoint_tensors.h"
#include "common/checkpoint/frozen_file.h"
#include "common/checkpoint/model_source.h"
#include "common/checkpoint/update_counts.h"
#include "common/formats/safetensors.h"
#include "common/model/hf_config.h"
#include "common/model/model_spec.h"
#include "common/spec/parameter_groups.h"
#include "common/spec/run_config.h"

namespace eps {
namespace {

constexpr int64_t kPieceBytes = int64_t{1} << 20;
// Let go to the disk at a time, as a run's checkpoints.
constexpr int64_t kWriteBackBytes = int64_t{32} << 20;

std::string PathOf(const std::string& folder, absl::string_view file) { return absl::StrCat(folder, "/", file); }

// ---- names ------------------------------------------------------------------------------------------------

// Of a block's tensor: the number of its block, and what stands around it. In every family it is the one number of a
// name.
struct BlockName {
  std::string before, behind;
  int64_t block = 0;

  std::string Of(int64_t other) const { return absl::StrCat(before, other, behind); }
};

std::optional<BlockName> ParseBlockName(const std::string& name) {
  for (size_t begin = 0; begin < name.size();) {
    const size_t end = std::min(name.find('.', begin), name.size());
    BlockName parsed;
    if (end > begin && absl::ascii_isdigit(static_cast<unsigned char>(name[begin])) &&
        absl::SimpleAtoi(absl::string_view(name).substr(begin, end - begin), &parsed.block)) {
      parsed.before = name.substr(0, begin);
      parsed.behind = name.substr(end);
      return parsed;
    }
    begin = end + 1;
  }
  return std::nullopt;
}

// ---- what becomes of each tensor ---------------------------------------------------------------------------

// Of an inserted block these two products, with their biases, are all that adds to the residual stream. Of an adapter
// beside them B alone is zero, as of every new one: with A zero, too, neither would ever have a gradient.
bool AddsToResidual(const TensorSpec& tensor) {
  const TensorRole role = tensor.role;
  const bool is_of_product = role == TensorRole::kAttentionOutWeight || role == TensorRole::kAttentionOutBias ||
                             role == TensorRole::kDownWeight || role == TensorRole::kDownBias;
  return is_of_product && tensor.lora != LoraPart::kA;
}

struct TensorSource {
  std::string name;  // in the checkpoint as it was
  bool zero_master = false, zero_moments = false;
};

TensorSource SourceOf(const TensorSpec& tensor, absl::Span<const GrownBlock> blocks) {
  const std::optional<BlockName> name = ParseBlockName(tensor.name);
  if (!name.has_value()) return {.name = tensor.name};
  const GrownBlock& block = blocks[static_cast<size_t>(name->block)];
  const bool is_gated = block.inserted && block.rule == GrowRule::kZeroGated;
  return {.name = name->Of(block.source), .zero_master = is_gated && AddsToResidual(tensor), .zero_moments = is_gated};
}

// By name of a tensor: the blob it lies in.
std::map<std::string, const BlobSpec*> BlobsByTensor(const ModelSpec& model) {
  std::map<std::string, const BlobSpec*> blobs;
  for (const BlobSpec& blob : model.blobs) {
    for (const TensorSpec& tensor : blob.tensors) blobs[tensor.name] = &blob;
  }
  return blobs;
}

// model.lora.targets may have a block's number, and blocks are counted anew: each has the adapters of what it is made
// of.
absl::Status CheckAdapters(const ModelSpec& was, const ModelSpec& grown, absl::Span<const GrownBlock> blocks) {
  const std::map<std::string, const BlobSpec*> old_blobs = BlobsByTensor(was), new_blobs = BlobsByTensor(grown);
  const auto check = [](const std::string& source, bool was_there, const std::string& name, bool is_there) {
    if (was_there == is_there) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("model.lora.targets: there is ", was_there ? "a " : "no ", source, ", and there would be ",
                     is_there ? "a " : "no ", name,
                     " made of it in the grown model, whose blocks are counted anew; the run's targets, which stay, "
                     "name blocks by their numbers"));
  };
  for (const BlobSpec& blob : grown.blobs) {
    for (const TensorSpec& tensor : blob.tensors) {
      const std::string source = SourceOf(tensor, blocks).name;
      EPS_RETURN_IF_ERROR(check(source, old_blobs.contains(source), tensor.name, /*is_there=*/true));
    }
  }
  for (const auto& [source, blob] : old_blobs) {
    const std::optional<BlockName> parsed = ParseBlockName(source);
    for (size_t b = 0; parsed.has_value() && b < blocks.size(); ++b) {
      if (blocks[b].source != parsed->block) continue;
      const std::string name = parsed->Of(static_cast<int64_t>(b));
      EPS_RETURN_IF_ERROR(check(source, /*was_there=*/true, name, new_blobs.contains(name)));
    }
  }
  return absl::OkStatus();
}

// That of each block whose products into the residual stream are zero something trains that can make them more than
// that.
absl::Status CheckGates(const ModelSpec& grown, absl::Span<const GrownBlock> blocks) {
  std::set<int64_t> opened;
  for (const BlobSpec& blob : grown.blobs) {
    for (const TensorSpec& tensor : blob.tensors) {
      const std::optional<BlockName> name = ParseBlockName(tensor.name);
      if (!blob.frozen && name.has_value() && AddsToResidual(tensor)) opened.insert(name->block);
    }
  }
  for (size_t b = 0; b < blocks.size(); ++b) {
    const bool is_gated = blocks[b].inserted && blocks[b].rule == GrowRule::kZeroGated;
    if (!is_gated || opened.contains(static_cast<int64_t>(b))) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        grown.config.lora.is_on() ? "model.lora.targets" : "model.freeze", ": block ", b,
        ", ZERO_GATED, would add nothing for good: its two products that are zero are frozen, and no adapter "
        "that trains is beside them; take COPY"));
  }
  return absl::OkStatus();
}

// The patterns of model.freeze are over names, and names are counted anew: with those that --set added, each tensor is
// what it was.
absl::Status CheckFreeze(const ModelSpec& was, const ModelSpec& grown, absl::Span<const GrownBlock> blocks) {
  const std::map<std::string, const BlobSpec*> old_blobs = BlobsByTensor(was);
  for (const BlobSpec& blob : grown.blobs) {
    for (const TensorSpec& tensor : blob.tensors) {
      const std::string source = SourceOf(tensor, blocks).name;
      const bool was_frozen = old_blobs.at(source)->frozen;
      if (was_frozen == blob.frozen) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("model.freeze: ", source, was_frozen ? " is frozen" : " trains", ", and would ",
                       blob.frozen ? "be frozen" : "train",
                       source == tensor.name
                           ? "; what a checkpoint has of a tensor goes by that"
                           : absl::StrCat(" as ", tensor.name,
                                          " in the grown model, whose blocks are counted anew; say what it is there: "
                                          "--set 'model.freeze=PATTERN' adds a pattern, which with ! takes back")));
    }
  }
  return absl::OkStatus();
}

// The same of optimizer.groups, unless --set has changed their patterns: then it was seen to.
absl::Status CheckParameterGroups(const ModelSpec& was, const OptimizerConfig& optimizer_was, const ModelSpec& grown,
                                  const OptimizerConfig& optimizer, absl::Span<const GrownBlock> blocks) {
  const auto has_patterns_of = [](const ParameterGroupConfig& a, const ParameterGroupConfig& b) {
    return a.tensors == b.tensors;
  };
  if (!std::ranges::equal(optimizer.groups, optimizer_was.groups, has_patterns_of)) return absl::OkStatus();
  EPS_ASSIGN_OR_RETURN(const auto old_groups, AssignParameterGroups(was, optimizer.groups));
  EPS_ASSIGN_OR_RETURN(const auto new_groups, AssignParameterGroups(grown, optimizer.groups));
  const auto text = [](const std::map<std::string, int>& groups, const std::string& name) {
    const auto found = groups.find(name);
    return found == groups.end() ? std::string("no group") : absl::StrCat("group ", found->second);
  };
  for (const BlobSpec& blob : grown.blobs) {
    for (const TensorSpec& tensor : blob.tensors) {
      const std::string source = SourceOf(tensor, blocks).name;
      const std::string before = text(old_groups, source), after = text(new_groups, tensor.name);
      if (blob.frozen || before == after) continue;
      return absl::InvalidArgumentError(absl::StrCat(
          "optimizer.groups: ", source, " is in ", before, ", and would be in ", after, " as ", tensor.name,
          " in the grown model, whose blocks are counted anew; say what is wanted: --set "
          "'optimizer.groups[0].tensors=PATTERN' adds a pattern, which with ! takes back"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<ModelSpec> BuildGrown(const ModelConfig& was, absl::Span<const GrownBlock> blocks) {
  for (const GrownBlock& block : blocks) {
    if (block.rule != GrowRule::kZeroGated || was.family != ModelFamily::kBert) continue;
    return absl::InvalidArgumentError(
        "ZERO_GATED: a BERT's block ends with a norm, so none of its blocks gives what it was given; use COPY");
  }
  ModelConfig config = was;
  config.num_layers = static_cast<int64_t>(blocks.size());
  return BuildModel(config);
}

// ---- files ------------------------------------------------------------------------------------------------

absl::StatusOr<std::unique_ptr<SafetensorsReader>> OpenWhole(const std::string& path) {
  absl::StatusOr<std::unique_ptr<SafetensorsReader>> file = SafetensorsReader::Open(path);
  if (!file.ok()) return absl::DataLossError(file.status().message());
  return file;
}

class GrownFile {
 public:
  static absl::StatusOr<GrownFile> Create(const std::string& from, const std::string& to,
                                          const std::vector<SafetensorsEntry>& entries) {
    GrownFile file(from);
    EPS_ASSIGN_OR_RETURN(file.reader_, OpenWhole(from));
    EPS_ASSIGN_OR_RETURN(file.writer_, SafetensorsWriter::Create(to, entries, file.reader_->metadata()));
    file.entries_ = entries;
    return file;
  }

  // The next entry.
  absl::Status Append(const std::string& source, bool zeros) {
    const SafetensorsEntry& entry = entries_[next_];
    const SafetensorsEntry* from = reader_->Find(source);
    if (from == nullptr) return absl::DataLossError(absl::StrCat(from_, ": tensor ", source, " is missing"));
    if (from->dtype != entry.dtype || from->shape != entry.shape) {
      return absl::DataLossError(
          absl::StrCat(from_, ": tensor ", source, ": is not of the shape and dtype that its run says"));
    }
    const absl::Span<const std::byte> bytes = reader_->Data(*from);
    const auto num_bytes = static_cast<int64_t>(bytes.size());
    for (int64_t at = 0; at < num_bytes; at += kPieceBytes) {
      const auto piece = static_cast<size_t>(std::min(kPieceBytes, num_bytes - at));
      EPS_RETURN_IF_ERROR(writer_->Write(
          next_, at,
          zeros ? absl::MakeConstSpan(zeros_).subspan(0, piece) : bytes.subspan(static_cast<size_t>(at), piece)));
      EPS_RETURN_IF_ERROR(Count(static_cast<int64_t>(piece)));
    }
    reader_->Release(*from);
    ++next_;
    return absl::OkStatus();
  }
  absl::Status Finish() { return writer_->Finish(); }

 private:
  explicit GrownFile(std::string from) : from_(std::move(from)), zeros_(static_cast<size_t>(kPieceBytes)) {}
  absl::Status Count(int64_t num_bytes) {
    unsynced_bytes_ += num_bytes;
    if (unsynced_bytes_ < kWriteBackBytes) return absl::OkStatus();
    unsynced_bytes_ = 0;
    return writer_->StartWriteBack(/*wait=*/true);
  }

  std::string from_;
  std::unique_ptr<SafetensorsReader> reader_;
  std::unique_ptr<SafetensorsWriter> writer_;
  std::vector<SafetensorsEntry> entries_;
  std::vector<std::byte> zeros_;
  size_t next_ = 0;
  int64_t unsynced_bytes_ = 0;
};

// Where every block is as it was, so is what is frozen: both runs have the same file, if it is one that others may
// have.
absl::StatusOr<bool> LinkFrozen(const std::string& from, const std::string& to, const Manifest& was,
                                absl::Span<const GrownBlock> blocks) {
  if (!was.has_frozen_file() || !std::ranges::equal(blocks, SameBlocks(was.run.model.num_layers))) return false;
  const absl::StatusOr<FrozenFile> frozen = FrozenFile::Of(from);
  FrozenFile::LinkResult result;
  if (frozen.ok()) {
    EPS_ASSIGN_OR_RETURN(result, frozen->LinkInto(to));
  } else {
    result.why_not = std::string(frozen.status().message());
  }
  if (!result.is_linked) LogWarning("frozen_tensors_written_anew", {{"why", result.why_not}});
  return result.is_linked;
}

absl::Status WriteMasters(const std::string& from, const std::string& to, const Manifest& was, const ModelSpec& grown,
                          absl::Span<const GrownBlock> blocks, bool is_linked) {
  const std::vector<WeightFile> files = WeightFiles(grown, was.run.precision.wire, LayoutOf(grown));
  for (const WeightFile& weights : files) {
    if (weights.name == kFrozenFile && is_linked) continue;
    const absl::string_view source_name = LayoutOf(was) == WeightLayout::kOneFile ? kModelFile : weights.name;
    EPS_ASSIGN_OR_RETURN(GrownFile file,
                         GrownFile::Create(PathOf(from, source_name), PathOf(to, weights.name), weights.entries));
    for (const BlobSpec* blob : weights.blobs) {
      for (const TensorSpec& tensor : blob->tensors) {
        const TensorSource source = SourceOf(tensor, blocks);
        EPS_RETURN_IF_ERROR(file.Append(source.name, source.zero_master));
      }
    }
    EPS_RETURN_IF_ERROR(file.Finish());
  }
  if (files.size() == 1) return absl::OkStatus();
  return WriteFileAtomically(PathOf(to, kIndexFile), WeightIndex(files));
}

absl::Status WriteMoments(const std::string& from, const std::string& to, const ModelSpec& grown, const RunConfig& run,
                          absl::Span<const GrownBlock> blocks) {
  const std::vector<absl::string_view> moments = MomentNames(run.optimizer);
  EPS_ASSIGN_OR_RETURN(GrownFile file, GrownFile::Create(PathOf(from, kOptimizerFile), PathOf(to, kOptimizerFile),
                                                         MomentEntries(grown, run)));
  for (const BlobSpec* blob : TrainedBlobs(grown)) {
    for (const TensorSpec& tensor : blob->tensors) {
      const TensorSource source = SourceOf(tensor, blocks);
      for (const absl::string_view moment : moments) {
        EPS_RETURN_IF_ERROR(file.Append(absl::StrCat(moment, ".", source.name), source.zero_moments));
      }
    }
  }
  return file.Finish();
}

// By name, as the manifest has them.
absl::StatusOr<std::map<std::string, int64_t>> GrownUpdates(const RunState& state, const ModelSpec& was,
                                                            const ModelSpec& grown,
                                                            absl::Span<const GrownBlock> blocks) {
  EPS_ASSIGN_OR_RETURN(const std::vector<int64_t> old_updates, UpdatesOfBlobs(state, was));
  const std::map<std::string, const BlobSpec*> old_blobs = BlobsByTensor(was);
  std::vector<int64_t> updates;
  for (const BlobSpec& blob : grown.blobs) {
    const TensorSource source = SourceOf(blob.tensors.front(), blocks);
    const BlobSpec& old = *old_blobs.at(source.name);
    updates.push_back(source.zero_moments ? 0 : old_updates[static_cast<size_t>(old.id.value())]);
  }
  return UpdatesByName(updates, state, grown);
}

// `manifest`, but for its sums, is of the grown checkpoint; `was` of the one in `from`.
absl::Status WriteFolder(const std::string& from, const std::string& to, const Manifest& was, const ModelSpec& grown,
                         Manifest& manifest, absl::Span<const GrownBlock> blocks) {
  EPS_ASSIGN_OR_RETURN(const bool is_linked, LinkFrozen(from, to, was, blocks));
  EPS_RETURN_IF_ERROR(WriteMasters(from, to, was, grown, blocks, is_linked));
  EPS_RETURN_IF_ERROR(WriteMoments(from, to, grown, manifest.run, blocks));
  EPS_RETURN_IF_ERROR(WriteFileAtomically(PathOf(to, kConfigFile), ModelConfigToJson(grown.config)));
  manifest.files.clear();
  for (const absl::string_view name : SummedFiles(LayoutOf(grown))) {
    EPS_ASSIGN_OR_RETURN(manifest.files[std::string(name)], SumFile(PathOf(to, name)));
  }
  // A link could be to what has changed since it was looked at.
  if (is_linked && manifest.files.at(kFrozenFile) != was.files.at(kFrozenFile)) {
    return absl::DataLossError(absl::StrCat(PathOf(from, kFrozenFile), ": has changed while it was read"));
  }
  const std::string text = ManifestToJson(manifest);
  if (const absl::Status status = ParseManifest(text).status(); !status.ok()) {  // what nobody has looked at before
    return absl::InvalidArgumentError(absl::StrCat("the run that goes on: ", status.message()));
  }
  EPS_RETURN_IF_ERROR(WriteFileAtomically(PathOf(to, kManifestFile), text));
  return CheckComplete(to);
}

absl::Status CheckOut(const std::string& out, const CheckpointDirectory& directory) {
  for (const char* name : {kGrownRunFile, kModelSourceFolder}) {
    if (access(PathOf(out, name).c_str(), F_OK) != 0) continue;
    return absl::FailedPreconditionError(
        absl::StrCat(PathOf(out, name), " is there already; give another folder for the run that goes on"));
  }
  const absl::StatusOr<std::vector<Version>> there = directory.Steps();
  EPS_RETURN_IF_ERROR(there.status());
  if (there->empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(directory.path(), " holds checkpoints of a run; give another folder for the one that goes on"));
}

// Whether a checkpoint's tensors and position go by that field of its run.
bool IsOfCheckpoint(absl::string_view field) {
  // CheckFreeze looks at the first.
  constexpr absl::string_view kFree[] = {"model.freeze",     "model.experts.balance", "precision.wire_versions",
                                         "preferences.beta", "preferences.margin",    "preferences.label_smoothing"};
  if (std::ranges::find(kFree, field) != std::end(kFree)) return false;
  constexpr absl::string_view kFields[] = {"model", "data", "batch", "precision", "evaluation.held_out", "preferences"};
  return std::ranges::any_of(kFields, [&](absl::string_view fixed) {
    absl::string_view rest = field;
    return absl::ConsumePrefix(&rest, fixed) && (rest.empty() || rest[0] == '.' || rest[0] == '[');
  });
}

// The run that goes on: its position and its tensors are those that are there.
absl::StatusOr<RunConfig> GrownRun(const RunConfig& was, const ModelConfig& grown,
                                   const std::vector<FieldOverride>& overrides) {
  RunConfig same = was;
  same.model_from.clear();  // that folder may have another model
  const RunConfig unchanged = same;
  same.model = grown;
  const auto refuse = [](absl::string_view field) {
    return absl::InvalidArgumentError(
        absl::StrCat("--set: ", field, ": a checkpoint's tensors and position go by it; leave it out"));
  };
  for (const FieldOverride& field : overrides) {
    // A run without preferences would get them by any field of theirs.
    if (!was.preferences.is_on() && absl::StartsWith(field.path, "preferences.")) return refuse(field.path);
  }
  absl::StatusOr<RunConfig> run = WithOverrides(same, overrides);
  EPS_RETURN_IF_ERROR_WITH(run.status(), "--set");
  for (const FieldOverride& field : overrides) {
    if (IsOfCheckpoint(field.path)) return refuse(field.path);
  }
  // From 0, or to it: no override changes the rule.
  if (MomentNames(run->optimizer) != MomentNames(same.optimizer)) return refuse("optimizer.sgd.momentum");
  if (*run == unchanged) {
    return absl::InvalidArgumentError("nothing would change: eps train --resume goes on with the same run");
  }
  return run;
}

absl::Status CheckAbove(int64_t num_layers, int64_t layers) {
  if (layers > num_layers) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("layers: ", layers, ", must be more than the ", num_layers, " that the model has"));
}

}  // namespace

absl::StatusOr<Insertion> ParseInsertion(absl::string_view text) {
  const auto wrong = [&] {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", text, "\": must be AFTER:COPY or AFTER:ZERO_GATED, AFTER being a block's number from 0"));
  };
  const size_t colon = text.find(':');
  if (colon == absl::string_view::npos) return wrong();
  Insertion insertion;
  if (!absl::SimpleAtoi(text.substr(0, colon), &insertion.after)) return wrong();
  const absl::string_view rule = text.substr(colon + 1);
  if (rule != "COPY" && rule != "ZERO_GATED") return wrong();
  insertion.rule = rule == "COPY" ? GrowRule::kCopy : GrowRule::kZeroGated;
  return insertion;
}

std::vector<GrownBlock> SameBlocks(int64_t num_layers) {
  std::vector<GrownBlock> blocks;
  for (int64_t block = 0; block < num_layers; ++block) blocks.push_back({.source = block});
  return blocks;
}

absl::StatusOr<std::vector<GrownBlock>> InsertBlocks(int64_t num_layers, absl::Span<const Insertion> insertions) {
  if (insertions.empty()) return absl::InvalidArgumentError("no block to insert");
  for (const Insertion& insertion : insertions) {
    if (insertion.after >= 0 && insertion.after < num_layers) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("insert behind block ", insertion.after, ": the model has blocks 0 to ", num_layers - 1));
  }
  std::vector<GrownBlock> blocks;
  for (int64_t block = 0; block < num_layers; ++block) {
    blocks.push_back({.source = block});
    for (const Insertion& insertion : insertions) {
      if (insertion.after == block) blocks.push_back({.source = block, .inserted = true, .rule = insertion.rule});
    }
  }
  return blocks;
}

absl::StatusOr<std::vector<GrownBlock>> SpreadBlocks(int64_t num_layers, int64_t layers, GrowRule rule) {
  EPS_RETURN_IF_ERROR(CheckAbove(num_layers, layers));
  std::vector<GrownBlock> blocks;
  for (int64_t block = 0; block < layers; ++block) {
    const int64_t source = block * num_layers / layers;
    const bool inserted = !blocks.empty() && blocks.back().source == source;
    blocks.push_back({.source = source, .inserted = inserted, .rule = inserted ? rule : GrowRule::kCopy});
  }
  return blocks;
}

absl::StatusOr<std::vector<GrownBlock>> StackBlocks(int64_t num_layers, int64_t layers) {
  EPS_RETURN_IF_ERROR(CheckAbove(num_layers, layers));
  std::vector<GrownBlock> blocks;
  for (int64_t block = 0; block < layers; ++block) {
    blocks.push_back({.source = block % num_layers, .inserted = block >= num_layers});
  }
  return blocks;
}

absl::StatusOr<Manifest> GrowCheckpoint(const std::string& folder, absl::Span<const GrownBlock> blocks,
                                        const std::vector<FieldOverride>& overrides, const std::string& out) {
  if (!IsStepFolder(folder)) {
    return absl::NotFoundError(absl::StrCat(folder, ": is no checkpoint of a run, which has a manifest and moments"));
  }
  const CheckpointDirectory directory(PathOf(out, kCheckpointsFolder));
  EPS_RETURN_IF_ERROR(CheckOut(out, directory));
  EPS_ASSIGN_OR_RETURN(const Manifest manifest_was, ReadManifest(folder));
  Manifest manifest = manifest_was;
  EPS_ASSIGN_OR_RETURN(const ModelSpec was, BuildModel(manifest_was.run.model));
  EPS_ASSIGN_OR_RETURN(ModelSpec grown, BuildGrown(manifest_was.run.model, blocks));
  EPS_ASSIGN_OR_RETURN(manifest.run, GrownRun(manifest.run, grown.config, overrides));
  const Version version = manifest.state.version;
  if (manifest.run.steps < version.value()) {
    return absl::InvalidArgumentError(absl::StrCat("--set: steps: ", manifest.run.steps, ", must be at least ",
                                                   version.value(), ", as many as are done"));
  }
  EPS_ASSIGN_OR_RETURN(grown, BuildModel(manifest.run.model));  // with the patterns of --set
  EPS_RETURN_IF_ERROR(CheckAdapters(was, grown, blocks));
  EPS_RETURN_IF_ERROR(CheckFreeze(was, grown, blocks));
  EPS_RETURN_IF_ERROR(CheckGates(grown, blocks));
  EPS_ASSIGN_OR_RETURN(manifest.state.updates, GrownUpdates(manifest.state, was, grown, blocks));
  EPS_RETURN_IF_ERROR(CheckParameterGroups(was, manifest_was.run.optimizer, grown, manifest.run.optimizer, blocks));
  EPS_RETURN_IF_ERROR(VerifyCheckpointFolder(folder));  // reads it whole: what is cheap to refuse comes first
  EPS_RETURN_IF_ERROR(MakeDirs(out));
  EPS_ASSIGN_OR_RETURN(const FileDescriptor lock, LockDirectory(out));  // no daemon writes there meanwhile
  EPS_RETURN_IF_ERROR(CheckOut(out, directory));                        // nobody was kept out until now
  EPS_ASSIGN_OR_RETURN(const std::string aside, directory.StartWriting(version));
  // What may fail comes before either is seen.
  const auto write = [&]() -> absl::StatusOr<std::unique_ptr<PendingFile>> {
    EPS_RETURN_IF_ERROR(WriteFolder(folder, aside, manifest_was, grown, manifest, blocks));
    EPS_ASSIGN_OR_RETURN(std::unique_ptr<PendingFile> run_file, PendingFile::Create(PathOf(out, kGrownRunFile)));
    EPS_RETURN_IF_ERROR(run_file->Append(SerializeRunConfig(manifest.run)));
    EPS_RETURN_IF_ERROR(run_file->Sync());
    EPS_RETURN_IF_ERROR(CopyModelSource(folder, out));
    EPS_RETURN_IF_ERROR(directory.FinishWriting(version));
    return run_file;
  };
  const absl::StatusOr<std::unique_ptr<PendingFile>> run_file = write();
  std::error_code ignored;  // here and below: the error is already on its way
  if (!run_file.ok()) {
    directory.AbandonWriting(version);
    directory.Remove(version).IgnoreError();  // where FinishWriting failed behind its renames
    std::filesystem::remove_all(PathOf(out, kModelSourceFolder), ignored);
    return run_file.status();
  }
  if (const absl::Status status = (*run_file)->Publish(); !status.ok()) {
    directory.Remove(version).IgnoreError();
    std::filesystem::remove_all(PathOf(out, kModelSourceFolder), ignored);
    return status;
  }
  return manifest;
}

}  // namespace eps
