#include "common/base/log.h"

#include <errno.h>
#include <unistd.h>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/base/shown_text.h"

namespace eps {
namespace {

absl::string_view LevelName(LogLevel level) {
  switch (level) {
    case LogLevel::kInfo:
      return "INFO";
    case LogLevel::kWarning:
      return "WARNING";
    case LogLevel::kError:
      return "ERROR";
  }
  return "UNKNOWN";
}

// A bare value holds nothing that would end it early: a line splits at spaces, and no value can
// forge a second line.
void AppendValue(std::string& line, absl::string_view value) {
  const std::string escaped = EscapeText(value);
  const bool is_bare = !value.empty() && escaped == value && value.find_first_of(" =") == absl::string_view::npos;
  const absl::string_view quote = is_bare ? "" : "\"";
  absl::StrAppend(&line, quote, escaped, quote);
}

void WriteLine(const std::string& line) {
  // One call a line, so that lines of several threads and processes do not mix. A pipe may still
  // take a long line in parts; a closed one is no reason to stop.
  size_t written = 0;
  while (written < line.size()) {
    const ssize_t n = write(STDERR_FILENO, line.data() + written, line.size() - written);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return;
    written += static_cast<size_t>(n);
  }
}

}  // namespace

void Log(LogLevel level, absl::string_view event, std::initializer_list<LogField> fields) {
  std::string line = absl::StrCat(absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", absl::Now(), absl::UTCTimeZone()), " ",
                                  LevelName(level), " ", event);
  for (const LogField& field : fields) {
    absl::StrAppend(&line, " ", field.key, "=");
    AppendValue(line, field.value);
  }
  line.push_back('\n');
  WriteLine(line);
}

}  // namespace eps
