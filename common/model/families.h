#ifndef EPS_COMMON_MODEL_FAMILIES_H_
#define EPS_COMMON_MODEL_FAMILIES_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/model/model_config.h"
#include "common/model/model_spec.h"
#include "nlohmann/json_fwd.hpp"

namespace eps {

// A family of models: what its config.json means, which numbers it takes, which tensors its layers have. Each is a file
// beside this one; FamilyOf and FamilyOfModelType find them.
struct Family {
  ModelFamily id;
  std::vector<std::string> model_types;       // of config.json
  std::string own_model_type = "";            // the one of them that no other program has; "": there is none
  std::string name_prefix;                    // of tensors; files may leave it out
  std::vector<std::string> ignored_suffixes;  // of tensors that exports carry and the model does not have
  std::vector<std::pair<std::string, std::string>> older_suffixes;  // of tensors, and what they are now
  std::string tied_head_name = "lm_head.weight";  // of the token table once more, as files may have it
  // The file's object, whose model_type is one of the above. A computation that is not ours is refused by key. Not
  // all ranges are looked at: `check` does that.
  absl::StatusOr<ModelConfig> (*from_json)(const nlohmann::json& object);
  nlohmann::json (*to_json)(const ModelConfig& config);
  // Errors: INVALID_ARGUMENT naming the field as it is written in a RunSpec
  absl::Status (*check)(const ModelConfig& config);
  ModelSpec (*build)(const ModelConfig& config);  // of what passed `check`
};

const Family& Gpt2Family();
const Family& LlamaFamily();
const Family& BertFamily();

const Family& FamilyOf(ModelFamily id);
// Null: none. `type` is what config.json has.
const Family* FamilyOfModelType(absl::string_view type);
// For messages: "gpt2", "llama", ..., in quotes.
std::string KnownModelTypes();

// Of every family: layers, widths, heads, context, vocabulary, dropouts, in bounds that keep every size below 2^63
// elements with room for arithmetic.
absl::Status CheckCommonRanges(const ModelConfig& config);
absl::Status CheckRange(absl::string_view field, int64_t value, int64_t max);
absl::Status CheckDropout(absl::string_view field, double value);
// Where heads share d_model evenly.
absl::Status CheckHeadsDivideWidth(const ModelConfig& config);
// That there are as many positions as the context takes, and no more than `max`.
absl::Status CheckMaxPositions(const ModelConfig& config, int64_t max);
inline constexpr int64_t kMaxDModel = 65536;
inline constexpr int64_t kMaxContext = int64_t{1} << 20;  // of a run; a model may be made for more positions
inline constexpr int64_t kMaxWidth = int64_t{1} << 20;    // of d_ff, and of all heads together
inline constexpr int64_t kMaxExperts = 1024;              // of a block
inline constexpr int64_t kMaxHeadDim = 256;               // what the attention kernels hold in registers and tiles

}  // namespace eps

#endif  // EPS_COMMON_MODEL_FAMILIES_H_
