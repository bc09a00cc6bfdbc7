#include "common/checkpoint/checkpoint_tensors.h"

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/spec/moment_format.h"

namespace eps {

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

std::vector<const BlobSpec*> BlobsInFileOrder(const ModelSpec& model, bool with_frozen) {
  std::vector<const BlobSpec*> blobs;
  for (const BlobSpec& blob : model.blobs) {
    if (!blob.frozen) blobs.push_back(&blob);
  }
  for (const BlobSpec& blob : model.blobs) {
    if (blob.frozen && with_frozen) blobs.push_back(&blob);
  }
  return blobs;
}

std::vector<SafetensorsEntry> MasterEntries(const ModelSpec& model, Dtype wire) {
  std::vector<SafetensorsEntry> entries;
  for (const BlobSpec* blob : BlobsInFileOrder(model, /*with_frozen=*/true)) {
    const absl::string_view dtype = DtypeName(blob->frozen ? wire : Dtype::kF32);
    for (const TensorSpec& tensor : blob->tensors) {
      entries.push_back({.name = tensor.name, .dtype = std::string(dtype), .shape = tensor.shape});
    }
  }
  return entries;
}

std::vector<SafetensorsEntry> MomentEntries(const ModelSpec& model, const RunConfig& run) {
  const std::vector<absl::string_view> moments = MomentNames(run.optimizer);
  EPS_CHECK(static_cast<int>(moments.size()) == run.optimizer.num_moments());
  const std::string dtype(DtypeName(MomentFileDtype(run.precision.moments)));
  std::vector<SafetensorsEntry> entries;
  for (const BlobSpec* blob : BlobsInFileOrder(model, /*with_frozen=*/false)) {
    for (const TensorSpec& tensor : blob->tensors) {
      for (const absl::string_view moment : moments) {
        entries.push_back({.name = absl::StrCat(moment, ".", tensor.name), .dtype = dtype, .shape = tensor.shape});
      }
    }
  }
  return entries;
}

}  // namespace eps
