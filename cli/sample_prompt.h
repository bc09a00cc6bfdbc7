#ifndef EPS_CLI_SAMPLE_PROMPT_H_
#define EPS_CLI_SAMPLE_PROMPT_H_

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/corpus/chat_template.h"
#include "common/corpus/conversation.h"
#include "common/tokenizer/tokenizer.h"
#include "common/tokenizer/tokenizer_settings.h"

namespace eps::cli {

// How the texts that a model was trained with became tokens.
struct ModelTokenizer {
  std::unique_ptr<Tokenizer> tokenizer;
  TokenizerSettings settings;
  std::string chat_template = "auto";  // TokenizeOptions'
  int64_t vocab = 0;                   // the model's, which may have fewer tokens than the tokenizer
};

// `told`: a tokenizer's folder or file, or "bytes"; "": that of the model's folder, or of the run that made it. The
// template: that of the run's conversations.
// Errors: INVALID_ARGUMENT there is none, or the model has not most of its tokens; LoadTokenizer's, FindModelSource's
absl::StatusOr<ModelTokenizer> OpenModelTokenizer(const std::string& told, const std::string& folder, int64_t vocab);

struct SamplePrompt {
  std::vector<int32_t> ids;
  std::set<int32_t> ends;  // tokens that end what the model says
  std::string text_end;    // and a text, which is no part of it; "": none
};

// Errors of all prompts: INVALID_ARGUMENT a token that the model has not

// A text that is continued. Special tokens in it are these.
absl::StatusOr<SamplePrompt> PromptOfText(const ModelTokenizer& model, absl::string_view text);
// Messages that are answered. `file`: that they are from, "" of none, for what is wrong with them.
// Errors: MakeChatPrompt's and ChooseDocumentMarks'
absl::StatusOr<SamplePrompt> PromptOfChat(const ModelTokenizer& model, absl::Span<const ChatMessage> messages,
                                          Thoughts thoughts = Thoughts::kLeftToModel, const std::string& file = "");
// That the model of so many tokens of `context` does not see the beginning of a chat that long, for people; "": it sees
// all of it.
std::string CutText(int64_t prompt_tokens, int64_t context);
// A text that is told apart, cut to `context` tokens as in training.
// Errors: ChooseDocumentMarks' · INVALID_ARGUMENT no token
absl::StatusOr<std::vector<int32_t>> PromptOfClassifier(const ModelTokenizer& model, absl::string_view text,
                                                        int64_t context);

// A list of messages, or an object that has one as "messages", as data have it.
// Errors: file errors · ParseJsonlRecord's, by the place in the file
absl::StatusOr<std::vector<ChatMessage>> ReadMessages(const std::string& path);

}  // namespace eps::cli

#endif  // EPS_CLI_SAMPLE_PROMPT_H_
