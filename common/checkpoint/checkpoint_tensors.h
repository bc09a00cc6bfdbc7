#ifndef EPS_COMMON_CHECKPOINT_CHECKPOINT_TENSORS_H_
#define EPS_COMMON_CHECKPOINT_CHECKPOINT_TENSORS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/checkpoint/manifest.h"
#include "common/formats/safetensors.h"
#include "common/model/model_spec.h"
#include "common/spec/run_config.h"
#include "common/tensor/dtype.h"

// Which tensors a checkpoint's files hold, and in which order. docs/formats.md, Checkpoints.
namespace eps {

// A file of weights, and the blobs whose tensors it holds: fp32 masters; of what is frozen no more than its wire form
// (BlobSpec::value_dtype). The order is the model's, frozen ones last and quantized ones the very last: the same model
// gives the same bytes, and no fp32 tensor starts within 4 bytes because one of 16 bits lies before it, which other
// readers refuse.
struct WeightFile {
  absl::string_view name;
  std::vector<const BlobSpec*> blobs;     // of the model, which outlives this
  std::vector<SafetensorsEntry> entries;  // of their tensors, without places
  int64_t tensor_bytes = 0;               // in all
};

enum class WeightLayout {
  kOneFile,      // kModelFile: where nothing is frozen, and before manifests of format 8
  kFrozenApart,  // kTrainedFile, then kFrozenFile; kIndexFile says which tensor is where
};
// As a checkpoint of the model is written.
WeightLayout LayoutOf(const ModelSpec& model);
// As the manifest's checkpoint has been.
WeightLayout LayoutOf(const Manifest& manifest);

// Those files of which the manifest has sums: kSummedFiles, or kSummedFilesWithFrozen.
absl::Span<const absl::string_view> SummedFiles(WeightLayout layout);

// wire: precision.wire
std::vector<WeightFile> WeightFiles(const ModelSpec& model, Dtype wire, WeightLayout layout);

// kIndexFile's text.
std::string WeightIndex(absl::Span<const WeightFile> files);

// What stands before a tensor's name in optimizer.safetensors, by the moments' number; as PyTorch calls them.
std::vector<absl::string_view> MomentNames(const OptimizerConfig& optimizer);

// Those that are not frozen, in the model's order.
std::vector<const BlobSpec*> TrainedBlobs(const ModelSpec& model);

// optimizer.safetensors: each tensor of TrainedBlobs once per moment, beside each other.
std::vector<SafetensorsEntry> MomentEntries(const ModelSpec& model, const RunConfig& run);

}  // namespace eps

#endif  // EPS_COMMON_CHECKPOINT_CHECKPOINT_TENSORS_H_
