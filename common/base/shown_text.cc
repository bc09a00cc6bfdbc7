#include "common/base/shown_text.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/utf8.h"

namespace eps {
namespace {

void AppendHex(absl::string_view bytes, std::string& text) {
  for (const char c : bytes) {
    absl::StrAppend(&text, "\\x", absl::Hex(static_cast<unsigned char>(c), absl::kZeroPad2));
  }
}

// Of ASCII; null: it is shown as it is, or by its number.
const char* NameOf(char32_t c) {
  switch (c) {
    case '\n':
      return "\\n";
    case '\r':
      return "\\r";
    case '\t':
      return "\\t";
    case '"':
      return "\\\"";
    case '\\':
      return "\\\\";
    default:
      return nullptr;
  }
}

// C0, DEL, and C1, which some terminals obey too.
bool IsControl(char32_t c) { return c < 0x20 || (c >= 0x7F && c <= 0x9F); }

}  // namespace

std::string EscapeText(absl::string_view text) {
  std::string shown;
  for (size_t at = 0; at < text.size();) {
    const Utf8Step step = FirstOf(text.substr(at));
    const absl::string_view bytes = text.substr(at, step.num_bytes);
    if (const char* name = step.is_well_formed ? NameOf(step.code_point) : nullptr; name != nullptr) {
      shown += name;
    } else if (!step.is_well_formed || IsControl(step.code_point)) {
      AppendHex(bytes, shown);
    } else {
      absl::StrAppend(&shown, bytes);
    }
    at += step.num_bytes;
  }
  return shown;
}

absl::string_view CutText(absl::string_view text, size_t max_bytes) {
  if (text.size() <= max_bytes) return text;
  size_t end = max_bytes;
  // A character has at most 4 bytes, of which all but the first are such.
  for (int i = 0; i < 3 && end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80; ++i) --end;
  return text.substr(0, end);
}

std::string QuoteText(absl::string_view text, size_t max_bytes) {
  const absl::string_view cut = CutText(text, max_bytes);
  return absl::StrCat("\"", EscapeText(cut), cut.size() < text.size() ? "..." : "", "\"");
}

std::string SomeOf(absl::Span<const std::string> names) {
  constexpr size_t kMost = 8;
  const std::string some = absl::StrJoin(names.subspan(0, kMost), ", ");
  return names.size() <= kMost ? some : absl::StrCat(some, " and ", names.size() - kMost, " more");
}

}  // namespace eps
