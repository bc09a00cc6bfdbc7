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
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "common/base/ids.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/base/thread.h"
#include "common/formats/gpt2_folder.h"
#include "common/model/model_spec.h"
#include "eps_server/checkpoint/checkpointer.h"
#include "eps_server/store/store.h"

namespace eps::server {
namespace {

constexpr Version kInitialVersion(0);

// Dropouts and the seed belong to the run, which may set them; the rest belongs to the weights.
absl::Status CheckShape(const std::string& folder, const Gpt2Config& found, const Gpt2Config& wanted) {
  const struct {
    const char* key;
    double found, wanted;
  } numbers[] = {
      {"n_layer", static_cast<double>(found.num_layers), static_cast<double>(wanted.num_layers)},
      {"n_embd", static_cast<double>(found.d_model), static_cast<double>(wanted.d_model)},
      {"n_head", static_cast<double>(found.num_heads), static_cast<double>(wanted.num_heads)},
      {"n_positions", static_cast<double>(found.context), static_cast<double>(wanted.context)},
      {"vocab_size", static_cast<double>(found.vocab), static_cast<double>(wanted.vocab)},
      {"layer_norm_epsilon", found.layer_norm_eps, wanted.layer_norm_eps},
  };
  for (const auto& number : numbers) {
    if (number.found != number.wanted) {
      return absl::InvalidArgumentError(absl::StrCat(folder, "/config.json: ", number.key, ": found ", number.found,
                                                     ", the run's model has ", number.wanted));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status LoadHuggingFace(const std::string& folder, const ModelSpec& model, Store& store) {
  EPS_ASSIGN_OR_RETURN(const std::unique_ptr<Gpt2Folder> source, Gpt2Folder::Open(folder));
  EPS_RETURN_IF_ERROR(CheckShape(folder, source->model().config, model.config));
  if (!source->unused_tensors().empty()) {
    LogWarning("tensors_not_used", {{"folder", folder}, {"tensors", absl::StrJoin(source->unused_tensors(), ",")}});
  }
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
