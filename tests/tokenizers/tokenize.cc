// Encodes or decodes documents, for comparison with other implementations.
//
//   tokenize TOKENIZER encode|encode-as-text DOCUMENTS IDS    from texts to ids
//   tokenize TOKENIZER decode IDS DOCUMENTS                   and back; special tokens are spelled out
//   tokenize FOLDER chat CONVERSATIONS IDS                    from JSON, by the template that the folder carries
//
// Both files are a sequence of records: a count of 32 bits, then so many bytes, or ids of 32 bits; little-endian.

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/base/file_util.h"
#include "common/base/status_macros.h"
#include "common/corpus/chat_template.h"
#include "common/corpus/corpus_sources.h"
#include "common/corpus/document_marks.h"
#include "common/corpus/jsonl.h"
#include "common/tokenizer/tokenizer.h"
#include "common/tokenizer/tokenizer_settings.h"

namespace eps {
namespace {

void Append(const void* data, size_t num_bytes, std::string& out) {
  out.append(static_cast<const char*>(data), num_bytes);
}

// The next record's bytes, of `width` bytes each.
absl::StatusOr<absl::string_view> Next(absl::string_view& rest, size_t width) {
  uint32_t count = 0;
  if (rest.size() < sizeof(count)) return absl::InvalidArgumentError("a record is cut short");
  std::memcpy(&count, rest.data(), sizeof(count));
  rest.remove_prefix(sizeof(count));
  if (rest.size() / width < count) return absl::InvalidArgumentError("a record is cut short");
  const absl::string_view bytes = rest.substr(0, count * width);
  rest.remove_prefix(bytes.size());
  return bytes;
}

absl::StatusOr<std::string> Encode(const Tokenizer& tokenizer, absl::string_view rest, Tokenizer::Specials specials) {
  std::string out;
  while (!rest.empty()) {
    EPS_ASSIGN_OR_RETURN(const absl::string_view text, Next(rest, 1));
    const std::vector<int32_t> ids = tokenizer.Encode(text, specials);
    const auto count = static_cast<uint32_t>(ids.size());
    Append(&count, sizeof(count), out);
    Append(ids.data(), ids.size() * sizeof(int32_t), out);
  }
  return out;
}

// A conversation as `eps tokenize` encodes it with --template auto.
absl::StatusOr<std::string> EncodeChats(const Tokenizer& tokenizer, const std::string& folder, absl::string_view rest) {
  EPS_ASSIGN_OR_RETURN(const TokenizerSettings settings, ReadTokenizerSettings(folder));
  EPS_ASSIGN_OR_RETURN(const DocumentMarks marks,
                       ChooseDocumentMarks({.settings = settings}, CorpusContent::kConversations, tokenizer));
  std::printf("%s\n", std::string(marks.chat->name()).c_str());
  std::string out;
  while (!rest.empty()) {
    EPS_ASSIGN_OR_RETURN(const absl::string_view text, Next(rest, 1));
    EPS_ASSIGN_OR_RETURN(const JsonlRecord record, ParseJsonlRecord({.text = text}, JsonlKind::kMessages));
    EPS_ASSIGN_OR_RETURN(const EncodedConversation encoded, marks.chat->Encode(record.messages));
    std::vector<int32_t> ids;
    if (marks.first) ids.push_back(*marks.first);
    ids.insert(ids.end(), encoded.ids.begin(), encoded.ids.end());
    if (marks.last) ids.push_back(*marks.last);
    const auto count = static_cast<uint32_t>(ids.size());
    Append(&count, sizeof(count), out);
    Append(ids.data(), ids.size() * sizeof(int32_t), out);
  }
  return out;
}

absl::StatusOr<std::string> Decode(const Tokenizer& tokenizer, absl::string_view rest) {
  std::string out;
  while (!rest.empty()) {
    EPS_ASSIGN_OR_RETURN(const absl::string_view bytes, Next(rest, sizeof(int32_t)));
    std::vector<int32_t> ids(bytes.size() / sizeof(int32_t));
    std::memcpy(ids.data(), bytes.data(), bytes.size());
    const std::string text = tokenizer.Decode(ids, /*skip_specials=*/false);
    const auto count = static_cast<uint32_t>(text.size());
    Append(&count, sizeof(count), out);
    out += text;
  }
  return out;
}

absl::Status Run(const std::string& path, const std::string& mode, const std::string& in, const std::string& out) {
  EPS_ASSIGN_OR_RETURN(const std::unique_ptr<Tokenizer> tokenizer, LoadTokenizer(path));
  EPS_ASSIGN_OR_RETURN(const std::string bytes, ReadFile(in));
  absl::StatusOr<std::string> made = absl::InvalidArgumentError(absl::StrCat("no mode is called ", mode));
  if (mode == "encode") made = Encode(*tokenizer, bytes, Tokenizer::Specials::kAsTokens);
  if (mode == "encode-as-text") made = Encode(*tokenizer, bytes, Tokenizer::Specials::kAsText);
  if (mode == "chat") made = EncodeChats(*tokenizer, path, bytes);
  if (mode == "decode") made = Decode(*tokenizer, bytes);
  if (!made.ok()) return made.status();
  return WriteFileAtomically(out, *made);
}

}  // namespace
}  // namespace eps

int main(int argc, char** argv) {
  if (argc != 5) {
    std::fprintf(stderr, "usage: tokenize TOKENIZER encode|encode-as-text|decode|chat IN OUT\n");
    return 2;
  }
  const absl::Status status = eps::Run(argv[1], argv[2], argv[3], argv[4]);
  if (status.ok()) return 0;
  std::fprintf(stderr, "tokenize: %s\n", std::string(status.message()).c_str());
  return 1;
}
