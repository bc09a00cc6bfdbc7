#include "common/corpus/document_marks.h"

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/shown_text.h"
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
  return absl::InvalidArgumentError(absl::StrCat(option, ": the tokenizer has no token ", QuoteText(spelling)));
}

// A token that the option does not name: of the model's settings, or one that the tokenizer is known to have.
absl::StatusOr<std::optional<int32_t>> TokenBySettings(absl::string_view option,
                                                       const std::optional<std::string>& in_settings,
                                                       const std::string& spelling, const Tokenizer& tokenizer) {
  if (!in_settings) return TokenOf(option, spelling, tokenizer);
  return TokenOf(absl::StrCat(option, ", as tokenizer_config.json or special_tokens_map.json has it"), spelling,
                 tokenizer);
}

// What the texts of a BERT, with and without classes, lie between.
struct BertTokens {
  std::optional<int32_t> cls, sep;
};

BertTokens BertTokensOf(const Tokenizer& tokenizer) {
  const std::optional<int32_t> cls = tokenizer.TokenId("[CLS]"), sep = tokenizer.TokenId("[SEP]");
  return cls && sep ? BertTokens{cls, sep} : BertTokens();
}

absl::StatusOr<std::optional<int32_t>> FirstOfText(const DocumentMarkOptions& options, const Tokenizer& tokenizer) {
  if (options.bos) return TokenOf("bos", *options.bos, tokenizer);
  const TokenizerSettings& settings = options.settings;
  const std::string begin = BeginOfText(settings, tokenizer);
  if (begin.empty() && !settings.bos_token) return BertTokensOf(tokenizer).cls;
  return TokenBySettings("bos", settings.bos_token, begin, tokenizer);
}

absl::StatusOr<std::optional<int32_t>> LastOfText(const DocumentMarkOptions& options, const Tokenizer& tokenizer) {
  if (options.eos) return TokenOf("eos", *options.eos, tokenizer);
  const TokenizerSettings& settings = options.settings;
  const std::string end = EndOfText(settings, tokenizer);
  if (end.empty() && !settings.eos_token) return BertTokensOf(tokenizer).sep;
  return TokenBySettings("eos", settings.eos_token, end, tokenizer);
}

absl::StatusOr<DocumentMarks> MarksOfText(const DocumentMarkOptions& options, const Tokenizer& tokenizer) {
  DocumentMarks marks;
  EPS_ASSIGN_OR_RETURN(marks.first, FirstOfText(options, tokenizer));
  EPS_ASSIGN_OR_RETURN(marks.last, LastOfText(options, tokenizer));
  return marks;
}

absl::StatusOr<DocumentMarks> MarksOfClassified(const DocumentMarkOptions& options, const Tokenizer& tokenizer) {
  const BertTokens bert = BertTokensOf(tokenizer);
  if (!bert.cls) return MarksOfText(options, tokenizer);
  DocumentMarks marks = {.cls = bert.cls, .sep = bert.sep};
  EPS_ASSIGN_OR_RETURN(marks.first, TokenOf("bos", options.bos.value_or(""), tokenizer));
  EPS_ASSIGN_OR_RETURN(marks.last, TokenOf("eos", options.eos.value_or(""), tokenizer));
  return marks;
}

// Of a conversation that is not plain: what its template says.
absl::StatusOr<std::optional<int32_t>> FirstOfChat(const DocumentMarkOptions& options, const ChatTemplate& chat,
                                                   bool begins_with_bos, const Tokenizer& tokenizer) {
  if (options.bos) return TokenOf("bos", *options.bos, tokenizer);
  // The first exchange begins with the exchanges' token: the bos_token of the model's own template is that one.
  if (chat.first_token() || chat.exchange_token() || !begins_with_bos) return chat.first_token();
  const TokenizerSettings& settings = options.settings;
  return TokenBySettings("bos", settings.bos_token, BosToken(settings, tokenizer), tokenizer);
}

absl::StatusOr<DocumentMarks> MarksOfConversations(const DocumentMarkOptions& options, const Tokenizer& tokenizer) {
  EPS_ASSIGN_OR_RETURN(const ChatTemplateChoice choice,
                       ChooseChatTemplate(options.chat_template, options.settings, tokenizer));
  DocumentMarks marks = {.chat_reason = choice.reason};
  if (choice.name == "plain") {
    // The end of text already ends each answer.
    EPS_ASSIGN_OR_RETURN(const std::optional<int32_t> last, LastOfText(options, tokenizer));
    EPS_ASSIGN_OR_RETURN(marks.chat, ChatTemplate::Create(choice.name, tokenizer, last));
    EPS_ASSIGN_OR_RETURN(marks.first, FirstOfText(options, tokenizer));
    return marks;
  }
  EPS_ASSIGN_OR_RETURN(marks.chat, ChatTemplate::Create(choice.name, tokenizer, std::nullopt));
  EPS_ASSIGN_OR_RETURN(marks.first, FirstOfChat(options, *marks.chat, choice.begins_with_bos, tokenizer));
  EPS_ASSIGN_OR_RETURN(marks.last, TokenOf("eos", options.eos.value_or(""), tokenizer));
  return marks;
}

}  // namespace

absl::StatusOr<DocumentMarks> ChooseDocumentMarks(const DocumentMarkOptions& options, CorpusContent content,
                                                  const Tokenizer& tokenizer) {
  switch (content) {
    case CorpusContent::kConversations:
    case CorpusContent::kPreferences:
      return MarksOfConversations(options, tokenizer);
    case CorpusContent::kClassified:
      return MarksOfClassified(options, tokenizer);
    default:
      return MarksOfText(options, tokenizer);
  }
}

}  // namespace eps
