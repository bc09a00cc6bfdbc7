#ifndef EPS_COMMON_CHECKPOINT_CHECKPOINT_TENSORS_H_
#define EPS_COMMON_CHECKPOINT_CHECKPOINT_TENSORS_H_

#include <vector>

#include "absl/strings/string_view.h"
#include "common/formats/safetensors.h"
#include "common/model/model_spec.h"
#include "common/spec/run_config.h"
#include "common/tensor/dtype.h"

// Which tensors a checkpoint's files hold, and in which order. docs/formats.md, Checkpoints.
namespace eps {

// What stands before a tensor's name in optimizer.safetensors, by the moments' number; as PyTorch calls them.
std::vector<absl::string_view> MomentNames(const OptimizerConfig& optimizer);

// The files' order of tensors is the model's, frozen ones last: the same model gives the same bytes, and no fp32 tensor
// starts within 4 bytes because one of 16 bits lies before it, which other readers refuse.
std::vector<const BlobSpec*> BlobsInFileOrder(const ModelSpec& model, bool with_frozen);

// model.safetensors. A frozen tensor has no more than its wire form.
std::vector<SafetensorsEntry> MasterEntries(const ModelSpec& model, Dtype wire);

// optimizer.safetensors: each tensor that is not frozen once per moment, beside each other.
std::vector<SafetensorsEntry> MomentEntries(const ModelSpec& model, const RunConfig& run);

}  // namespace eps

#endif  // EPS_COMMON_CHECKPOINT_CHECKPOINT_TENSORS_H_
