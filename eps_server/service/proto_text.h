#ifndef EPS_SERVER_SERVICE_PROTO_TEXT_H_
#define EPS_SERVER_SERVICE_PROTO_TEXT_H_

#include <string>

#include "absl/strings/string_view.h"
#include "common/tokenizer/utf8.h"

namespace eps::server {

// `text` with U+FFFD for what is not UTF-8, as the name of a folder need not be: who receives a message with such a string
// takes nothing of that message.
inline std::string ProtoText(absl::string_view text) {
  std::string copy;
  return std::string(WellFormed(text, copy));
}

}  // namespace eps::server

#endif  // EPS_SERVER_SERVICE_PROTO_TEXT_H_
