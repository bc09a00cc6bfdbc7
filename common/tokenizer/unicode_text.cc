#include "common/tokenizer/unicode_text.h"

#include <unicode/bytestream.h>
#include <unicode/normalizer2.h>
#include <unicode/stringpiece.h>
#include <unicode/uchar.h>

#include "common/base/status_macros.h"
#include "common/base/utf8.h"

namespace eps {
namespace {

const icu::Normalizer2& InstanceOf(NormalForm form) {
  UErrorCode error = U_ZERO_ERROR;
  const icu::Normalizer2* instance = nullptr;
  switch (form) {
    case NormalForm::kNfc:
      instance = icu::Normalizer2::getNFCInstance(error);
      break;
    case NormalForm::kNfd:
      instance = icu::Normalizer2::getNFDInstance(error);
      break;
    case NormalForm::kNfkc:
      instance = icu::Normalizer2::getNFKCInstance(error);
      break;
    case NormalForm::kNfkd:
      instance = icu::Normalizer2::getNFKDInstance(error);
      break;
  }
  EPS_CHECK(U_SUCCESS(error) && instance != nullptr);  // its tables are part of the library
  return *instance;
}

bool IsAscii(absl::string_view text) {
  char all = 0;
  for (const char c : text) all |= c;
  return (all & 0x80) == 0;
}

// `keep(code_point, out)` for each one.
template <typename Each>
void Rewrite(std::string& text, Each each) {
  std::string out;
  out.reserve(text.size());
  for (size_t at = 0; at < text.size();) each(NextCodePoint(text, at), out);
  text = std::move(out);
}

// categories: U_GC_*_MASK, none of which has an ASCII character.
void RemoveCategories(uint32_t categories, std::string& text) {
  if (IsAscii(text)) return;
  Rewrite(text, [categories](char32_t c, std::string& out) {
    if ((U_GET_GC_MASK(static_cast<UChar32>(c)) & categories) == 0) AppendUtf8(c, out);
  });
}

bool IsStripped(char32_t code_point) {
  const bool is_separator = code_point >= 0x1C && code_point <= 0x1F;
  return is_separator || IsWhiteSpace(code_point);
}

// Where the last code point of `text` begins, which is not empty.
size_t StartOfLast(absl::string_view text) {
  size_t start = text.size() - 1;
  while (start > 0 && (static_cast<unsigned char>(text[start]) & 0xC0) == 0x80) --start;
  return start;
}

}  // namespace

void ToNormalForm(NormalForm form, std::string& text) {
  if (IsAscii(text)) return;
  const icu::Normalizer2& instance = InstanceOf(form);
  UErrorCode error = U_ZERO_ERROR;
  const icu::StringPiece piece(text.data(), static_cast<int32_t>(text.size()));
  if (instance.isNormalizedUTF8(piece, error)) return;
  std::string out;
  icu::StringByteSink<std::string> sink(&out, static_cast<int32_t>(text.size()));
  instance.normalizeUTF8(0, piece, sink, nullptr, error);
  EPS_CHECK(U_SUCCESS(error));  // well-formed text has every form
  text = std::move(out);
}

void ToLower(std::string& text) {
  constexpr char32_t kDottedCapitalI = 0x130;  // the only one whose lower case is two: i and a dot above
  Rewrite(text, [](char32_t c, std::string& out) {
    if (c == kDottedCapitalI) {
      out += "i\xCC\x87";
    } else {
      AppendUtf8(static_cast<char32_t>(u_tolower(static_cast<UChar32>(c))), out);
    }
  });
}

void RemoveNonspacingMarks(std::string& text) { RemoveCategories(U_GC_MN_MASK, text); }
void RemoveMarks(std::string& text) { RemoveCategories(U_GC_M_MASK, text); }

bool IsWhiteSpace(char32_t code_point) { return u_isUWhiteSpace(static_cast<UChar32>(code_point)); }

absl::string_view WithoutSpaceAround(absl::string_view text) {
  while (!text.empty()) {
    const Utf8Step first = FirstOf(text);
    if (!IsStripped(first.code_point)) break;
    text.remove_prefix(first.num_bytes);
  }
  while (!text.empty()) {
    const absl::string_view last = text.substr(StartOfLast(text));
    if (!IsStripped(FirstOf(last).code_point)) break;
    text.remove_suffix(last.size());
  }
  return text;
}

bool IsBertControl(char32_t code_point) {
  if (code_point == '\t' || code_point == '\n' || code_point == '\r') return false;
  return (U_GET_GC_MASK(static_cast<UChar32>(code_point)) & (U_GC_C_MASK & ~U_GC_CN_MASK)) != 0;
}

bool IsBertIdeograph(char32_t c) {
  return (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0x3400 && c <= 0x4DBF) || (c >= 0x20000 && c <= 0x2A6DF) ||
         (c >= 0x2A700 && c <= 0x2B73F) || (c >= 0x2B740 && c <= 0x2B81F) || (c >= 0x2B920 && c <= 0x2CEAF) ||
         (c >= 0xF900 && c <= 0xFAFF) || (c >= 0x2F800 && c <= 0x2FA1F);
}

bool IsWord(char32_t code_point) {
  const auto c = static_cast<UChar32>(code_point);
  return (U_GET_GC_MASK(c) & (U_GC_M_MASK | U_GC_ND_MASK | U_GC_PC_MASK)) != 0 || u_isUAlphabetic(c) ||
         u_hasBinaryProperty(c, UCHAR_JOIN_CONTROL);
}

}  // namespace eps
