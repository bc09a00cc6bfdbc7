#include "common/formats/document_index_bytes.h"

#include <bit>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "common/base/byte_size.h"
#include "common/base/little_endian.h"
#include "common/base/status_macros.h"

namespace eps {
namespace {

constexpr uint32_t kMagic = 0x44535045;  // "EPSD" as little-endian bytes
constexpr int64_t kMagicAt = 0, kFormatAt = 4, kTokenBytesAt = 6, kFlagsAt = 7, kNumTokensAt = 8, kNumDocumentsAt = 16,
                  kClassNamesBytesAt = 24, kFingerprintAt = 32;
constexpr int64_t kAlignBytes = 8;

template <typename Found>
absl::Status Bad(absl::string_view field, int64_t offset, Found found, absl::string_view wanted) {
  return absl::InvalidArgumentError(absl::StrCat(field, " (offset ", offset, "): ", found, ", must be ", wanted));
}

}  // namespace

DocumentIndexSections LayOutDocumentIndex(uint8_t flags, int64_t num_tokens, int64_t num_documents,
                                          int64_t class_names_bytes) {
  DocumentIndexSections sections;
  int64_t end = kDocumentIndexHeaderBytes;
  const auto place = [&end](bool is_there, int64_t num_bytes) {
    const int64_t begin = end;
    if (is_there) end = RoundUp(end + num_bytes, kAlignBytes);
    return begin;
  };
  sections.first_tokens = place(true, 8 * (num_documents + 1));
  sections.counted = place((flags & kHasCounted) != 0, (num_tokens + 7) / 8);
  sections.labels = place((flags & kHasLabels) != 0, 4 * num_documents);
  sections.second_parts = place((flags & kHasSecondParts) != 0, 4 * num_documents);
  sections.class_names = place(true, class_names_bytes);
  sections.end = end;
  return sections;
}

absl::StatusOr<DocumentIndexBytes> DocumentIndexBytes::Parse(absl::Span<const std::byte> bytes) {
  EPS_ASSIGN_OR_RETURN(const DocumentIndexBytes index, ParseHeader(bytes));
  EPS_RETURN_IF_ERROR(index.CheckFirstTokens());
  EPS_RETURN_IF_ERROR(index.CheckLabels());
  EPS_RETURN_IF_ERROR(index.CheckSecondParts());
  EPS_RETURN_IF_ERROR(index.CheckClassNames());
  return index;
}

absl::StatusOr<DocumentIndexBytes> DocumentIndexBytes::ParseHeader(absl::Span<const std::byte> bytes) {
  DocumentIndexBytes index(bytes);
  EPS_RETURN_IF_ERROR(index.CheckHeader());
  EPS_RETURN_IF_ERROR(index.CheckLength());
  return index;
}

absl::Status DocumentIndexBytes::CheckHeader() {
  if (static_cast<int64_t>(bytes_.size()) < kDocumentIndexHeaderBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(bytes_.size(), " bytes, must be at least the ", kDocumentIndexHeaderBytes, " of the header"));
  }
  if (const auto magic = LoadLittleEndian<uint32_t>(bytes_, kMagicAt); magic != kMagic) {
    return Bad("magic", kMagicAt, absl::StrCat("0x", absl::Hex(magic, absl::kZeroPad8)), "0x44535045 (\"EPSD\")");
  }
  if (const auto format = LoadLittleEndian<uint16_t>(bytes_, kFormatAt); format != kDocumentIndexFormat) {
    return Bad("format", kFormatAt, format, absl::StrCat(kDocumentIndexFormat));
  }
  token_bytes_ = LoadLittleEndian<uint8_t>(bytes_, kTokenBytesAt);
  if (token_bytes_ != 2 && token_bytes_ != 4) return Bad("token_bytes", kTokenBytesAt, token_bytes_, "2 or 4");
  flags_ = LoadLittleEndian<uint8_t>(bytes_, kFlagsAt);
  if ((flags_ & ~kAllDocumentIndexFlags) != 0) {
    return Bad("flags", kFlagsAt, flags_, absl::StrCat("a sum of 1, 2, 4 and 8"));
  }
  // Compared as they are written: a number beyond int64_t is too large as well.
  const auto tokens = LoadLittleEndian<uint64_t>(bytes_, kNumTokensAt),
             documents = LoadLittleEndian<uint64_t>(bytes_, kNumDocumentsAt);
  if (tokens < 1 || tokens > uint64_t{kMaxIndexedTokens}) {
    return Bad("num_tokens", kNumTokensAt, tokens, absl::StrCat("in [1, ", kMaxIndexedTokens, "]"));
  }
  if (documents < 1 || documents > tokens) {
    return Bad("num_documents", kNumDocumentsAt, documents,
               absl::StrCat("in [1, ", tokens, "]: no document without tokens"));
  }
  const bool may_have_names = (flags_ & kHasLabels) != 0;
  const auto names_bytes = LoadLittleEndian<uint64_t>(bytes_, kClassNamesBytesAt);
  if (names_bytes > (may_have_names ? uint64_t{kMaxClassNamesBytes} : 0)) {
    return Bad("class_names_bytes", kClassNamesBytesAt, names_bytes,
               may_have_names ? absl::StrCat("at most ", kMaxClassNamesBytes) : "0 without labels");
  }
  num_tokens_ = static_cast<int64_t>(tokens);
  num_documents_ = static_cast<int64_t>(documents);
  class_names_bytes_ = static_cast<int64_t>(names_bytes);
  sections_ = LayOutDocumentIndex(flags_, num_tokens_, num_documents_, class_names_bytes_);
  return absl::OkStatus();
}

absl::Status DocumentIndexBytes::CheckLength() const {
  if (static_cast<int64_t>(bytes_.size()) == sections_.end) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(bytes_.size(), " bytes, must be ", sections_.end, " for ", num_tokens_,
                                                 " tokens, ", num_documents_, " documents and flags ", flags_));
}

absl::Status DocumentIndexBytes::CheckFirstTokens() const {
  const auto offset = [this](int64_t document) { return sections_.first_tokens + 8 * document; };
  const auto name = [](int64_t document) { return absl::StrCat("first_tokens[", document, "]"); };
  if (const auto first = LoadLittleEndian<uint64_t>(bytes_, offset(0)); first != 0)
    return Bad(name(0), offset(0), first, "0");
  uint64_t before = 0;
  for (int64_t document = 1; document <= num_documents_; ++document) {
    const auto first = LoadLittleEndian<uint64_t>(bytes_, offset(document));
    if (first <= before) {
      return Bad(name(document), offset(document), first, absl::StrCat("above ", before, ", the one before"));
    }
    before = first;
  }
  if (before != static_cast<uint64_t>(num_tokens_)) {
    return Bad(name(num_documents_), offset(num_documents_), before, absl::StrCat(num_tokens_, ", num_tokens"));
  }
  if ((flags_ & kHasCounted) == 0) return absl::OkStatus();
  const int64_t last = sections_.counted + num_tokens_ / 8;  // bits of it may be filling too
  if (num_tokens_ % 8 != 0 && (LoadLittleEndian<uint8_t>(bytes_, last) >> (num_tokens_ % 8)) != 0) {
    return Bad("counted", last, LoadLittleEndian<uint8_t>(bytes_, last),
               absl::StrCat("0 in the bits from token ", num_tokens_, " on"));
  }
  return CheckPadding(sections_.counted + (num_tokens_ + 7) / 8, sections_.labels, "counted");
}

absl::Status DocumentIndexBytes::CheckLabels() const {
  if ((flags_ & kHasLabels) == 0) return absl::OkStatus();
  for (int64_t document = 0; document < num_documents_; ++document) {
    const int64_t offset = sections_.labels + 4 * document;
    if (const auto label = LoadLittleEndian<int32_t>(bytes_, offset); label < 0) {
      return Bad(absl::StrCat("labels[", document, "]"), offset, label, "at least 0");
    }
  }
  return CheckPadding(sections_.labels + 4 * num_documents_, sections_.second_parts, "labels");
}

absl::Status DocumentIndexBytes::CheckSecondParts() const {
  if ((flags_ & kHasSecondParts) == 0) return absl::OkStatus();
  for (int64_t document = 0; document < num_documents_; ++document) {
    const int64_t offset = sections_.second_parts + 4 * document;
    const int64_t part = LoadLittleEndian<uint32_t>(bytes_, offset),
                  length = first_token(document + 1) - first_token(document);
    if (part < 1 || part > length) {
      return Bad(absl::StrCat("second_parts[", document, "]"), offset, part,
                 absl::StrCat("in [1, ", length, "], the document's tokens"));
    }
  }
  return CheckPadding(sections_.second_parts + 4 * num_documents_, sections_.class_names, "second_parts");
}

absl::Status DocumentIndexBytes::CheckClassNames() const {
  if (class_names_bytes_ == 0) return absl::OkStatus();
  const int64_t last = sections_.class_names + class_names_bytes_ - 1;
  if (const auto byte = LoadLittleEndian<uint8_t>(bytes_, last); byte != '\n')
    return Bad("class_names", last, byte, "10, a line's end");
  EPS_RETURN_IF_ERROR(CheckPadding(last + 1, sections_.end, "class_names"));
  const std::vector<std::string> names = class_names();
  for (size_t i = 0; i < names.size(); ++i) {
    if (names[i].empty()) return Bad(absl::StrCat("class_names[", i, "]"), sections_.class_names, "\"\"", "a name");
  }
  const auto num_names = static_cast<int64_t>(names.size());
  for (int64_t document = 0; document < num_documents_; ++document) {
    if (*label(document) < num_names) continue;
    return Bad(absl::StrCat("labels[", document, "]"), sections_.labels + 4 * document, *label(document),
               absl::StrCat("below ", num_names, ", the number of class_names"));
  }
  return absl::OkStatus();
}

absl::Status DocumentIndexBytes::CheckPadding(int64_t begin, int64_t end, const char* section) const {
  for (int64_t offset = begin; offset < end; ++offset) {
    const auto byte = LoadLittleEndian<uint8_t>(bytes_, offset);
    if (byte != 0) return Bad(absl::StrCat("filling after ", section), offset, byte, "0");
  }
  return absl::OkStatus();
}

std::string DocumentIndexBytes::fingerprint_hex() const {
  return absl::BytesToHexString(
      absl::string_view(reinterpret_cast<const char*>(bytes_.data()) + kFingerprintAt, kFingerprintBytes));
}

int64_t DocumentIndexBytes::first_token(int64_t document) const {
  return LoadLittleEndian<int64_t>(bytes_, sections_.first_tokens + 8 * document);
}

bool DocumentIndexBytes::is_counted(int64_t token) const {
  if ((flags_ & kHasCounted) == 0) return true;
  return (std::to_integer<unsigned>(bytes_[sections_.counted + token / 8]) >> (token % 8) & 1) != 0;
}

int64_t DocumentIndexBytes::num_counted(int64_t begin, int64_t end) const {
  if ((flags_ & kHasCounted) == 0) return end - begin;
  int64_t counted = 0;
  for (; begin < end && begin % 8 != 0; ++begin) counted += is_counted(begin) ? 1 : 0;
  for (; end - begin >= 8; begin += 8)
    counted += std::popcount(LoadLittleEndian<uint8_t>(bytes_, sections_.counted + begin / 8));
  for (; begin < end; ++begin) counted += is_counted(begin) ? 1 : 0;
  return counted;
}

std::optional<int32_t> DocumentIndexBytes::label(int64_t document) const {
  if ((flags_ & kHasLabels) == 0) return std::nullopt;
  return LoadLittleEndian<int32_t>(bytes_, sections_.labels + 4 * document);
}

int64_t DocumentIndexBytes::second_part(int64_t document) const {
  if ((flags_ & kHasSecondParts) == 0) return first_token(document + 1) - first_token(document);
  return LoadLittleEndian<uint32_t>(bytes_, sections_.second_parts + 4 * document);
}

std::vector<std::string> DocumentIndexBytes::class_names() const {
  if (class_names_bytes_ == 0) return {};
  const absl::string_view lines(reinterpret_cast<const char*>(bytes_.data()) + sections_.class_names,
                                static_cast<size_t>(class_names_bytes_ - 1));  // without the last line's end
  return absl::StrSplit(lines, '\n');
}

}  // namespace eps
