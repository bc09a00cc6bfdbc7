#include "common/corpus/document_marks.h"

#include <string>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/status_macros.h"
#include "common/corpus/chat_template_choice.h"
#include "common/corpus/text_marks.h"

namespace eps {
namespace {

// The token of that spelling; nullopt for none. Errors: INVALID_ARGUMENT naming option and token
absl::StatusOr<std::optional<int32_t>> TokenOf(absl::string_view option, const std::string& spelling,
                                               const Tokenizer& tokenizer) {
  if (spelling.empty()) return std::optional<int32_t>();
  const std::optional<int32_t> id = tokenizer.TokenId(spelling);
  if (id) return id;
  return absl::InvalidArgumentError(
      absl::StrCat(option, ": the tokenizer has no token \"", absl::CHexEscape(spelling), "\""));
}

// What a text begins or ends with, and where that is said.
std::string Place(absl::string_view option, bool is_named) {
  return is_named ? absl::StrCat(option, ", as tokenizer_config.json or special_tokens_map.json has it")
                  : std::string(option);
}

// [CLS] and [SEP] where the tokenizer is of a BERT, whose texts with and without classes have them.
void ChooseBertMarks(const DocumentMarkOptions& options, CorpusContent content, const Tokenizer& tokenizer,
                     DocumentMarks& marks) {
  const std::optional<int32_t> cls = tokenizer.TokenId("[CLS]"), sep = tokenizer.TokenId("[SEP]");
  if (!cls || !sep) return;
  if (content == CorpusContent::kClassified) {
    marks.cls = cls;
    marks.sep = sep;
    marks.first = marks.last = std::nullopt;
    return;
  }
  if (!marks.first && !options.settings.bos_token) marks.first = cls;
  if (!marks.last && !options.settings.eos_token) marks.last = sep;
}

// Of a conversation: what its template says, and what ends text for a template that ends answers with it.
absl::Status ChooseChatMarks(const DocumentMarkOptions& options, const std::optional<int32_t>& named_last,
                             const Tokenizer& tokenizer, DocumentMarks& marks) {
  EPS_ASSIGN_OR_RETURN(const ChatTemplateChoice choice,
                       ChooseChatTemplate(options.chat_template, options.settings, tokenizer));
  EPS_ASSIGN_OR_RETURN(marks.chat, ChatTemplate::Create(choice.name, tokenizer, marks.last));
  marks.chat_reason = choice.reason;
  // The end of text already ends each answer of plain, which begins as text does; other templates end as they do.
  const bool is_plain = choice.name == "plain";
  marks.last = is_plain ? std::nullopt : named_last;
  const std::optional<int32_t> own_first = choice.begins_with_bos ? marks.first : std::nullopt;
  if (!is_plain) marks.first = marks.chat->first_token() ? marks.chat->first_token() : own_first;
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<DocumentMarks> ChooseDocumentMarks(const DocumentMarkOptions& options, CorpusContent content,
                                                  const Tokenizer& tokenizer) {
  DocumentMarks marks;
  const TokenizerSettings& settings = options.settings;
  EPS_ASSIGN_OR_RETURN(
      marks.first, TokenOf(Place("bos", settings.bos_token.has_value()), BeginOfText(settings, tokenizer), tokenizer));
  EPS_ASSIGN_OR_RETURN(
      marks.last, TokenOf(Place("eos", settings.eos_token.has_value()), EndOfText(settings, tokenizer), tokenizer));
  ChooseBertMarks(options, content, tokenizer, marks);
  std::optional<int32_t> named_last;
  if (options.eos) {
    EPS_ASSIGN_OR_RETURN(named_last, TokenOf("eos", *options.eos, tokenizer));
    marks.last = named_last;
  }
  if (content == CorpusContent::kConversations) {
    EPS_RETURN_IF_ERROR(ChooseChatMarks(options, named_last, tokenizer, marks));
  }
  if (options.bos) {
    EPS_ASSIGN_OR_RETURN(marks.first, TokenOf("bos", *options.bos, tokenizer));
  }
  return marks;
}

}  // namespace eps
