#include "cli/sample_prompt.h"

#include <iterator>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "common/base/file_util.h"
#include "common/base/status_macros.h"
#include "common/checkpoint/checkpoint_files.h"
#include "common/checkpoint/manifest.h"
#include "common/checkpoint/model_source.h"
#include "common/corpus/chat_prompt.h"
#include "common/corpus/document_marks.h"
#include "common/corpus/json_line.h"
#include "common/corpus/jsonl.h"
#include "common/corpus/line_reader.h"
#include "common/corpus/model_vocabulary.h"
#include "common/corpus/text_marks.h"
#include "common/spec/run_config.h"
#include "common/tokenizer/tokenizer_file.h"

namespace eps::cli {
namespace {

constexpr int64_t kByteVocab = 256;  // of a model of bytes, whose tokenizer needs no file
constexpr char kAutoTemplate[] = "auto";
constexpr int64_t kMaxMessagesBytes = 64 << 20;

absl::StatusOr<ModelTokenizer> Load(const std::string& path) {
  ModelTokenizer model;
  if (path == "bytes") {
    model.tokenizer = MakeByteTokenizer();
    return model;
  }
  EPS_ASSIGN_OR_RETURN(model.tokenizer, LoadTokenizer(path));
  EPS_ASSIGN_OR_RETURN(model.settings, ReadTokenizerSettings(path));
  return model;
}

DocumentMarkOptions MarkOptions(const ModelTokenizer& model) {
  return {.chat_template = model.chat_template, .settings = model.settings};
}

// Tokens that end a text or a turn, in whatever form the model was taught to end them. What its settings do not name is a
// special token, or it would be plain text, as Qwen's "</s>".
std::set<int32_t> KnownEnds(const ModelTokenizer& model) {
  std::vector<std::string> spellings(std::begin(kEndsOfText), std::end(kEndsOfText));
  spellings.insert(spellings.end(), {"<|im_end|>", "<|eot_id|>"});
  std::set<int32_t> ends;
  for (const std::string& spelling : spellings) {
    const std::optional<int32_t> id = model.tokenizer->TokenId(spelling);
    if (id && model.tokenizer->IsSpecial(*id)) ends.insert(*id);
  }
  const std::string told = model.settings.eos_token.value_or("");
  if (const auto id = told.empty() ? std::nullopt : model.tokenizer->TokenId(told)) ends.insert(*id);
  return ends;
}

// By which template the run wrote its conversations.
std::string TemplateOf(const RunConfig& run, const ModelSource& source) {
  if (!source.chat_template.empty()) return source.chat_template;
  // It has not been kept, and the data may be gone, which alone tell conversations from texts.
  for (const DataSource& from : run.all_sources()) {
    if (from.data.is_jsonl && from.data.chat_template != kAutoTemplate) return from.data.chat_template;
  }
  return kAutoTemplate;
}

// Where the tokenizer is, as OpenModelTokenizer says; "": nowhere.
std::string TokenizerPath(const std::string& folder, const ModelSource& source, const Manifest* manifest) {
  if (HasTokenizerFile(folder)) return folder;
  if (manifest != nullptr && manifest->run.is_of_bytes()) return "bytes";
  return source.tokenizer_path;
}

}  // namespace

absl::StatusOr<ModelTokenizer> OpenModelTokenizer(const std::string& told, const std::string& folder, int64_t vocab) {
  EPS_ASSIGN_OR_RETURN(const ModelSource source, FindModelSource(folder));
  const absl::StatusOr<Manifest> manifest = ReadManifest(folder);  // a folder that no run made has none
  std::string path = !told.empty() ? told : TokenizerPath(folder, source, manifest.ok() ? &*manifest : nullptr);
  if (path.empty() && vocab == kByteVocab) path = "bytes";
  if (path.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("the model has a vocabulary of ", vocab,
                                                   ", not of bytes, and no tokenizer beside it: give --tokenizer, or "
                                                   "token ids with --prompt-tokens"));
  }
  EPS_ASSIGN_OR_RETURN(ModelTokenizer model, Load(path));
  if (manifest.ok()) model.chat_template = TemplateOf(manifest->run, source);
  model.vocab = vocab;
  const absl::Status fits = CheckModelHasMost(*model.tokenizer, vocab);
  if (fits.ok()) return model;
  return absl::InvalidArgumentError(absl::StrCat("--tokenizer: ", path, " ", fits.message()));
}

absl::StatusOr<SamplePrompt> PromptOfText(const ModelTokenizer& model, absl::string_view text) {
  SamplePrompt prompt{.ids = model.tokenizer->Encode(text, Tokenizer::Specials::kAsTokens), .ends = KnownEnds(model)};
  EPS_RETURN_IF_ERROR_WITH(CheckModelHas(prompt.ids, model.vocab, *model.tokenizer), "--prompt");
  return prompt;
}

absl::StatusOr<SamplePrompt> PromptOfChat(const ModelTokenizer& model, absl::Span<const ChatMessage> messages,
                                          Thoughts thoughts, const std::string& file) {
  EPS_ASSIGN_OR_RETURN(const DocumentMarks marks,
                       ChooseDocumentMarks(MarkOptions(model), CorpusContent::kConversations, *model.tokenizer));
  absl::StatusOr<ChatPrompt> chat = MakeChatPrompt(marks, messages, thoughts);
  absl::Status status = chat.status();
  if (status.ok()) status = CheckModelHas(chat->ids, model.vocab, *model.tokenizer);
  if (!status.ok()) return file.empty() ? status : Annotate(status, file);
  SamplePrompt prompt{.ids = std::move(chat->ids), .ends = KnownEnds(model)};
  if (chat->end_of_turn) {
    prompt.ends.insert(*chat->end_of_turn);
  } else {
    prompt.text_end = std::string(ChatTemplate::kTextEndOfTurn);
  }
  return prompt;
}

std::string CutText(int64_t prompt_tokens, int64_t context) {
  if (prompt_tokens <= context) return "";
  return absl::StrCat("the chat has ", prompt_tokens, " tokens, the model's context ", context, ": the first ",
                      prompt_tokens - context, " are left out, the system message with them where there is one");
}

absl::StatusOr<std::vector<int32_t>> PromptOfClassifier(const ModelTokenizer& model, absl::string_view text,
                                                        int64_t context) {
  EPS_ASSIGN_OR_RETURN(const DocumentMarks marks,
                       ChooseDocumentMarks(MarkOptions(model), CorpusContent::kClassified, *model.tokenizer));
  const bool is_bert = marks.cls && marks.sep;
  std::vector<int32_t> ids = model.tokenizer->Encode(text, Tokenizer::Specials::kAsText);
  if (const std::optional<int32_t> first = is_bert ? marks.cls : marks.first) ids.insert(ids.begin(), *first);
  if (const std::optional<int32_t> last = is_bert ? marks.sep : marks.last) ids.push_back(*last);
  if (ids.empty()) return absl::InvalidArgumentError("an empty text has no token, and no class");
  if (static_cast<int64_t>(ids.size()) > context) {
    ids[static_cast<size_t>(context - 1)] = ids.back();  // which ends the text
    ids.resize(static_cast<size_t>(context));
  }
  EPS_RETURN_IF_ERROR(CheckModelHas(ids, model.vocab, *model.tokenizer));
  return ids;
}

absl::StatusOr<std::vector<ChatMessage>> ReadMessages(const std::string& path) {
  EPS_ASSIGN_OR_RETURN(std::string text, ReadFile(path, kMaxMessagesBytes));
  constexpr absl::string_view kByteOrderMark = "\xEF\xBB\xBF";
  const absl::string_view json = absl::StripPrefix(text, kByteOrderMark);
  if (absl::StartsWith(absl::StripLeadingAsciiWhitespace(json), "[")) {
    constexpr absl::string_view kBefore = "{\"messages\":";
    const auto json_offset = static_cast<int64_t>(text.size() - json.size());
    text = absl::StrCat(kBefore, json, "}");
    // An error of syntax names a byte of the file; the others name where its line begins, which is the file's.
    const TextLine in_file = {.text = text, .offset_bytes = json_offset - static_cast<int64_t>(kBefore.size())};
    EPS_RETURN_IF_ERROR_WITH(ParseJsonLine(in_file).status(), path);
  }
  const absl::StatusOr<JsonlRecord> record = ParseJsonlRecord({.text = text}, JsonlKind::kMessages);
  EPS_RETURN_IF_ERROR_WITH(record.status(), path);
  return record->messages;
}

}  // namespace eps::cli
