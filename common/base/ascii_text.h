#ifndef EPS_COMMON_BASE_ASCII_TEXT_H_
#define EPS_COMMON_BASE_ASCII_TEXT_H_

#include <string>

#include "absl/strings/ascii.h"

namespace eps {

// `text` with a '?' for each byte that is not a printable ASCII character: for words of others, a file's or a program's,
// that go into a protobuf message, whose strings must be UTF-8, and on to a terminal.
inline std::string AsciiText(std::string text) {
  for (char& letter : text) {
    if (!absl::ascii_isprint(static_cast<unsigned char>(letter))) letter = '?';
  }
  return text;
}

}  // namespace eps

#endif  // EPS_COMMON_BASE_ASCII_TEXT_H_
