#ifndef EPS_COMMON_MODEL_LORA_H_
#define EPS_COMMON_MODEL_LORA_H_

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/model/model_config.h"
#include "common/model/model_spec.h"

namespace eps {

inline constexpr int64_t kMaxLoraRank = 4096;
inline constexpr size_t kMaxLoraTargets = 1024;  // each product of 146 blocks of a Llama by its whole name
inline constexpr size_t kMaxLoraTargetBytes = 256;

// The model with adapters (LoraConfig) beside the products of its blocks that config.lora.targets name; as it is,
// without any. Experts and their router have none. Behind a blob's own tensors come the As of those of its matrices
// that have an adapter, in their order, and then the Bs, so that the As of products with one input lie beside each
// other. "h.0.attn.c_attn.weight" has "h.0.attn.c_attn.lora_A.weight" and "...lora_B.weight", as PEFT names them.
//
// A begins as normal values of variance 1 / (3 in), that of PEFT's uniform ones, and B as zeros: the model computes what it
// did.
//
// Errors: INVALID_ARGUMENT naming the field: CheckLoraRanges', a target that no block has
absl::StatusOr<ModelSpec> AddAdapters(ModelSpec model);

// That adapters are as a model may have them, whatever its blocks are; none at all are not.
// Errors: INVALID_ARGUMENT naming the member of `field`, which is what adapters are called where they are written, the
//         value and the bound
absl::Status CheckLoraRanges(absl::string_view field, const LoraConfig& lora);

// Such targets as name each of `modules` and none of `others`: of each the shortest end of its name that no other one's
// has. An end that several of `modules` have is there once.
std::vector<std::string> TargetsThatName(const std::set<std::string>& modules, const std::set<std::string>& others);

// Rows that come in and columns that come out of a block's matrix, whichever way its family has it.
struct ProductShape {
  int64_t in = 0, out = 0;
  bool is_out_in = false;  // the weight is (out, in)
};
ProductShape ProductShapeOf(const ModelConfig& config, const std::vector<int64_t>& weight_shape);

// "transformer.h.0.attn.c_attn", of the tensor "transformer.h.0.attn.c_attn.weight" and of those of its adapter.
absl::string_view ModuleOf(const TensorSpec& tensor);

}  // namespace eps

#endif  // EPS_COMMON_MODEL_LORA_H_
