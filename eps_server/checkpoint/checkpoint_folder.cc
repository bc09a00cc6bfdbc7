#include "eps_server/checkpoint/checkpoint_folder.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/file_util.h"
#include "common/base/status_macros.h"
#include "common/checkpoint/checkpoint_files.h"
#include "common/formats/safetensors.h"
#include "common/model/hf_config.h"

namespace eps::server {
namespace {

std::string PathOf(const std::string& folder, absl::string_view file) { return absl::StrCat(folder, "/", file); }

// What stands before a tensor's name in optimizer.safetensors, by the store's `which`; as PyTorch calls them.
std::vector<absl::string_view> MomentNames(const OptimizerConfig& optimizer) {
  if (optimizer.rule == OptimizerRule::kAdamW) return {"exp_avg", "exp_avg_sq"};
  if (optimizer.momentum != 0) return {"momentum"};
  return {};
}

// The tensors of a file, in the model's order: the same model gives the same bytes.
//   prefixes {""}: the masters; else each tensor once per prefix, beside each other
std::vector<SafetensorsEntry> Entries(const ModelSpec& model, const std::vector<absl::string_view>& prefixes) {
  std::vector<SafetensorsEntry> entries;
  for (const BlobSpec& blob : model.blobs) {
    for (const TensorSpec& tensor : blob.tensors) {
      for (const absl::string_view prefix : prefixes) {
        entries.push_back({.name = absl::StrCat(prefix, prefix.empty() ? "" : ".", tensor.name),
                           .dtype = "F32",
                           .shape = tensor.shape});
      }
    }
  }
  return entries;
}

// The index of each blob's first tensor among all.
std::vector<size_t> FirstTensors(const ModelSpec& model) {
  std::vector<size_t> first;
  size_t next = 0;
  for (const BlobSpec& blob : model.blobs) {
    first.push_back(next);
    next += blob.tensors.size();
  }
  return first;
}

// Calls `visit(first_elem, num_elems)` for a tensor's pieces of at most a chunk.
template <typename Visit>
absl::Status ForEachPiece(const TensorSpec& tensor, const Visit& visit) {
  const int64_t num_elems = tensor.num_elems();
  for (int64_t first = 0; first < num_elems; first += kChunkElems) {
    EPS_RETURN_IF_ERROR(visit(first, std::min(kChunkElems, num_elems - first)));
  }
  return absl::OkStatus();
}

// ---- Writing ----------------------------------------------------------------------------------------------

class TensorFiles {
 public:
  TensorFiles(const Store& store, const ModelSpec& model, Version version, std::unique_ptr<SafetensorsWriter> masters,
              std::unique_ptr<SafetensorsWriter> moments)
      : store_(store),
        model_(model),
        version_(version),
        first_tensors_(FirstTensors(model)),
        masters_(std::move(masters)),
        moments_(std::move(moments)),
        buffer_(kChunkElems) {}

  absl::Status WriteBlob(BlobId id) {
    const BlobSpec& blob = model_.blob(id);
    size_t tensor_index = first_tensors_[id.value()];
    for (const TensorSpec& tensor : blob.tensors) {
      EPS_RETURN_IF_ERROR(WriteTensor(id, tensor, tensor_index++));
    }
    return absl::OkStatus();
  }

  absl::Status Finish() {
    EPS_RETURN_IF_ERROR(masters_->Finish());
    return moments_->Finish();
  }

 private:
  absl::Status WriteTensor(BlobId blob, const TensorSpec& tensor, size_t index) {
    return ForEachPiece(tensor, [&](int64_t first, int64_t num_elems) -> absl::Status {
      const auto values = absl::MakeSpan(buffer_).subspan(0, static_cast<size_t>(num_elems));
      store_.ReadMaster(blob, version_, tensor.offset_elems + first, values);
      EPS_RETURN_IF_ERROR(masters_->Write(index, first * int64_t{sizeof(float)}, Bytes(values)));
      const int num_moments = store_.num_moments();
      for (int which = 0; which < num_moments; ++which) {
        store_.ReadMoment(blob, which, tensor.offset_elems + first, values);
        EPS_RETURN_IF_ERROR(
            moments_->Write(index * num_moments + which, first * int64_t{sizeof(float)}, Bytes(values)));
      }
      return absl::OkStatus();
    });
  }

  // Safetensors are little endian, and so is every machine that this runs on.
  static absl::Span<const std::byte> Bytes(absl::Span<const float> values) {
    return {reinterpret_cast<const std::byte*>(values.data()), values.size() * sizeof(float)};
  }

  const Store& store_;
  const ModelSpec& model_;
  const Version version_;
  const std::vector<size_t> first_tensors_;
  const std::unique_ptr<SafetensorsWriter> masters_;
  const std::unique_ptr<SafetensorsWriter> moments_;
  std::vector<float> buffer_;
};

absl::Status CheckOrder(const ModelSpec& model, std::vector<BlobId> order) {
  std::sort(order.begin(), order.end());
  bool whole = order.size() == model.blobs.size();
  for (size_t i = 0; whole && i < order.size(); ++i) whole = order[i] == BlobId(static_cast<int32_t>(i));
  if (whole) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("order: ", order.size(), " blobs that are not each of ", model.blobs.size(), " once"));
}

absl::Status WriteTensors(const std::string& folder, const Store& store, const ModelSpec& model, const RunConfig& run,
                          Version version, const std::vector<BlobId>& order,
                          const std::function<void(BlobId)>& captured) {
  const std::vector<absl::string_view> moment_names = MomentNames(run.optimizer);
  EPS_CHECK(store.num_moments() == static_cast<int>(moment_names.size()));
  // What every writer of PyTorch tensors says, and some readers ask for.
  const std::map<std::string, std::string> metadata = {{"format", "pt"}};
  EPS_ASSIGN_OR_RETURN(auto masters,
                       SafetensorsWriter::Create(PathOf(folder, kModelFile), Entries(model, {""}), metadata));
  EPS_ASSIGN_OR_RETURN(
      auto moments, SafetensorsWriter::Create(PathOf(folder, kOptimizerFile), Entries(model, moment_names), metadata));
  TensorFiles files(store, model, version, std::move(masters), std::move(moments));
  for (const BlobId blob : order) {
    EPS_RETURN_IF_ERROR(files.WriteBlob(blob));
    captured(blob);
  }
  return files.Finish();
}

// ---- Reading ----------------------------------------------------------------------------------------------

std::string ShapeText(const std::vector<int64_t>& shape) { return absl::StrCat("(", absl::StrJoin(shape, ", "), ")"); }

// A file that holds exactly `wanted`.
absl::StatusOr<std::unique_ptr<SafetensorsReader>> OpenTensors(const std::string& path,
                                                               const std::vector<SafetensorsEntry>& wanted) {
  absl::StatusOr<std::unique_ptr<SafetensorsReader>> file = SafetensorsReader::Open(path);
  if (!file.ok()) return absl::DataLossError(file.status().message());
  for (const SafetensorsEntry& tensor : wanted) {
    const SafetensorsEntry* found = (*file)->Find(tensor.name);
    if (found == nullptr) return absl::DataLossError(absl::StrCat(path, ": tensor ", tensor.name, " is missing"));
    if (found->dtype != tensor.dtype || found->shape != tensor.shape) {
      return absl::DataLossError(absl::StrCat(path, ": tensor ", tensor.name, ": found ", found->dtype, " ",
                                              ShapeText(found->shape), ", must be ", tensor.dtype, " ",
                                              ShapeText(tensor.shape)));
    }
  }
  if ((*file)->entries().size() != wanted.size()) {
    return absl::DataLossError(
        absl::StrCat(path, ": found ", (*file)->entries().size(), " tensors, must be ", wanted.size()));
  }
  return file;
}

// Hands each tensor of `file`, a piece at a time, to `load(blob, which prefix, offset_elems, values)`.
template <typename Load>
absl::Status ReadTensors(const SafetensorsReader& file, const ModelSpec& model,
                         const std::vector<absl::string_view>& prefixes, const Load& load) {
  const std::vector<SafetensorsEntry> entries = Entries(model, prefixes);
  std::vector<float> buffer(kChunkElems);
  auto entry = entries.begin();
  for (const BlobSpec& blob : model.blobs) {
    for (const TensorSpec& tensor : blob.tensors) {
      for (size_t which = 0; which < prefixes.size(); ++which, ++entry) {
        const SafetensorsEntry& stored = *file.Find(entry->name);
        EPS_RETURN_IF_ERROR(ForEachPiece(tensor, [&](int64_t first, int64_t num_elems) -> absl::Status {
          const auto values = absl::MakeSpan(buffer).subspan(0, static_cast<size_t>(num_elems));
          EPS_RETURN_IF_ERROR(file.ReadFloatsAt(stored, first, values));
          file.Release(stored);
          load(blob.id, static_cast<int>(which), tensor.offset_elems + first, values);
          return absl::OkStatus();
        }));
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status WriteCheckpointFolder(const std::string& folder, const Store& store, const ModelSpec& model,
                                   const RunConfig& run, const RunState& state, const std::vector<BlobId>& order,
                                   const std::function<void(BlobId)>& captured) {
  EPS_RETURN_IF_ERROR(CheckOrder(model, order));
  EPS_RETURN_IF_ERROR(WriteTensors(folder, store, model, run, state.version, order, captured));
  EPS_RETURN_IF_ERROR(WriteFileAtomically(PathOf(folder, kConfigFile), Gpt2ConfigToJson(model.config)));
  Manifest manifest{.run = run, .state = state, .files = {}};
  for (const absl::string_view name : kSummedFiles) {
    EPS_ASSIGN_OR_RETURN(manifest.files[std::string(name)], SumFile(PathOf(folder, name)));
  }
  const std::string text = ManifestToJson(manifest);
  // A checkpoint that no reader takes is worse than none: it would push good ones out.
  if (const absl::Status status = ParseManifest(text).status(); !status.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(PathOf(folder, kManifestFile), ": ", status.message()));
  }
  EPS_RETURN_IF_ERROR(WriteFileAtomically(PathOf(folder, kManifestFile), text));
  return CheckComplete(folder);
}

absl::Status LoadTensors(const std::string& folder, const ModelSpec& model, const Manifest& manifest, LoadWhat what,
                         Store& store) {
  const std::vector<absl::string_view> moment_names = MomentNames(manifest.run.optimizer);
  EPS_ASSIGN_OR_RETURN(const auto masters, OpenTensors(PathOf(folder, kModelFile), Entries(model, {""})));
  std::unique_ptr<SafetensorsReader> moments;
  if (what == LoadWhat::kMastersAndMoments) {
    EPS_CHECK(store.num_moments() == static_cast<int>(moment_names.size()));
    EPS_ASSIGN_OR_RETURN(moments, OpenTensors(PathOf(folder, kOptimizerFile), Entries(model, moment_names)));
  }
  EPS_RETURN_IF_ERROR(ReadTensors(*masters, model, {""}, [&](BlobId blob, int, int64_t offset, auto values) {
    store.LoadMaster(blob, manifest.state.version, offset, values);
  }));
  if (moments == nullptr) return absl::OkStatus();
  return ReadTensors(*moments, model, moment_names, [&](BlobId blob, int which, int64_t offset, auto values) {
    store.LoadMoment(blob, which, offset, values);
  });
}

}  // namespace eps::server
