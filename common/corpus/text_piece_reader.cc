#include "common/corpus/text_piece_reader.h"

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/status_macros.h"

namespace eps {
namespace {

constexpr size_t kReadBytes = 1 << 18;
constexpr size_t kMaxSeparatorBytes = 1024;
constexpr absl::string_view kByteOrderMark = "\xEF\xBB\xBF";

bool IsSpace(char c) { return absl::ascii_isspace(static_cast<unsigned char>(c)); }
bool IsInsideCharacter(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

}  // namespace

size_t TextCut(absl::string_view text) {
  const size_t half = text.size() / 2;
  for (size_t cut = text.size() - 1; cut > half && cut >= 2; --cut) {
    if (text[cut - 1] == '\n' && !IsSpace(text[cut - 2]) && !IsSpace(text[cut])) return cut;
  }
  // Line ends last: some tokenizers join them with a sign in front.
  for (const bool at_line_ends : {false, true}) {
    for (size_t cut = text.size() - 1; cut > half; --cut) {
      const bool is_line_end = text[cut] == '\n' || text[cut] == '\r';
      if (IsSpace(text[cut]) && !IsSpace(text[cut - 1]) && is_line_end == at_line_ends) return cut;
    }
  }
  // A character has at most 4 bytes; bytes that are none are cut anywhere.
  for (size_t cut = text.size() - 1; cut > 0 && cut + 4 > text.size(); --cut) {
    if (!IsInsideCharacter(text[cut])) return cut;
  }
  return text.size();
}

absl::StatusOr<std::unique_ptr<TextPieceReader>> TextPieceReader::Open(const std::string& path,
                                                                       const std::optional<std::string>& separator,
                                                                       size_t piece_bytes) {
  if (separator && absl::StrContains(*separator, '\n')) {
    return absl::InvalidArgumentError("separator: must be one line");
  }
  if (separator && separator->size() > kMaxSeparatorBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("separator: ", separator->size(), " bytes, must be at most ", kMaxSeparatorBytes));
  }
  EPS_ASSIGN_OR_RETURN(std::unique_ptr<SequentialFile> file, SequentialFile::Open(path));
  return std::unique_ptr<TextPieceReader>(new TextPieceReader(std::move(file), separator, piece_bytes));
}

absl::StatusOr<bool> TextPieceReader::Next(TextPiece& piece) {
  for (;;) {
    if (document_.size() > piece_bytes_) {
      piece = Emit(TextCut(absl::string_view(document_).substr(0, piece_bytes_)), false);
      return true;
    }
    if (document_ended_) {
      document_ended_ = false;
      piece = Emit(document_.size(), true);
      return true;
    }
    if (start_ < buffer_.size() && !MayBeCutSeparator()) {
      document_ended_ = TakeSome();
    } else if (!file_ended_) {
      EPS_RETURN_IF_ERROR(FillBuffer());
    } else if (separated_) {
      return false;  // nothing after the last separator, or all was given out
    } else {
      separated_ = true;
      document_ended_ = true;
    }
  }
}

absl::Status TextPieceReader::FillBuffer() {
  buffer_.erase(0, start_);
  start_ = 0;
  const size_t kept = buffer_.size();
  buffer_.resize(kept + kReadBytes);
  const absl::StatusOr<size_t> taken = file_->Read(&buffer_[kept], kReadBytes);
  buffer_.resize(kept + (taken.ok() ? *taken : 0));
  EPS_RETURN_IF_ERROR(taken.status());
  file_ended_ = *taken == 0;
  const bool is_beginning = offset_ == 0;
  offset_ += static_cast<int64_t>(*taken);
  if (is_beginning && absl::StartsWith(buffer_, kByteOrderMark)) start_ = kByteOrderMark.size();
  return absl::OkStatus();
}

bool TextPieceReader::MayBeCutSeparator() const {
  if (!separator_ || file_ended_ || !at_line_start_) return false;
  const absl::string_view rest = absl::string_view(buffer_).substr(start_);
  return rest.size() <= separator_->size() + 1 && rest.find('\n') == absl::string_view::npos;
}

bool TextPieceReader::TakeSome() {
  const absl::string_view rest = absl::string_view(buffer_).substr(start_);
  size_t taken = rest.size();
  if (separator_) {
    const size_t newline = rest.find('\n');
    taken = newline == absl::string_view::npos ? rest.size() : newline + 1;
    const absl::string_view line = absl::StripSuffix(absl::StripSuffix(rest.substr(0, taken), "\n"), "\r");
    if (at_line_start_ && line == *separator_) {
      start_ += taken;
      separated_ = true;
      return true;
    }
    at_line_start_ = newline != absl::string_view::npos;
  }
  if (document_.empty()) document_offset_ = offset_ - static_cast<int64_t>(rest.size());
  document_.append(rest.data(), taken);
  start_ += taken;
  separated_ = false;
  return false;
}

TextPiece TextPieceReader::Emit(size_t num_bytes, bool ends_document) {
  TextPiece piece{.text = document_.substr(0, num_bytes),
                  .offset_bytes = document_offset_,
                  .starts_document = fresh_,
                  .ends_document = ends_document};
  document_.erase(0, num_bytes);
  document_offset_ += static_cast<int64_t>(num_bytes);
  fresh_ = ends_document;
  return piece;
}

}  // namespace eps
