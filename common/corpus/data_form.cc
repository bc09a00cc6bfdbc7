#include "common/corpus/data_form.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/file_util.h"
#include "common/base/git_lfs.h"
#include "common/base/status_macros.h"

namespace eps {
namespace {

constexpr size_t kBeginningBytes = 1 << 16;

// A format that begins with bytes of its own.
struct Signature {
  absl::string_view bytes;
  absl::string_view name;
  absl::string_view what_to_do;
};

constexpr absl::string_view kUnpack = "unpack it first";
constexpr absl::string_view kToText = "write its texts as JSONL, {\"text\": ...} a line";

// With their lengths, as some have zero bytes.
template <size_t kBytes>
constexpr absl::string_view Bytes(const char (&literal)[kBytes]) {
  return absl::string_view(literal, kBytes - 1);
}

constexpr Signature kSignatures[] = {
    {Bytes("\x1f\x8b\x08"), "compressed by gzip", kUnpack},
    {Bytes("\x28\xb5\x2f\xfd"), "compressed by zstd", kUnpack},
    {Bytes("\xfd"
           "7zXZ\0"),
     "compressed by xz", kUnpack},
    {Bytes("BZh91AY&SY"), "compressed by bzip2", kUnpack},
    {Bytes("\x04\x22\x4d\x18"), "compressed by lz4", kUnpack},
    {Bytes("PK\x03\x04"), "a ZIP archive", kUnpack},
    {Bytes("7z\xbc\xaf\x27\x1c"), "a 7z archive", kUnpack},
    {Bytes("PAR1"), "Parquet", kToText},
    {Bytes("ARROW1"), "Arrow", kToText},
    {Bytes("\xff\xff\xff\xff"), "a stream of Arrow", kToText},
    {Bytes("%PDF-"), "a PDF", kToText},
    {kGitLfsPointer, "a pointer of Git LFS, and not the file itself", "run `git lfs pull`"},
};

// Null: it begins like none of them.
const Signature* FindSignature(absl::string_view beginning) {
  for (const Signature& signature : kSignatures) {
    if (absl::StartsWith(beginning, signature.bytes)) return &signature;
  }
  return nullptr;
}

absl::Status LooksLike(absl::string_view what, absl::string_view what_to_do) {
  return absl::InvalidArgumentError(absl::StrCat("is ", what, " by its first bytes: ", what_to_do));
}

// An object or an array, and not text that has a bracket in front.
bool BeginsLikeJson(absl::string_view text) {
  text = absl::StripLeadingAsciiWhitespace(text);
  if (text.empty()) return false;
  const char first = text[0];
  text = absl::StripLeadingAsciiWhitespace(text.substr(1));
  if (text.empty()) return false;
  return first == '{' ? text[0] == '"' : first == '[' && absl::StrContains("{[\"", text.substr(0, 1));
}

// A file of JSON that has more than an object a line.
absl::Status CheckJsonl(absl::string_view beginning) {
  const absl::string_view text = absl::StripLeadingAsciiWhitespace(beginning);
  constexpr absl::string_view kFirstOf =
      "JSONL has an object a line; of a file F that is one array, `jq -c '.[]' F` makes it";
  if (absl::StartsWith(text, "[")) return LooksLike("a JSON array", kFirstOf);
  const absl::string_view line = absl::StripAsciiWhitespace(text.substr(0, text.find('\n')));
  if (line == "{") return LooksLike("JSON over several lines", "JSONL has an object a line; `jq -c . F` makes it");
  return absl::OkStatus();
}

// Ids of two bytes have one above 127, or one of a control character, in every few.
absl::Status CheckTokenIds(absl::string_view beginning) {
  constexpr size_t kEnoughBytes = 64;
  constexpr size_t kShownBytes = 20;
  const auto is_of_text = [](char c) {
    return absl::ascii_isprint(static_cast<unsigned char>(c)) || c == '\n' || c == '\r' || c == '\t';
  };
  if (beginning.size() < kEnoughBytes || !std::all_of(beginning.begin(), beginning.end(), is_of_text)) {
    return absl::OkStatus();
  }
  return LooksLike(absl::StrCat("text (\"", absl::CEscape(beginning.substr(0, kShownBytes)), "...\")"),
                   "token ids are binary, as `eps tokenize` makes them; text wants format: TEXT in place of "
                   "tokenizer: TOKEN_IDS and token_bytes");
}

}  // namespace

DataForm DataFormOfName(absl::string_view path) {
  for (const absl::string_view end : {".jsonl", ".ndjson", ".json"}) {
    if (absl::EndsWithIgnoreCase(path, end)) return DataForm::kJsonl;
  }
  if (absl::EndsWithIgnoreCase(path, ".tsv")) return DataForm::kTable;
  return absl::EndsWithIgnoreCase(path, ".bin") ? DataForm::kTokenIds : DataForm::kText;
}

absl::StatusOr<std::string> ReadBeginning(const std::string& path) {
  // O_NONBLOCK: a pipe without a writer would block the open.
  EPS_ASSIGN_OR_RETURN(const FileDescriptor file, OpenFile(path, O_RDONLY | O_NONBLOCK));
  struct stat info;
  if (fstat(file.get(), &info) != 0) return FileError(errno, "stat", path);
  if (!S_ISREG(info.st_mode)) return absl::InvalidArgumentError(absl::StrCat("\"", path, "\" is not a regular file"));
  std::string bytes(kBeginningBytes, '\0');
  size_t got = 0;
  while (got < bytes.size()) {
    const ssize_t n = pread(file.get(), bytes.data() + got, bytes.size() - got, static_cast<off_t>(got));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return FileError(errno, "read", path);
    if (n == 0) break;
    got += static_cast<size_t>(n);
  }
  bytes.resize(got);
  return bytes;
}

absl::Status CheckBeginning(DataForm form, absl::string_view beginning) {
  beginning = absl::StripPrefix(beginning, "\xEF\xBB\xBF");  // a byte order mark, which is no part of a text
  if (form == DataForm::kTokenIds) return CheckTokenIds(beginning);
  if (const Signature* signature = FindSignature(beginning); signature != nullptr) {
    return LooksLike(signature->name, signature->what_to_do);
  }
  if (form == DataForm::kJsonl) return CheckJsonl(beginning);
  if (form == DataForm::kText && BeginsLikeJson(beginning)) {
    return LooksLike("JSON", "a file of an object a line is called .jsonl");
  }
  return absl::OkStatus();
}

bool HasKnownSignature(absl::string_view beginning) { return FindSignature(beginning) != nullptr; }

absl::Status CheckCharacters(absl::string_view beginning) {
  constexpr absl::string_view kToUtf8 = "`iconv -f UTF-16 -t UTF-8` makes text of it";
  for (const absl::string_view mark : {Bytes("\xff\xfe"), Bytes("\xfe\xff")}) {
    if (absl::StartsWith(beginning, mark)) return LooksLike("UTF-16", kToUtf8);
  }
  const size_t zero = beginning.find('\0');
  if (zero == absl::string_view::npos) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("is no text: the byte at offset ", zero,
                                                 " is zero; text is UTF-8, and a file of token ids is called .bin"));
}

}  // namespace eps
