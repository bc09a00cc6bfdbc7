#include "common/tokenizer/class_overrides.h"

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/base/json_text.h"
#include "common/base/status_macros.h"

namespace eps {
namespace {

constexpr int kMaxDepth = 64;

// How it would be: as `config` says, else as it is.
struct Override {
  const char* key;
  const char* place;  // in tokenizer.json
  bool is;
  bool would_be;
};

absl::Status Check(const Override& one, const JsonNode& config) {
  if (one.is == one.would_be) return absl::OkStatus();
  const nlohmann::json& said = config.value()[one.key];
  return absl::InvalidArgumentError(
      absl::StrCat(one.place, ": ", one.is ? "true" : "false", ", but the tokenizer_config.json beside it has ",
                   one.key, ": ", said.dump(),
                   ", which some versions of transformers put in its place: make both say what the "
                   "model was trained with"));
}

// `absent` also where it is no flag, which is said elsewhere.
bool FlagOf(const JsonNode& config, const char* key, bool absent) {
  const absl::StatusOr<bool> flag = config.FlagOr(key, absent);
  return flag.value_or(absent);
}

// The class that is of no model takes tokenizer.json as it is.
bool HasClassOfModel(const JsonNode& config) {
  const std::string name = config.StringOr("tokenizer_class", "").value_or("");
  return name != "PreTrainedTokenizerFast" && name != "TokenizersBackend";
}

absl::Status CheckBert(const JsonNode& normalizer, const JsonNode& config) {
  EPS_ASSIGN_OR_RETURN(const bool lowercase, normalizer.FlagOr("lowercase", true));
  EPS_ASSIGN_OR_RETURN(const bool ideographs, normalizer.FlagOr("handle_chinese_chars", true));
  EPS_ASSIGN_OR_RETURN(const bool strips, normalizer.FlagOr("strip_accents", lowercase));
  // Null is as lowercase.
  const bool says_strips = config.value().contains("strip_accents");
  for (const Override& one :
       {Override{"do_lower_case", "normalizer.lowercase", lowercase, FlagOf(config, "do_lower_case", lowercase)},
        Override{"strip_accents", "normalizer.strip_accents", strips,
                 says_strips ? FlagOf(config, "strip_accents", lowercase) : strips},
        Override{"tokenize_chinese_chars", "normalizer.handle_chinese_chars", ideographs,
                 FlagOf(config, "tokenize_chinese_chars", ideographs)}}) {
    EPS_RETURN_IF_ERROR(Check(one, config));
  }
  return absl::OkStatus();
}

absl::Status CheckByteLevel(const JsonNode& pre_tokenizer, const JsonNode& config) {
  EPS_ASSIGN_OR_RETURN(const bool adds, pre_tokenizer.Flag("add_prefix_space"));
  return Check({"add_prefix_space", "pre_tokenizer.add_prefix_space", adds, FlagOf(config, "add_prefix_space", adds)},
               config);
}

bool IsOfType(const std::optional<JsonNode>& node, absl::string_view type) {
  return node && node->StringOr("type", "").value_or("") == type;
}

}  // namespace

absl::Status CheckClassOverrides(const JsonNode& tokenizer, absl::string_view config) {
  const absl::StatusOr<nlohmann::json> document = ParseJson(config, kMaxDepth);
  if (!document.ok() || !document->is_object()) return absl::OkStatus();
  const JsonNode root(*document);
  const std::optional<JsonNode> normalizer = tokenizer.Find("normalizer");
  if (IsOfType(normalizer, "BertNormalizer") && HasClassOfModel(root)) {
    EPS_RETURN_IF_ERROR(CheckBert(*normalizer, root));
  }
  const std::optional<JsonNode> pre_tokenizer = tokenizer.Find("pre_tokenizer");
  return IsOfType(pre_tokenizer, "ByteLevel") ? CheckByteLevel(*pre_tokenizer, root) : absl::OkStatus();
}

}  // namespace eps
