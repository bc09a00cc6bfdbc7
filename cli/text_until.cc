#include "cli/text_until.h"

#include <algorithm>

#include "absl/strings/match.h"

namespace eps::cli {

absl::string_view TextUntil::Next(absl::string_view text) {
  if (has_ended_ || text.size() <= shown_bytes_) return "";
  if (end_.empty()) return ShowUpTo(text, text.size());
  if (const size_t found = text.find(end_, shown_bytes_); found != absl::string_view::npos) {
    has_ended_ = true;
    return ShowUpTo(text, found);
  }
  size_t kept = std::min(end_.size() - 1, text.size() - shown_bytes_);
  while (!absl::StartsWith(end_, text.substr(text.size() - kept))) --kept;
  return ShowUpTo(text, text.size() - kept);
}

absl::string_view TextUntil::Rest(absl::string_view text) {
  return has_ended_ ? "" : ShowUpTo(text, std::max(text.size(), shown_bytes_));
}

absl::string_view TextUntil::ShowUpTo(absl::string_view text, size_t end) {
  const absl::string_view shown = text.substr(std::min(shown_bytes_, text.size()), end - shown_bytes_);
  shown_bytes_ = end;
  return shown;
}

}  // namespace eps::cli
