#include "common/checkpoint/checkpoint_tensors.h"

#include <cstdint>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/formats/shard_index.h"
#include "common/spec/moment_format.h"

namespace eps {
namespace {

std::vector<const BlobSpec*> FrozenBlobs(const ModelSpec& model) {
  std::vector<const BlobSpec*> blobs;
  for (const bool are_quantized : {false, true}) {
    for (const BlobSpec& blob : model.blobs) {
      if (blob.frozen && blob.is_quantized() == are_quantized) blobs.push_back(&blob);
    }
  }
  return blobs;
}

void Append(absl::Span<const BlobSpec* const> blobs, Dtype wire, WeightFile& file) {
  for (const BlobSpec* blob : blobs) {
    file.blobs.push_back(blob);
    const Dtype dtype = blob->frozen ? blob->value_dtype(wire) : Dtype::kF32;
    for (const TensorSpec& tensor : blob->tensors) {
      file.entries.push_back({.name = tensor.name, .dtype = std::string(DtypeName(dtype)), .shape = tensor.shape});
      file.tensor_bytes += tensor.num_elems() * SizeOf(dtype);
    }
  }
}

}  // namespace

WeightLayout LayoutOf(const ModelSpec& model) {
  return FrozenBlobs(model).empty() ? WeightLayout::kOneFile : WeightLayout::kFrozenApart;
}

WeightLayout LayoutOf(const Manifest& manifest) {
  return manifest.has_frozen_file() ? WeightLayout::kFrozenApart : WeightLayout::kOneFile;
}

absl::Span<const absl::string_view> SummedFiles(WeightLayout layout) {
  if (layout == WeightLayout::kOneFile) return kSummedFiles;
  return kSummedFilesWithFrozen;
}

std::vector<WeightFile> WeightFiles(const ModelSpec& model, Dtype wire, WeightLayout layout) {
  std::vector<WeightFile> files(layout == WeightLayout::kOneFile ? 1 : 2);
  files.front().name = layout == WeightLayout::kOneFile ? kModelFile : kTrainedFile;
  Append(TrainedBlobs(model), wire, files.front());
  if (layout == WeightLayout::kFrozenApart) files.back().name = kFrozenFile;
  Append(FrozenBlobs(model), wire, files.back());
  return files;
}

std::string WeightIndex(absl::Span<const WeightFile> files) {
  ShardIndex index;
  int64_t total_bytes = 0;
  for (const WeightFile& file : files) {
    for (const SafetensorsEntry& entry : file.entries) index.emplace(entry.name, file.name);
    total_bytes += file.tensor_bytes;
  }
  return ShardIndexToJson(index, total_bytes);
}

std::vector<absl::string_view> MomentNames(const OptimizerConfig& optimizer) {
  switch (optimizer.rule) {
    case OptimizerRule::kAdamW:
    case OptimizerRule::kAdam:
    case OptimizerRule::kLamb:
      return {"exp_avg", "exp_avg_sq"};
    case OptimizerRule::kLion:
      return {"exp_avg"};
    case OptimizerRule::kSgd:
      break;
  }
  if (optimizer.momentum == 0) return {};
  return {"momentum"};
}

std::vector<const BlobSpec*> TrainedBlobs(const ModelSpec& model) {
  std::vector<const BlobSpec*> blobs;
  for (const BlobSpec& blob : model.blobs) {
    if (!blob.frozen) blobs.push_back(&blob);
  }
  return blobs;
}

std::vector<SafetensorsEntry> MomentEntries(const ModelSpec& model, const RunConfig& run) {
  const std::vector<absl::string_view> moments = MomentNames(run.optimizer);
  EPS_CHECK(static_cast<int>(moments.size()) == run.optimizer.num_moments());
  const std::string dtype(DtypeName(MomentFileDtype(run.precision.moments)));
  std::vector<SafetensorsEntry> entries;
  for (const BlobSpec* blob : TrainedBlobs(model)) {
    for (const TensorSpec& tensor : blob->tensors) {
      for (const absl::string_view moment : moments) {
        entries.push_back({.name = absl::StrCat(moment, ".", tensor.name), .dtype = dtype, .shape = tensor.shape});
      }
    }
  }
  return entries;
}

}  // namespace eps
