#include "common/tokenizer/tokenizer_settings.h"

#include <filesystem>
#include <system_error>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "common/base/file_util.h"
#include "common/base/json_text.h"
#include "common/base/status_macros.h"
#include "common/tokenizer/json_node.h"
#include "nlohmann/json.hpp"

namespace eps {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMaxFileBytes = int64_t{1} << 26;  // added_tokens_decoder makes the largest known some MB
constexpr int kMaxDepth = 64;

std::string FolderOf(const std::string& tokenizer_path) {
  std::error_code error;
  if (fs::is_directory(tokenizer_path, error)) return tokenizer_path;
  const std::string parent = fs::path(tokenizer_path).parent_path().string();
  return parent.empty() ? "." : parent;
}

// Null where the file is not there.
absl::StatusOr<nlohmann::json> ReadJson(const std::string& path) {
  std::error_code error;
  if (!fs::exists(path, error)) return nlohmann::json();
  EPS_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kMaxFileBytes));
  return ParseJson(text, kMaxDepth);
}

// A text, or the one of several that is called "default"; "" where there is none.
absl::StatusOr<std::string> ChatTemplateOf(const JsonNode& root) {
  const std::optional<JsonNode> node = root.Find("chat_template");
  if (!node) return "";
  if (!node->value().is_array()) return node->String();
  EPS_ASSIGN_OR_RETURN(const std::vector<JsonNode> named, node->Elements());
  for (const JsonNode& one : named) {
    EPS_ASSIGN_OR_RETURN(const std::string name, one.String("name"));
    if (name == "default") return one.String("template");
  }
  return "";
}

// Its spelling, which old files write as the content of an object. JSON's null says that there is none.
absl::Status ReadToken(const JsonNode& root, const char* key, std::optional<std::string>& token) {
  if (token || !root.value().is_object() || !root.value().contains(key)) return absl::OkStatus();
  const std::optional<JsonNode> node = root.Find(key);
  if (!node) {
    token = "";
    return absl::OkStatus();
  }
  EPS_ASSIGN_OR_RETURN(token, node->value().is_object() ? node->String("content") : node->String());
  return absl::OkStatus();
}

// These put bos_token in front of a text by themselves, with or without a "Fast" behind the name.
bool ClassAddsBos(absl::string_view tokenizer_class) {
  absl::ConsumeSuffix(&tokenizer_class, "Fast");
  return tokenizer_class == "LlamaTokenizer" || tokenizer_class == "CodeLlamaTokenizer" ||
         tokenizer_class == "GemmaTokenizer";
}

absl::Status ReadAddsBos(const JsonNode& root, std::optional<bool>& adds_bos) {
  if (adds_bos) return absl::OkStatus();
  if (root.Find("add_bos_token")) {
    EPS_ASSIGN_OR_RETURN(adds_bos, root.Flag("add_bos_token"));
    return absl::OkStatus();
  }
  EPS_ASSIGN_OR_RETURN(const std::string tokenizer_class, root.StringOr("tokenizer_class", ""));
  if (ClassAddsBos(tokenizer_class)) adds_bos = true;
  return absl::OkStatus();
}

// Takes from one of the files what the ones before it did not say.
absl::Status AddFrom(const std::string& folder, const char* name, TokenizerSettings& settings) {
  const std::string path = absl::StrCat(folder, "/", name);
  const auto read = [&]() -> absl::Status {
    EPS_ASSIGN_OR_RETURN(const nlohmann::json document, ReadJson(path));
    const JsonNode root(document);
    EPS_RETURN_IF_ERROR(ReadAddsBos(root, settings.adds_bos));
    EPS_RETURN_IF_ERROR(ReadToken(root, "bos_token", settings.bos_token));
    EPS_RETURN_IF_ERROR(ReadToken(root, "eos_token", settings.eos_token));
    if (!settings.chat_template.empty()) return absl::OkStatus();
    EPS_ASSIGN_OR_RETURN(settings.chat_template, ChatTemplateOf(root));
    settings.chat_template_place = absl::StrCat(path, ": chat_template");
    return absl::OkStatus();
  };
  const absl::Status status = read();
  return absl::IsInvalidArgument(status) ? Annotate(status, path) : status;
}

}  // namespace

absl::StatusOr<TokenizerSettings> ReadTokenizerSettings(const std::string& tokenizer_path) {
  const std::string folder = FolderOf(tokenizer_path);
  TokenizerSettings settings;
  const std::string jinja = folder + "/chat_template.jinja";
  if (std::error_code error; fs::exists(jinja, error)) {
    EPS_ASSIGN_OR_RETURN(settings.chat_template, ReadFile(jinja, kMaxFileBytes));
    settings.chat_template_place = jinja;
  }
  for (const char* name : {"tokenizer_config.json", "special_tokens_map.json", "chat_template.json"}) {
    EPS_RETURN_IF_ERROR(AddFrom(folder, name, settings));
  }
  if (!settings.adds_bos && settings.bos_token && settings.bos_token == settings.eos_token) settings.adds_bos = false;
  return settings;
}

}  // namespace eps
