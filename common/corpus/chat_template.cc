#include "common/corpus/chat_template.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/shown_text.h"
#include "common/base/status_macros.h"
#include "common/corpus/chat_template_thoughts.h"
#include "common/tokenizer/unicode_text.h"
#include "nlohmann/json.hpp"

namespace eps {
namespace {

absl::string_view Trimmed(absl::string_view text, bool trims) { return trims ? WithoutSpaceAround(text) : text; }

std::string AsJson(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', /*ensure_ascii=*/false, nlohmann::json::error_handler_t::replace);
}

// How many of `ids`, which stand for `text`, have their first character before each of `borders`: bytes of it, ascending.
// Both are measured in what decodes, as a normalizer may have made more or fewer bytes of the text; and each part with the
// one before it, as tokenizers treat the beginning of a text in their own ways.
//
// Cost: each part is encoded three times, and each token decoded twice
std::vector<size_t> TokensBefore(absl::Span<const size_t> borders, absl::string_view text,
                                 absl::Span<const int32_t> ids, const Tokenizer& tokenizer,
                                 Tokenizer::Specials specials) {
  const auto decoded_bytes = [&](absl::Span<const int32_t> some) {
    return tokenizer.Decode(some, /*skip_specials=*/false).size();
  };
  const auto bytes_of_text = [&](absl::string_view part) { return decoded_bytes(tokenizer.Encode(part, specials)); };
  const auto bytes_of_token = [&](size_t index) {
    if (index == 0) return decoded_bytes(ids.subspan(0, 1));
    return decoded_bytes(ids.subspan(index - 1, 2)) - decoded_bytes(ids.subspan(index - 1, 1));
  };
  std::vector<size_t> counts;
  size_t before = 0, begin = 0;  // the part before is [before, begin)
  size_t wanted_bytes = 0, bytes = 0, count = 0;
  for (const size_t border : borders) {
    if (border == text.size()) {
      counts.push_back(ids.size());
      continue;
    }
    if (border > begin) {
      wanted_bytes += bytes_of_text(text.substr(before, border - before));
      if (begin > 0) wanted_bytes -= bytes_of_text(text.substr(before, begin - before));
      while (count < ids.size() && bytes < wanted_bytes) bytes += bytes_of_token(count++);
      before = begin;
      begin = border;
    }
    counts.push_back(count);
  }
  return counts;
}

}  // namespace

absl::StatusOr<ChatTemplate> ChatTemplate::Create(absl::string_view name, const Tokenizer& tokenizer,
                                                  std::optional<int32_t> end_of_text) {
  EPS_ASSIGN_OR_RETURN(const ChatMarkup* markup, FindChatMarkup(name, tokenizer));
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
  for (const absl::string_view token : markup->tokens) {
    const std::optional<int32_t> id = id_of(token);
    if (id && !tokenizer.IsSpecial(*id)) chat.found_in_text_.push_back(*id);
  }
  return chat;
}

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
      if (markup_->system_place == SystemPlace::kLastUser && tokenizer_->TokenId("[SYSTEM_PROMPT]")) {
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

absl::Status ChatTemplate::CheckSaid(absl::Span<const int32_t> ids) const {
  for (const int32_t id : found_in_text_) {
    if (std::find(ids.begin(), ids.end(), id) == ids.end()) continue;
    const std::string spelling = QuoteText(tokenizer_->Decode({id}, /*skip_specials=*/false));
    return absl::InvalidArgumentError(absl::StrCat(
        "messages: ", spelling, " in what is said would be that token of template ", markup_->name,
        ", as it is not a special one: set its \"special\" to true in tokenizer.json, or take it out of the messages"));
  }
  return absl::OkStatus();
}

// Puts the pieces together. All text between two special tokens of the markup is encoded as one: a tokenizer joins across
// the borders of markup and content, and models saw it so.
class ChatTemplate::Builder {
 public:
  Builder(const ChatTemplate& chat, Tokenizer::Specials specials) : chat_(chat), specials_(specials) {}

  void Text(absl::string_view text) { absl::StrAppend(&text_, text); }
  void Token(std::optional<int32_t> id) {
    if (!id) return;
    Flush();
    result_.ids.push_back(*id);
  }
  void Markup(absl::string_view text) {
    while (!text.empty()) {
      const absl::string_view token = TokenAtStartOf(text);
      if (token.empty()) {
        text_ += text[0];
        text.remove_prefix(1);
      } else {
        Token(chat_.tokenizer_->TokenId(token));
        text.remove_prefix(token.size());
      }
    }
  }
  // What is put in between the two is counted.
  void BeginCounted() { borders_.push_back(text_.size()); }
  void EndCounted() { borders_.push_back(text_.size()); }

  absl::StatusOr<EncodedConversation> Finish() {
    Flush();
    EPS_RETURN_IF_ERROR(status_);
    for (size_t i = 0; i + 1 < places_.size(); i += 2) {
      if (places_[i] < places_[i + 1]) result_.answers.push_back({.begin = places_[i], .end = places_[i + 1]});
    }
    return std::move(result_);
  }

 private:
  absl::string_view TokenAtStartOf(absl::string_view text) const {
    for (const absl::string_view token : chat_.markup_->tokens) {
      if (absl::StartsWith(text, token)) return token;
    }
    return "";
  }

  void Flush() {
    std::vector<int32_t> ids;
    if (!text_.empty()) ids = chat_.tokenizer_->Encode(text_, specials_);
    if (specials_ == Tokenizer::Specials::kAsText) status_.Update(chat_.CheckSaid(ids));
    for (const size_t count : TokensBefore(borders_, text_, ids, *chat_.tokenizer_, specials_)) {
      places_.push_back(static_cast<int64_t>(result_.ids.size() + count));
    }
    result_.ids.insert(result_.ids.end(), ids.begin(), ids.end());
    text_.clear();
    borders_.clear();
  }

  const ChatTemplate& chat_;
  const Tokenizer::Specials specials_;
  std::string text_;             // not encoded yet
  std::vector<size_t> borders_;  // of what is counted, in text_
  std::vector<int64_t> places_;  // the same, by tokens, of what is encoded
  EncodedConversation result_;
  absl::Status status_;
};

// The turns of one conversation, which ChatTemplate::Check has accepted, in order.
class ChatTemplate::Turns {
 public:
  Turns(const ChatTemplate& chat, absl::Span<const ChatMessage> messages, Tokenizer::Specials specials)
      : chat_(chat), markup_(*chat.markup_), messages_(messages), builder_(chat, specials) {
    if (markup_.system_place != SystemPlace::kOwnTurn && messages_[0].role == Role::kSystem) {
      system_user_ = markup_.system_place == SystemPlace::kLastUser ? LastUser() : 1;
    }
    if (markup_.has_thoughts) last_query_ = LastQuery(messages_);
  }

  absl::StatusOr<EncodedConversation> Encode() {
    All();
    return builder_.Finish();
  }

  absl::StatusOr<std::vector<int32_t>> EncodePrompt(Thoughts thoughts) {
    All();
    if (!EndedInText(messages_.size() - 1)) builder_.Markup(markup_.between);
    builder_.Markup(markup_.answer_before);
    if (markup_.has_thoughts && thoughts == Thoughts::kNone) builder_.Text(kEmptyThought);
    EPS_ASSIGN_OR_RETURN(EncodedConversation prompt, builder_.Finish());
    return std::move(prompt.ids);
  }

 private:
  void All() {
    if (markup_.always_has_system && messages_[0].role != Role::kSystem) System(markup_.default_system, true);
    for (size_t i = system_user_ > 0 ? 1 : 0; i < messages_.size(); ++i) {
      if (i > 0 && !EndedInText(i - 1)) builder_.Markup(markup_.between);
      Turn(i);
    }
  }

  // By its index; 0 where there is none behind the system's.
  size_t LastUser() const {
    size_t last = 0;
    for (size_t i = 1; i < messages_.size(); ++i) {
      if (messages_[i].role == Role::kUser) last = i;
    }
    return last;
  }
  bool EndedInText(size_t index) const { return messages_[index].role == Role::kAssistant && !chat_.end_of_turn_; }

  void Turn(size_t index) {
    switch (messages_[index].role) {
      case Role::kSystem:
        return System(messages_[index].content, index == 0);
      case Role::kUser:
        return User(index);
      case Role::kTool:
        return Tool(index);
      case Role::kAssistant:
        return Assistant(index);
    }
  }

  void System(absl::string_view content, bool is_first) {
    builder_.Markup(markup_.system.before);
    if (is_first) builder_.Markup(markup_.system_lead);
    builder_.Text(Trimmed(content, markup_.trims));
    builder_.Markup(markup_.system.after);
  }

  void User(size_t index) {
    std::string content = messages_[index].content;
    if (system_user_ > 0 && index == system_user_) {
      content = absl::StrCat(markup_.system.before, messages_[0].content, markup_.system.after, content);
    }
    builder_.Token(chat_.exchange_token_);
    builder_.Markup(markup_.user.before);
    builder_.Text(Trimmed(content, markup_.trims));
    builder_.Markup(markup_.user.after);
  }

  void Tool(size_t index) {
    const auto is_tool = [this](size_t i) { return i < messages_.size() && messages_[i].role == Role::kTool; };
    if (index == 0 || !is_tool(index - 1)) builder_.Markup(markup_.tools.before);
    builder_.Markup(markup_.tool.before);
    const std::string& content = messages_[index].content;
    builder_.Text(markup_.tool_is_json ? AsJson(content) : std::string(Trimmed(content, markup_.trims)));
    builder_.Markup(markup_.tool.after);
    if (!is_tool(index + 1)) builder_.Markup(markup_.tools.after);
  }

  void Assistant(size_t index) {
    ThoughtfulAnswer answer = {.lead = "", .text = messages_[index].content};
    if (markup_.has_thoughts) answer = AnswerWithThoughts(messages_, index, last_query_);
    builder_.Markup(markup_.answer_before);
    builder_.Text(answer.lead);
    const bool is_counted = messages_[index].is_counted;
    if (is_counted) builder_.BeginCounted();
    builder_.Text(absl::StrCat(markup_.answer_lead, Trimmed(answer.text, markup_.trims), markup_.answer_tail));
    builder_.Text(chat_.end_of_turn_ ? "" : ChatTemplate::kTextEndOfTurn);
    builder_.Token(chat_.end_of_turn_);
    if (is_counted) builder_.EndCounted();
    builder_.Markup(markup_.answer_after);
  }

  const ChatTemplate& chat_;
  const ChatMarkup& markup_;
  const absl::Span<const ChatMessage> messages_;
  Builder builder_;
  size_t system_user_ = 0;  // the turn of the user that takes the system's words; 0: none
  size_t last_query_ = 0;   // of has_thoughts
};

absl::StatusOr<EncodedConversation> ChatTemplate::Encode(absl::Span<const ChatMessage> messages,
                                                         Tokenizer::Specials specials) const {
  EPS_RETURN_IF_ERROR(Check(messages));
  return Turns(*this, messages, specials).Encode();
}

absl::StatusOr<std::vector<int32_t>> ChatTemplate::EncodePrompt(absl::Span<const ChatMessage> messages,
                                                                Thoughts thoughts) const {
  EPS_RETURN_IF_ERROR(Check(messages));
  return Turns(*this, messages, Tokenizer::Specials::kAsText).EncodePrompt(thoughts);
}

}  // namespace eps
