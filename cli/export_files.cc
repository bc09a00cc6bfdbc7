#include "cli/export_files.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cli/json_member.h"
#include "common/base/json_text.h"
#include "common/base/status_macros.h"
#include "common/corpus/chat_template_choice.h"
#include "common/corpus/chat_template_jinja.h"
#include "common/corpus/chat_template_markup.h"
#include "common/corpus/text_marks.h"
#include "common/tokenizer/tokenizer.h"
#include "common/tokenizer/tokenizer_settings.h"
#include "nlohmann/json.hpp"

namespace eps::cli {
namespace {

using nlohmann::ordered_json;  // members stay where they are

constexpr int kMaxDepth = 64;

std::string Dump(const std::string& spelling) {
  return ordered_json(spelling).dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

// An empty object where the file is not there.
absl::StatusOr<ordered_json> ParseObject(const ModelFiles& files, const char* name) {
  const auto file = files.find(name);
  if (file == files.end()) return ordered_json::object();
  EPS_RETURN_IF_ERROR_WITH(ParseJson(file->second, kMaxDepth).status(), name);
  ordered_json object = ordered_json::parse(file->second);
  if (object.is_object()) return object;
  return absl::InvalidArgumentError(absl::StrCat(name, ": not a JSON object"));
}

struct Token {
  std::string spelling;
  int64_t id = 0;
};

std::optional<Token> TokenOf(const std::string& spelling, const Tokenizer& tokenizer) {
  const std::optional<int32_t> id = spelling.empty() ? std::nullopt : tokenizer.TokenId(spelling);
  if (!id) return std::nullopt;
  return Token{spelling, *id};
}

// `first`, and then what was there: a number, several or none.
ordered_json InFront(int64_t first, const ordered_json& was) {
  ordered_json all = ordered_json::array({first});
  for (const ordered_json& id : was.is_array() ? was : ordered_json::array({was})) {
    if (!id.is_null() && id != first) all.push_back(id);
  }
  return all;
}

// What a program takes of config.json where there is no generation_config.json.
absl::StatusOr<std::string> NewGenerationConfig(const ModelFiles& files) {
  EPS_ASSIGN_OR_RETURN(const ordered_json config, ParseObject(files, "config.json"));
  ordered_json generation = ordered_json::object();
  for (const char* key : {"bos_token_id", "eos_token_id", "pad_token_id"}) {
    if (config.contains(key)) generation[key] = config[key];
  }
  return generation.dump(2) + "\n";
}

// Programs stop at any of these.
absl::Status PutInGenerationConfig(const Token& end, ModelFiles& files) {
  if (!files.contains(kGenerationConfigFile)) {
    EPS_ASSIGN_OR_RETURN(files[kGenerationConfigFile], NewGenerationConfig(files));
  }
  EPS_ASSIGN_OR_RETURN(const ordered_json generation, ParseObject(files, kGenerationConfigFile));
  const ordered_json ends = InFront(end.id, generation.value("eos_token_id", ordered_json()));
  std::string& text = files[kGenerationConfigFile];
  text = WithMember(text, "eos_token_id", ends.dump());
  return absl::OkStatus();
}

// As text, or as the content of an object, as older files have it.
absl::Status PutInTokenizerFile(const char* name, const Token& end, ModelFiles& files) {
  if (!files.contains(name)) return absl::OkStatus();
  EPS_ASSIGN_OR_RETURN(const ordered_json object, ParseObject(files, name));
  const std::string spelling = Dump(end.spelling);
  std::string& text = files[name];
  const bool is_object = object.value("eos_token", ordered_json()).is_object();
  text = WithMember(text, "eos_token",
                    is_object ? WithMember(*FindMember(text, "eos_token"), "content", spelling) : spelling);
  return absl::OkStatus();
}

absl::Status EndTurnsWith(const Token& end, ExportFiles& result) {
  EPS_RETURN_IF_ERROR(PutInGenerationConfig(end, result.files));
  for (const char* name : {kTokenizerConfigFile, kSpecialTokensFile}) {
    EPS_RETURN_IF_ERROR(PutInTokenizerFile(name, end, result.files));
  }
  result.config.eos_token_id = end.id;
  result.end_of_answer = absl::StrCat(end.spelling, " (", end.id, ")");
  return absl::OkStatus();
}

absl::Status TeachToTalk(const std::string& chat_template, const TokenizerSettings& settings,
                         const Tokenizer& tokenizer, ExportFiles& result) {
  const absl::StatusOr<ChatTemplateChoice> chosen = ChooseChatTemplate(chat_template, settings, tokenizer);
  if (!chosen.ok() && chat_template == "auto") {  // of a run that did not keep what it turned out to be
    result.notes.push_back(absl::StrCat("without a template for conversations: which one the run took is not known: ",
                                        chosen.status().message()));
    return absl::OkStatus();
  }
  EPS_ASSIGN_OR_RETURN(const ChatTemplateChoice choice, chosen);
  EPS_ASSIGN_OR_RETURN(const ChatMarkup* markup, FindChatMarkup(choice.name, tokenizer));
  const std::string end_of_text = EndOfText(settings, tokenizer);
  const bool begins_as_text = choice.name == "plain";
  const std::string first = begins_as_text ? BeginOfText(settings, tokenizer) : std::string(markup->first_token);
  const std::string jinja = ChatTemplateJinja(*markup, first, end_of_text);
  std::vector<std::string> written;
  if (RecognizeChatTemplate(settings.chat_template) != choice.name) {
    result.files[kChatTemplateFile] = jinja;
    written.push_back(kChatTemplateFile);
  }
  // llama.cpp and older programs look here first, where there is one.
  for (const char* name : {kTokenizerConfigFile, kChatTemplateJsonFile}) {
    EPS_ASSIGN_OR_RETURN(const ordered_json object, ParseObject(result.files, name));
    const ordered_json inlined = object.value("chat_template", ordered_json());
    const bool is_right = inlined.is_string() ? RecognizeChatTemplate(inlined.get<std::string>()) == choice.name
                                              : written.empty();  // several, of which the one that counts is right
    if (inlined.is_null() || is_right) continue;
    std::string& text = result.files[name];
    text = WithMember(text, "chat_template", Dump(jinja));
    written.push_back(name);
  }
  if (!written.empty()) {
    result.notes.push_back(
        absl::StrCat(absl::StrJoin(written, ", "), ": ", choice.name, ", as the run wrote its conversations"));
  }
  const std::string end = markup->end_of_turn.empty() ? end_of_text : std::string(markup->end_of_turn);
  const std::optional<Token> token = TokenOf(end, tokenizer);
  return token ? EndTurnsWith(*token, result) : absl::OkStatus();
}

absl::Status CheckExportFile(const ModelFiles& files, const std::string& name) {
  if (files.at(name).empty()) return absl::InvalidArgumentError(absl::StrCat(name, ": empty"));
  for (const char* settings :
       {"config.json", kGenerationConfigFile, kTokenizerConfigFile, kSpecialTokensFile, kChatTemplateJsonFile}) {
    if (name == settings) return ParseObject(files, settings).status();
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckExportFiles(const ModelFiles& files) {
  for (const auto& [name, bytes] : files) {
    const absl::Status status = CheckExportFile(files, name);
    if (!status.ok()) return absl::InvalidArgumentError(absl::StrCat(status.message(), "; mend or remove the file"));
  }
  return absl::OkStatus();
}

absl::StatusOr<ExportFiles> FilesOfExport(const ModelSource& source) {
  ExportFiles result{.config = {}, .files = source.files, .end_of_answer = "", .notes = {}};
  const bool has_config = source.files.contains("config.json");
  if (has_config) result.config.source = source.files.at("config.json");
  EPS_ASSIGN_OR_RETURN(const ordered_json config, ParseObject(source.files, "config.json"));
  const auto is_null = [&config](const char* key) { return config.contains(key) && config[key].is_null(); };
  // Of no folder, or as a checkpoint has it, which does not know the tokenizer.
  const bool lacks_marks = !has_config || (is_null("bos_token_id") && is_null("eos_token_id"));
  const bool needs_tokenizer = lacks_marks || !source.chat_template.empty();
  if (needs_tokenizer && !source.tokenizer_path.empty()) {
    const absl::StatusOr<std::unique_ptr<Tokenizer>> loaded = LoadTokenizer(source.tokenizer_path);
    if (!loaded.ok() && source.chat_template.empty()) {  // of a kind that is not known here; nobody asks it anything
      result.notes.push_back(
          absl::StrCat("without the ids of what begins and ends a text: ", loaded.status().message()));
      result.files.erase("config.json");
      return result;
    }
    EPS_RETURN_IF_ERROR(loaded.status());
    const std::unique_ptr<Tokenizer>& tokenizer = *loaded;
    EPS_ASSIGN_OR_RETURN(const TokenizerSettings settings, ReadTokenizerSettings(source.tokenizer_path));
    if (lacks_marks) {
      if (const auto begin = TokenOf(BeginOfText(settings, *tokenizer), *tokenizer))
        result.config.bos_token_id = begin->id;
      if (const auto end = TokenOf(EndOfText(settings, *tokenizer), *tokenizer)) result.config.eos_token_id = end->id;
    }
    if (!source.chat_template.empty()) {
      EPS_RETURN_IF_ERROR(TeachToTalk(source.chat_template, settings, *tokenizer, result));
    }
  }
  result.files.erase("config.json");
  return result;
}

}  // namespace eps::cli
