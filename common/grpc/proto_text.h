#ifndef EPS_COMMON_GRPC_PROTO_TEXT_H_
#define EPS_COMMON_GRPC_PROTO_TEXT_H_

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"

namespace eps {

// `text` with U+FFFD for what is not UTF-8, as the name of a folder need not be: who receives a message with such a string
// takes nothing of that message. Cut at a character where it would be longer than `max_bytes`.
std::string ProtoText(absl::string_view text, size_t max_bytes = absl::string_view::npos);

}  // namespace eps

#endif  // EPS_COMMON_GRPC_PROTO_TEXT_H_
