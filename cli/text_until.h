#ifndef EPS_CLI_TEXT_UNTIL_H_
#define EPS_CLI_TEXT_UNTIL_H_

#include <cstddef>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"

namespace eps::cli {

// A text that becomes longer, and ends before the first occurrence of another one: what of it can be shown so far.
class TextUntil {
 public:
  // begin: so many bytes are neither shown nor searched. end: "": nothing ends it.
  TextUntil(size_t begin, std::string end) : shown_bytes_(begin), end_(std::move(end)) {}

  // `text`: all of it. Returns what comes next; what may be the beginning of `end` is kept back. Nothing once it has ended.
  absl::string_view Next(absl::string_view text);
  // What was kept back, where the text ends otherwise.
  absl::string_view Rest(absl::string_view text);
  bool has_ended() const { return has_ended_; }

 private:
  absl::string_view ShowUpTo(absl::string_view text, size_t end);

  size_t shown_bytes_;
  const std::string end_;
  bool has_ended_ = false;
};

}  // namespace eps::cli

#endif  // EPS_CLI_TEXT_UNTIL_H_
