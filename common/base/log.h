#ifndef EPS_COMMON_BASE_LOG_H_
#define EPS_COMMON_BASE_LOG_H_

#include <concepts>
#include <initializer_list>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace eps {

enum class LogLevel { kInfo, kWarning, kError };

// key=value of a log line. Values are quoted when they hold spaces, escaped as by EscapeText; no weights, no secrets.
struct LogField {
  template <typename T>
  LogField(absl::string_view key, const T& value) : key(key), value(absl::StrCat(value)) {}
  absl::string_view key;
  std::string value;
};

// Writes one event as one line to stderr:
//   2026-11-21T03:44:05.123Z INFO blob_published blob=7 version=42 wire_bytes=3538944
// `event` is a fixed snake_case name; fields carry their unit in the key. Threads: safe, one write(2) a line.
void Log(LogLevel level, absl::string_view event, std::initializer_list<LogField> fields = {});

inline void LogInfo(absl::string_view event, std::initializer_list<LogField> fields = {}) {
  Log(LogLevel::kInfo, event, fields);
}
inline void LogWarning(absl::string_view event, std::initializer_list<LogField> fields = {}) {
  Log(LogLevel::kWarning, event, fields);
}
inline void LogError(absl::string_view event, std::initializer_list<LogField> fields = {}) {
  Log(LogLevel::kError, event, fields);
}

}  // namespace eps

#endif  // EPS_COMMON_BASE_LOG_H_
