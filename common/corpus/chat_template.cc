#include "common/corpus/chat_template.h"

#include <array>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

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

struct ChatMarkup {
  absl::string_view name;
  std::array<absl::string_view, 4> tokens;  // that the tokenizer must have
  absl::string_view first_token;            // of a document; a token or ""
  absl::string_view exchange_token;         // before each turn of the user; a token or ""
  bool is_text;                             // markup holds no tokens, and is encoded together with what is around it
  SystemPlace system_place;
  TurnMarkup system;  // its turn, or what is around it in the user's
  TurnMarkup user;
  TurnMarkup tools;  // around consecutive results of tools
  TurnMarkup tool;   // around each of them; both empty: no place for any
  absl::string_view answer_before;
  absl::string_view answer_tail;  // between the answer and the token that ends it
  absl::string_view end_of_turn;  // a token; "" the end of text, and without one a blank line
  absl::string_view answer_after;
  absl::string_view between;  // turns, where the one before did not end in a blank line
  bool trims;                 // white space around contents
  bool alternates;            // user, assistant, user, ...
};

namespace {

// Where each comes from:
//   llama3   llama.com/docs/model-cards-and-prompt-formats (Meta Llama 3, Llama 3.1: role ipython for what tools say)
//   chatml   tokenizer_config.json of Qwen/Qwen2.5-*-Instruct and Qwen/Qwen3-*: what tools say is the user's turn, in tags
//   mistral  docs.mistral.ai/cookbook/concept-deep-dive-tokenization-templates and mistral-common: tokenizers V2 and V3
//            have tokens [INST] and [/INST] and the system's words in the last turn of the user, V1 has them as text and
//            the system's words in the first
//   llama2   llama.com/docs/model-cards-and-prompt-formats/meta-llama-2
//   plain    ours
constexpr ChatMarkup kLlama3 = {
    .name = "llama3",
    .tokens = {"<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"},
    .first_token = "<|begin_of_text|>",
    .exchange_token = "",
    .is_text = false,
    .system_place = SystemPlace::kOwnTurn,
    .system = {"<|start_header_id|>system<|end_header_id|>\n\n", "<|eot_id|>"},
    .user = {"<|start_header_id|>user<|end_header_id|>\n\n", "<|eot_id|>"},
    .tools = {"", ""},
    .tool = {"<|start_header_id|>ipython<|end_header_id|>\n\n", "<|eot_id|>"},
    .answer_before = "<|start_header_id|>assistant<|end_header_id|>\n\n",
    .answer_tail = "",
    .end_of_turn = "<|eot_id|>",
    .answer_after = "",
    .between = "",
    .trims = true,
    .alternates = false,
};

constexpr ChatMarkup kChatMl = {
    .name = "chatml",
    .tokens = {"<|im_start|>", "<|im_end|>"},
    .first_token = "",
    .exchange_token = "",
    .is_text = false,
    .system_place = SystemPlace::kOwnTurn,
    .system = {"<|im_start|>system\n", "<|im_end|>\n"},
    .user = {"<|im_start|>user\n", "<|im_end|>\n"},
    .tools = {"<|im_start|>user", "<|im_end|>\n"},
    .tool = {"\n<tool_response>\n", "\n</tool_response>"},
    .answer_before = "<|im_start|>assistant\n",
    .answer_tail = "",
    .end_of_turn = "<|im_end|>",
    .answer_after = "\n",
    .between = "",
    .trims = false,
    .alternates = false,
};

constexpr ChatMarkup kMistral = {
    .name = "mistral",
    .tokens = {"<s>", "</s>", "[INST]", "[/INST]"},
    .first_token = "<s>",
    .exchange_token = "",
    .is_text = false,
    .system_place = SystemPlace::kLastUser,
    .system = {"", "\n\n"},
    .user = {"[INST]", "[/INST]"},
    .tools = {"", ""},
    .tool = {"", ""},
    .answer_before = "",
    .answer_tail = "",
    .end_of_turn = "</s>",
    .answer_after = "",
    .between = "",
    .trims = false,
    .alternates = true,
};

constexpr ChatMarkup kMistralV1 = {
    .name = "mistral",
    .tokens = {"<s>", "</s>"},
    .first_token = "<s>",
    .exchange_token = "",
    .is_text = true,
    .system_place = SystemPlace::kFirstUser,
    .system = {"", "\n\n"},
    .user = {"[INST] ", " [/INST]"},
    .tools = {"", ""},
    .tool = {"", ""},
    .answer_before = "",
    .answer_tail = "",
    .end_of_turn = "</s>",
    .answer_after = "",
    .between = "",
    .trims = false,
    .alternates = true,
};

constexpr ChatMarkup kLlama2 = {
    .name = "llama2",
    .tokens = {"<s>", "</s>"},
    .first_token = "",
    .exchange_token = "<s>",
    .is_text = true,
    .system_place = SystemPlace::kFirstUser,
    .system = {"<<SYS>>\n", "\n<</SYS>>\n\n"},
    .user = {"[INST] ", " [/INST]"},
    .tools = {"", ""},
    .tool = {"", ""},
    .answer_before = "",
    .answer_tail = " ",
    .end_of_turn = "</s>",
    .answer_after = "",
    .between = "",
    .trims = true,
    .alternates = true,
};

constexpr ChatMarkup kPlain = {
    .name = "plain",
    .tokens = {},
    .first_token = "",
    .exchange_token = "",
    .is_text = true,
    .system_place = SystemPlace::kOwnTurn,
    .system = {"### System:\n", ""},
    .user = {"### User:\n", ""},
    .tools = {"", ""},
    .tool = {"### Tool:\n", ""},
    .answer_before = "### Assistant:\n",
    .answer_tail = "",
    .end_of_turn = "",
    .answer_after = "",
    .between = "\n\n",
    .trims = false,
    .alternates = false,
};

constexpr absl::string_view kTextEndOfTurn = "\n\n";

absl::StatusOr<const ChatMarkup*> FindMarkup(absl::string_view name, const Tokenizer& tokenizer) {
  const auto has = [&tokenizer](absl::string_view token) { return tokenizer.TokenId(token).has_value(); };
  if (name == "auto") {
    if (has("<|start_header_id|>")) return &kLlama3;
    if (has("<|im_start|>")) return &kChatMl;
    if (has("[INST]")) return &kMistral;
    return &kPlain;
  }
  if (name == "llama3") return &kLlama3;
  if (name == "chatml") return &kChatMl;
  if (name == "mistral") return has("[INST]") ? &kMistral : &kMistralV1;
  if (name == "llama2") return &kLlama2;
  if (name == "plain") return &kPlain;
  return absl::InvalidArgumentError(absl::StrCat("template: \"", absl::CHexEscape(name),
                                                 "\", must be auto, llama3, chatml, mistral, llama2 or plain"));
}

// Whether the tokenizer puts a space before a text of its own accord, as those of SentencePiece do. U+2581 is theirs
// for a space.
bool PutsSpaceBefore(const Tokenizer& tokenizer) {
  const std::optional<int32_t> with_space = tokenizer.TokenId("\u2581a");
  const std::vector<int32_t> ids = tokenizer.Encode("a", Tokenizer::Specials::kAsText);
  return with_space && ids == std::vector<int32_t>{*with_space};
}

absl::string_view Trimmed(absl::string_view text, bool trims) {
  return trims ? absl::StripAsciiWhitespace(text) : text;
}

}  // namespace

absl::StatusOr<ChatTemplate> ChatTemplate::Create(absl::string_view name, const Tokenizer& tokenizer,
                                                  std::optional<int32_t> end_of_text) {
  EPS_ASSIGN_OR_RETURN(const ChatMarkup* markup, FindMarkup(name, tokenizer));
  for (const absl::string_view token : markup->tokens) {
    if (token.empty() || tokenizer.TokenId(token)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("template ", markup->name, ": the tokenizer has no token \"", token, "\""));
  }
  ChatTemplate chat(*markup, tokenizer);
  const auto id_of = [&tokenizer](absl::string_view token) -> std::optional<int32_t> {
    if (token.empty()) return std::nullopt;
    return tokenizer.TokenId(token);
  };
  chat.first_token_ = id_of(markup->first_token);
  chat.exchange_token_ = id_of(markup->exchange_token);
  chat.end_of_turn_ = markup->end_of_turn.empty() ? end_of_text : id_of(markup->end_of_turn);
  // The space that sets an answer off from [/INST] where that is text.
  chat.answers_need_space_ = markup->is_text && markup->answer_before.empty() && !PutsSpaceBefore(tokenizer);
  return chat;
}

absl::string_view ChatTemplate::name() const { return markup_->name; }

absl::Status ChatTemplate::Check(absl::Span<const ChatMessage> messages) const {
  const auto bad = [&](size_t index, absl::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat("messages[", index, "].role: ", RoleName(messages[index].role),
                                                   ", template ", markup_->name, " ", what));
  };
  if (messages.empty()) return absl::InvalidArgumentError("messages: there are none");
  const bool own_turn = markup_->system_place == SystemPlace::kOwnTurn;
  Role wanted = Role::kUser;
  for (size_t i = 0; i < messages.size(); ++i) {
    const Role role = messages[i].role;
    if (role == Role::kTool && markup_->tool.before.empty()) return bad(i, "has no place for it");
    if (role == Role::kSystem && !own_turn) {
      if (i > 0) return bad(i, "has a place for it in front only");
      if (messages.size() == 1) return bad(i, "has a place for it in a turn of the user only");
      // The newer tokenizers of Mistral have tokens for it, and another place.
      if (markup_ == &kMistral && tokenizer_->TokenId("[SYSTEM_PROMPT]")) {
        return bad(i, "does not support it for tokenizers that have [SYSTEM_PROMPT]");
      }
      continue;
    }
    if (!markup_->alternates) continue;
    if (role != wanted) return bad(i, absl::StrCat("wants ", RoleName(wanted), ": both take turns"));
    wanted = role == Role::kUser ? Role::kAssistant : Role::kUser;
  }
  return absl::OkStatus();
}

// Puts the pieces together. What follows each other without a token between is encoded together where all of it is text:
// a tokenizer joins across the borders of words, and models saw it so.
class ChatTemplate::Builder {
 public:
  explicit Builder(const ChatTemplate& chat) : chat_(chat) {}

  void Markup(absl::string_view text) { Add(text, Tokenizer::Specials::kAsTokens); }
  void Content(absl::string_view text) { Add(text, Tokenizer::Specials::kAsText); }
  void Token(std::optional<int32_t> id) {
    if (!id) return;
    Flush();
    result_.ids.push_back(*id);
  }
  void Answer(absl::string_view text) {
    Flush();
    TokenRange range{.begin = num_tokens()};
    Content(absl::StrCat(chat_.answers_need_space_ ? " " : "", text, chat_.markup_->answer_tail));
    if (chat_.end_of_turn_) {
      Token(chat_.end_of_turn_);
    } else {
      Flush();
      Content(kTextEndOfTurn);
    }
    Flush();
    range.end = num_tokens();
    if (range.end > range.begin) result_.answers.push_back(range);
  }
  EncodedConversation Finish() {
    Flush();
    return std::move(result_);
  }

 private:
  int64_t num_tokens() const { return static_cast<int64_t>(result_.ids.size()); }

  void Add(absl::string_view text, Tokenizer::Specials specials) {
    if (chat_.markup_->is_text) {
      absl::StrAppend(&text_, text);
    } else {
      Encode(text, specials);
    }
  }
  void Flush() {
    Encode(text_, Tokenizer::Specials::kAsText);
    text_.clear();
  }
  void Encode(absl::string_view text, Tokenizer::Specials specials) {
    if (text.empty()) return;
    const std::vector<int32_t> ids = chat_.tokenizer_->Encode(text, specials);
    result_.ids.insert(result_.ids.end(), ids.begin(), ids.end());
  }

  const ChatTemplate& chat_;
  std::string text_;  // not encoded yet
  EncodedConversation result_;
};

absl::StatusOr<EncodedConversation> ChatTemplate::Encode(absl::Span<const ChatMessage> messages) const {
  EPS_RETURN_IF_ERROR(Check(messages));
  const ChatMarkup& markup = *markup_;
  const bool system_in_user = markup.system_place != SystemPlace::kOwnTurn && messages[0].role == Role::kSystem;
  size_t system_user = 0;  // the turn of the user that takes the system's words
  if (system_in_user) {
    system_user = 1;
    for (size_t i = 1; markup.system_place == SystemPlace::kLastUser && i < messages.size(); ++i) {
      if (messages[i].role == Role::kUser) system_user = i;
    }
  }
  Builder builder(*this);
  for (size_t i = system_in_user ? 1 : 0; i < messages.size(); ++i) {
    const ChatMessage& message = messages[i];
    const Role before = i > 0 ? messages[i - 1].role : Role::kSystem;
    const bool ended_in_text = i > 0 && before == Role::kAssistant && !end_of_turn_;
    if (i > 0 && !ended_in_text) builder.Markup(markup.between);
    const absl::string_view content = Trimmed(message.content, markup.trims);
    switch (message.role) {
      case Role::kSystem:
        builder.Markup(markup.system.before);
        builder.Content(content);
        builder.Markup(markup.system.after);
        break;
      case Role::kUser:
        builder.Token(exchange_token_);
        builder.Markup(markup.user.before);
        if (system_in_user && i == system_user) {
          // As one text with the user's, also where markup is tokens: nothing but text lies between.
          builder.Content(absl::StrCat(markup.system.before, Trimmed(messages[0].content, markup.trims),
                                       markup.system.after, content));
        } else {
          builder.Content(content);
        }
        builder.Markup(markup.user.after);
        break;
      case Role::kTool:
        if (before != Role::kTool) builder.Markup(markup.tools.before);
        builder.Markup(markup.tool.before);
        builder.Content(content);
        builder.Markup(markup.tool.after);
        if (i + 1 == messages.size() || messages[i + 1].role != Role::kTool) builder.Markup(markup.tools.after);
        break;
      case Role::kAssistant:
        builder.Markup(markup.answer_before);
        builder.Answer(content);
        builder.Markup(markup.answer_after);
        break;
    }
  }
  return builder.Finish();
}

}  // namespace eps
