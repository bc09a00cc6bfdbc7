#ifndef EPS_COMMON_CORPUS_CHAT_TEMPLATE_MARKUP_H_
#define EPS_COMMON_CORPUS_CHAT_TEMPLATE_MARKUP_H_

#include <array>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/tokenizer/tokenizer.h"

namespace eps {

struct TurnMarkup {
  absl::string_view before;
  absl::string_view after;
};

enum class SystemPlace {
  kOwnTurn,    // anywhere
  kFirstUser,  // the first message, put into the first turn of the user
  kLastUser,   // the first message, put into the last turn of the user
};

// What a family of models has around and between what is said. Spellings of `tokens` in it are these tokens; all else is
// text.
struct ChatMarkup {
  absl::string_view name;
  std::array<absl::string_view, 4> tokens = {};  // that the tokenizer must have
  absl::string_view first_token = "";            // of a document; a token or ""
  absl::string_view exchange_token = "";         // before each turn of the user; a token or ""
  SystemPlace system_place = SystemPlace::kOwnTurn;
  TurnMarkup system = {};              // its turn, or what is around it in the user's
  absl::string_view system_lead = "";  // of the first message, before what the system says
  bool always_has_system = false;      // where the data has none, `default_system` begins the conversation
  absl::string_view default_system = "";
  TurnMarkup user = {};
  TurnMarkup tools = {};      // around consecutive results of tools
  TurnMarkup tool = {};       // around each of them; both empty: no place for any
  bool tool_is_json = false;  // a result is written as a string of JSON
  absl::string_view answer_before = "";
  absl::string_view answer_lead = "";  // of the answer's text: is counted with it
  absl::string_view answer_tail = "";  // between the answer and the token that ends it; is counted
  absl::string_view end_of_turn = "";  // a token; "" the end of text, and without one a blank line
  absl::string_view answer_after = "";
  absl::string_view between = "";  // turns, where the one before did not end in a blank line
  bool trims = false;              // white space around contents, but of tools
  bool alternates = false;         // user, assistant, user, ...
  bool has_thoughts = false;       // chat_template_thoughts.h
};

// The one of that name, of chat_template_names.h; of mistral, the one that the tokenizer's tokens tell.
// Errors: INVALID_ARGUMENT there is none, with the names that there are
absl::StatusOr<const ChatMarkup*> FindChatMarkup(absl::string_view name, const Tokenizer& tokenizer);

}  // namespace eps

#endif  // EPS_COMMON_CORPUS_CHAT_TEMPLATE_MARKUP_H_
