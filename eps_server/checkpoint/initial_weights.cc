// Where a run that does not resume gets its weights; declared in checkpointer.h.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/base/ids.h"
#include "common/base/log.h"
#include "common/base/long_work.h"
#include "common/base/monotonic_clock.h"
#include "common/base/status_macros.h"
#include "common/checkpoint/checkpoint_files.h"
#include "common/checkpoint/manifest.h"
#include "common/formats/model_folder.h"
#include "common/model/families.h"
#include "common/model/hf_config.h"
#include "common/model/model_spec.h"
#include "eps_server/checkpoint/checkpointer.h"
#include "eps_server/checkpoint/load_on_threads.h"
#include "eps_server/store/store.h"
#include "nlohmann/json.hpp"

namespace eps::server {
namespace {

constexpr Version kInitialVersion(0);

// Dropouts, the seed and, where the family says how many positions there are, the context belong to the run, which may
// set them; the rest belongs to the weights. As a config.json has it.
nlohmann::json OfWeights(ModelConfig config) {
  config.embedding_dropout = config.attention_dropout = config.residual_dropout = config.classifier_dropout = 0;
  config.lora.dropout = 0;
  if (config.max_positions > 0) config.context = config.max_positions;
  nlohmann::json object = FamilyOf(config.family).to_json(config);
  object.erase("n_ctx");  // n_positions once more
  object[kLoraKey] = LoraConfigToJson(config.lora);
  return object;
}

absl::Status CheckShape(const std::string& folder, const ModelConfig& found, ModelConfig wanted, NewAdapters adapters) {
  if (adapters == NewAdapters::kTaken && !found.lora.is_on()) wanted.lora = {};
  const nlohmann::json found_object = OfWeights(found), wanted_object = OfWeights(wanted);
  for (const auto& [key, value] : wanted_object.items()) {
    const nlohmann::json in_folder = found_object.value(key, nlohmann::json());
    if (in_folder == value) continue;
    return absl::InvalidArgumentError(absl::StrCat(folder, "/config.json: ", key, ": found ", in_folder.dump(),
                                                   ", the run's model has ", value.dump()));
  }
  return absl::OkStatus();
}

int64_t MasterBytes(const ModelSpec& model) { return model.num_parameters() * static_cast<int64_t>(sizeof(float)); }

// A slice of a tensor that is made and stored at once.
struct Part {
  BlobId blob;
  const TensorSpec* tensor;
  int64_t first_elem, num_elems;
};

std::vector<Part> CutIntoParts(const ModelSpec& model) {
  std::vector<Part> parts;
  for (const BlobSpec& blob : model.blobs) {
    for (const TensorSpec& tensor : blob.tensors) {
      const int64_t num_elems = tensor.num_elems();
      for (int64_t first = 0; first < num_elems; first += kChunkElems) {
        parts.push_back({blob.id, &tensor, first, std::min(kChunkElems, num_elems - first)});
      }
    }
  }
  return parts;
}

// Stores what `make(part, values)` makes of every part: the same bits for any number of threads. `work` is told of each
// part, in fp32.
template <typename Make>
absl::Status FillStore(const ModelSpec& model, int threads, Store& store, LongWork* work, const Make& make) {
  const std::vector<Part> parts = CutIntoParts(model);
  return LoadOnThreads(parts.size(), threads, [&](size_t i, absl::Span<float> buffer) -> absl::Status {
    const Part& part = parts[i];
    const auto values = buffer.subspan(0, static_cast<size_t>(part.num_elems));
    EPS_RETURN_IF_ERROR(make(part, values));
    EPS_RETURN_IF_ERROR(
        store.LoadMaster(part.blob, kInitialVersion, part.tensor->offset_elems + part.first_elem, values));
    return AddTo(work, part.num_elems * static_cast<int64_t>(sizeof(float)));
  });
}

// Another run's checkpoint says what its files are; another folder has nothing to be compared with.
absl::Status CheckStepFolder(const std::string& folder, LongWork* work) {
  if (!IsStepFolder(folder)) return absl::OkStatus();
  EPS_ASSIGN_OR_RETURN(const Manifest manifest, ReadManifest(folder));
  EPS_RETURN_IF_ERROR(CheckConfig(folder, manifest));
  EPS_RETURN_IF_ERROR(CheckSizes(folder, manifest));
  return CheckSums(folder, manifest, CheckedFiles::kWeights, work);
}

// Adapters that begin anew were asked for, and there are hundreds of their tensors.
void LogWhatIsNew(const std::string& folder, const ModelSpec& model, const ModelFolder& source) {
  int64_t adapters = 0;
  for (const BlobSpec& blob : model.blobs) {
    for (const TensorSpec& tensor : blob.tensors) {
      if (!source.is_new(tensor)) continue;
      if (tensor.lora != LoraPart::kNone) {
        ++adapters;
      } else {
        LogWarning("weights_new", {{"tensor", tensor.name}, {"not_in", folder}});
      }
    }
  }
  if (adapters > 0) LogInfo("adapters_new", {{"tensors", adapters}});
}

}  // namespace

absl::Status LoadHuggingFace(const std::string& folder, const ModelSpec& model, NewAdapters adapters, int threads,
                             Store& store, LongWork* work) {
  const absl::Duration begin = SteadyNow();
  EPS_RETURN_IF_ERROR(CheckStepFolder(folder, work));
  EPS_ASSIGN_OR_RETURN(const std::unique_ptr<ModelFolder> source, ModelFolder::Open(folder, model.config));
  EPS_RETURN_IF_ERROR(CheckShape(folder, source->model().config, model.config, adapters));
  if (work != nullptr) work->Begin(absl::StrCat("reading the weights of \"", folder, "\""), MasterBytes(model));
  EPS_RETURN_IF_ERROR(FillStore(model, threads, store, work, [&](const Part& part, absl::Span<float> values) {
    if (!source->is_new(*part.tensor)) {
      return source->ReadChecked(*part.tensor, part.first_elem, values, store.wire_dtype());
    }
    InitTensorPart(*part.tensor, model.config.init_seed, part.first_elem, values);
    return absl::OkStatus();
  }));
  LogWhatIsNew(folder, model, *source);
  LogInfo("weights_loaded", {{"folder", folder},
                             {"tensor_bytes", source->tensor_bytes()},
                             {"seconds", absl::ToDoubleSeconds(SteadyNow() - begin)}});
  return absl::OkStatus();
}

absl::Status InitStore(const ModelSpec& model, int threads, Store& store, LongWork* work) {
  if (work != nullptr) work->Begin("making the initial weights", MasterBytes(model));
  return FillStore(model, threads, store, work, [&](const Part& part, absl::Span<float> values) {
    InitTensorPart(*part.tensor, model.config.init_seed, part.first_elem, values);
    return absl::OkStatus();
  });
}

}  // namespace eps::server
