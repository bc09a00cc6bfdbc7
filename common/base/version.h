#ifndef EPS_COMMON_BASE_VERSION_H_
#define EPS_COMMON_BASE_VERSION_H_

#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/protocol_version.h"

namespace eps {

// Of the three programs, which are built and shipped together.
inline constexpr char kVersion[] = "0.1.0";

// What --version prints: "eps 0.1.0 (protocol N)".
inline std::string VersionText(const char* program) {
  return absl::StrCat(program, " ", kVersion, " (protocol ", kProtocolVersion, ")");
}

}  // namespace eps

#endif  // EPS_COMMON_BASE_VERSION_H_
