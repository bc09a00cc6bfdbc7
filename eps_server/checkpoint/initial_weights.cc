// Where a run that does not resume gets its weights; declared in checkpointer.h.

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "common/base/ids.h"
#include "common/base/status_macros.h"
#include "common/base/thread.h"
#include "common/formats/model_folder.h"
#include "common/model/families.h"
#include "common/model/model_spec.h"
#include "eps_server/checkpoint/checkpointer.h"
#include "eps_server/store/store.h"
#include "nlohmann/json.hpp"

namespace eps::server {
namespace {

constexpr Version kInitialVersion(0);

// Dropouts, the seed and, where positions are not parameters, the context belong to the run, which may set them; the rest
// belongs to the weights. As a config.json has it.
nlohmann::json OfWeights(ModelConfig config) {
  config.embedding_dropout = config.attention_dropout = config.residual_dropout = 0;
  if (config.max_positions > 0) config.context = config.max_positions;
  nlohmann::json object = FamilyOf(config.family).to_json(config);
  object.erase("n_ctx");  // n_positions once more
  return object;
}

absl::Status CheckShape(const std::string& folder, const ModelConfig& found, const ModelConfig& wanted) {
  const nlohmann::json found_object = OfWeights(found), wanted_object = OfWeights(wanted);
  for (const auto& [key, value] : wanted_object.items()) {
    const nlohmann::json in_folder = found_object.value(key, nlohmann::json());
    if (in_folder == value) continue;
    return absl::InvalidArgumentError(absl::StrCat(folder, "/config.json: ", key, ": found ", in_folder.dump(),
                                                   ", the run's model has ", value.dump()));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status LoadHuggingFace(const std::string& folder, const ModelSpec& model, Store& store) {
  EPS_ASSIGN_OR_RETURN(const std::unique_ptr<ModelFolder> source, ModelFolder::Open(folder));
  EPS_RETURN_IF_ERROR(CheckShape(folder, source->model().config, model.config));
  std::vector<float> buffer(kChunkElems);
  for (const BlobSpec& blob : model.blobs) {
    for (const TensorSpec& tensor : blob.tensors) {
      const int64_t num_elems = tensor.num_elems();
      for (int64_t first = 0; first < num_elems; first += kChunkElems) {
        const auto values =
            absl::MakeSpan(buffer).subspan(0, static_cast<size_t>(std::min(kChunkElems, num_elems - first)));
        EPS_RETURN_IF_ERROR(source->ReadPart(tensor, first, values));
        store.LoadMaster(blob.id, kInitialVersion, tensor.offset_elems + first, values);
      }
    }
  }
  return absl::OkStatus();
}

void InitStore(const ModelSpec& model, int threads, Store& store) {
  struct Part {
    BlobId blob;
    const TensorSpec* tensor;
    int64_t first_elem, num_elems;
  };
  std::vector<Part> parts;
  for (const BlobSpec& blob : model.blobs) {
    for (const TensorSpec& tensor : blob.tensors) {
      const int64_t num_elems = tensor.num_elems();
      for (int64_t first = 0; first < num_elems; first += kChunkElems) {
        parts.push_back({blob.id, &tensor, first, std::min(kChunkElems, num_elems - first)});
      }
    }
  }
  std::atomic<size_t> next = 0;
  const auto work = [&] {
    std::vector<float> buffer(kChunkElems);
    for (size_t i = next++; i < parts.size(); i = next++) {
      const Part& part = parts[i];
      const auto values = absl::MakeSpan(buffer).subspan(0, static_cast<size_t>(part.num_elems));
      InitTensorPart(*part.tensor, model.config.init_seed, part.first_elem, values);
      store.LoadMaster(part.blob, kInitialVersion, part.tensor->offset_elems + part.first_elem, values);
    }
  };
  std::vector<std::thread> helpers;
  for (int t = 1; t < threads && static_cast<size_t>(t) < parts.size(); ++t) {
    absl::StatusOr<std::thread> helper = StartThread(work);
    if (!helper.ok()) break;  // those that there are do it all
    helpers.push_back(*std::move(helper));
  }
  work();
  for (std::thread& helper : helpers) helper.join();
}

}  // namespace eps::server
