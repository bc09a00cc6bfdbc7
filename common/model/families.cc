#include "common/model/families.h"

#include <array>
#include <cstdint>
#include <limits>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace eps {
namespace {

// The largest tensor is a product of 4 * 2^32 elements or a table of 2^40, and at most 4096 * 12 are of the former.
constexpr int64_t kMaxLayers = 4096;
constexpr int64_t kMaxVocab = int64_t{1} << 24;

std::array<const Family*, 3> Families() { return {&Gpt2Family(), &LlamaFamily(), &BertFamily()}; }

}  // namespace

const Family& FamilyOf(ModelFamily id) {
  for (const Family* family : Families()) {
    if (family->id == id) return *family;
  }
  EPS_CHECK(false);
}

const Family* FamilyOfModelType(absl::string_view type) {
  for (const Family* family : Families()) {
    for (const std::string& known : family->model_types) {
      if (type == known) return family;
    }
  }
  return nullptr;
}

std::string KnownModelTypes() {
  std::string text;
  for (const Family* family : Families()) {
    for (const std::string& type : family->model_types)
      absl::StrAppend(&text, text.empty() ? "" : ", ", "\"", type, "\"");
  }
  return text;
}

absl::Status CheckRange(absl::string_view field, int64_t value, int64_t max) {
  if (value >= 1 && value <= max) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(field, ": ", value, ", must be between 1 and ", max));
}

absl::Status CheckDropout(absl::string_view field, double value) {
  if (value >= 0 && value < 1) return absl::OkStatus();  // NaN fails
  return absl::InvalidArgumentError(absl::StrCat(field, ": ", value, ", must be at least 0 and less than 1"));
}

absl::Status CheckHeadsDivideWidth(const ModelConfig& config) {
  if (config.d_model % config.num_heads != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("model.heads: ", config.num_heads, " does not divide model.d_model ", config.d_model));
  }
  if (config.head_dim() <= kMaxHeadDim) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("model.heads: ", config.num_heads, " of model.d_model ",
                                                 config.d_model, " makes heads of ", config.head_dim(), ", at most ",
                                                 kMaxHeadDim));
}

absl::Status CheckMaxPositions(const ModelConfig& config, int64_t max) {
  EPS_RETURN_IF_ERROR(CheckRange("model.max_positions", config.max_positions, max));
  if (config.context <= config.max_positions) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("model.context: ", config.context, ", the model is made for ", config.max_positions, " positions"));
}

absl::Status CheckCommonRanges(const ModelConfig& config) {
  EPS_RETURN_IF_ERROR(CheckRange("model.layers", config.num_layers, kMaxLayers));
  EPS_RETURN_IF_ERROR(CheckRange("model.d_model", config.d_model, kMaxDModel));
  EPS_RETURN_IF_ERROR(CheckRange("model.heads", config.num_heads, config.d_model));
  EPS_RETURN_IF_ERROR(CheckRange("model.context", config.context, kMaxContext));
  EPS_RETURN_IF_ERROR(CheckRange("model.vocab", config.vocab, kMaxVocab));
  // Devices have it in fp32.
  if (!(config.layer_norm_eps >= std::numeric_limits<float>::min() && config.layer_norm_eps < 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("model.layer_norm_eps: ", config.layer_norm_eps,
                     ", must be a normal number of fp32, greater than 0 and less than 1"));
  }
  EPS_RETURN_IF_ERROR(CheckDropout("model.embedding_dropout", config.embedding_dropout));
  EPS_RETURN_IF_ERROR(CheckDropout("model.attention_dropout", config.attention_dropout));
  return CheckDropout("model.residual_dropout", config.residual_dropout);
}

}  // namespace eps
