#ifndef EPS_COMMON_CORPUS_CHAT_TEMPLATE_H_
#define EPS_COMMON_CORPUS_CHAT_TEMPLATE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/corpus/chat_template_markup.h"
#include "common/corpus/conversation.h"
#include "common/formats/document_index_writer.h"
#include "common/tokenizer/tokenizer.h"

namespace eps {

struct EncodedConversation {
  std::vector<int32_t> ids;
  std::vector<TokenRange> answers;  // of each turn of the assistant that is counted, its content and what ends it
};

// Of an answer that is yet to come, where a template has any: the model says them or not, or empty ones are said for it.
enum class Thoughts { kLeftToModel, kNone };

// How the turns of a conversation become one sequence of tokens, as the models of a family were taught to expect it.
//
//   llama3   Llama 3                    chatml   fine-tunes in this form
//   llama31  Llama 3.1, 3.2, 3.3        qwen25   Qwen2.5          qwen3  Qwen3
//   mistral  Mistral, Mixtral           llama2   Llama 2 Chat
//   plain    headings of plain text, for models that know no turns: "### User:", "### Assistant:"
//
// Tokens are those of the text that the model's own template renders: what lies between two special tokens is encoded as
// one text, markup and content together. A token is of the answer if its first character is.
//
// Markup that is special tokens becomes these; what a message says never does, so that it cannot end its turn, unless
// kAsTokens is asked for. Of llama2, plain, and a mistral without tokens of its own for [INST], markup is text and no more
// than text.
//
// What a model's template adds by itself is added, and not counted: the date (llama31), a system message where there is
// none (qwen25), empty thoughts (qwen3).
//
// Threads: safe; fixed after construction. The tokenizer must outlive it.
class ChatTemplate {
 public:
  // `name`: one of the above; who does not know it asks chat_template_choice.h. `end_of_text` ends an answer where the
  // family has no token for it (plain).
  // Errors: INVALID_ARGUMENT naming the template that is not known, or a special token that the tokenizer lacks
  static absl::StatusOr<ChatTemplate> Create(absl::string_view name, const Tokenizer& tokenizer,
                                             std::optional<int32_t> end_of_text);

  absl::string_view name() const { return markup_->name; }
  // The token that begins a document; its caller puts it there. nullopt: none.
  std::optional<int32_t> first_token() const { return first_token_; }
  // The token before each turn of the user, which Encode puts there; a document that begins with one needs no other.
  std::optional<int32_t> exchange_token() const { return exchange_token_; }
  // Behind each answer; nullopt: kTextEndOfTurn ends it.
  std::optional<int32_t> end_of_turn() const { return end_of_turn_; }
  static constexpr absl::string_view kTextEndOfTurn = "\n\n";

  // `specials`: of what the messages say.
  // Errors: INVALID_ARGUMENT naming the message and what the template has no place for · kAsText, and a token of the
  //         markup that the tokenizer does not have as a special one would come out of what is said
  absl::StatusOr<EncodedConversation> Encode(absl::Span<const ChatMessage> messages,
                                             Tokenizer::Specials specials = Tokenizer::Specials::kAsText) const;
  // What stands before the answer to `messages`, encoded alone. `thoughts`: of qwen3; others have none.
  // Errors: Encode's
  absl::StatusOr<std::vector<int32_t>> EncodePrompt(absl::Span<const ChatMessage> messages, Thoughts thoughts) const;

 private:
  class Builder;
  class Turns;

  ChatTemplate(const ChatMarkup& markup, const Tokenizer& tokenizer) : markup_(&markup), tokenizer_(&tokenizer) {}

  absl::Status Check(absl::Span<const ChatMessage> messages) const;
  // Of text alone: markup that is tokens must not come out of it.
  absl::Status CheckSaid(absl::Span<const int32_t> ids) const;

  const ChatMarkup* markup_;
  const Tokenizer* tokenizer_;
  std::optional<int32_t> first_token_;
  std::optional<int32_t> exchange_token_;
  std::optional<int32_t> end_of_turn_;
  std::vector<int32_t> found_in_text_;  // of the markup's tokens, those that are not special
};

}  // namespace eps

#endif  // EPS_COMMON_CORPUS_CHAT_TEMPLATE_H_
