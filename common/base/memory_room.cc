#include "common/base/memory_room.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "common/base/control_groups.h"

namespace eps {
namespace {

// The number behind `key` in lines of "key: number" or "key number"; `otherwise` if there is none.
int64_t NumberOf(const std::string& text, absl::string_view key, int64_t otherwise) {
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    const std::vector<absl::string_view> words = absl::StrSplit(line, absl::ByAnyChar(": "), absl::SkipEmpty());
    int64_t number = 0;
    if (words.size() >= 2 && words[0] == key && absl::SimpleAtoi(words[1], &number)) return number;
  }
  return otherwise;
}

// nullopt: no such file, or no number ("max").
std::optional<int64_t> ReadNumber(const TextReader& read, const std::string& path) {
  const std::optional<std::string> text = read(path);
  int64_t number = 0;
  if (!text.has_value() || !absl::SimpleAtoi(absl::StripAsciiWhitespace(*text), &number)) return std::nullopt;
  return number;
}

}  // namespace

MemoryRoom FindMemoryRoom(const TextReader& read) {
  const std::string machine = read("/proc/meminfo").value_or("");
  MemoryRoom room = {.total_bytes = NumberOf(machine, "MemTotal", 0) * 1024,  // in KiB
                     .available_bytes = NumberOf(machine, "MemAvailable", 0) * 1024};
  for (const std::string& folder : ControlGroupFolders(read)) {
    const std::optional<int64_t> limit = ReadNumber(read, folder + "/memory.max");
    if (!limit.has_value()) continue;
    const std::string stat = read(folder + "/memory.stat").value_or("");
    const int64_t cached = NumberOf(stat, "inactive_file", 0) + NumberOf(stat, "active_file", 0);
    const int64_t held = std::max<int64_t>(0, ReadNumber(read, folder + "/memory.current").value_or(0) - cached);
    const int64_t free = std::max<int64_t>(0, *limit - held);
    if (free >= room.group_room_bytes) continue;
    room.group_room_bytes = free;
    room.group_limit_bytes = *limit;
    room.group_file = folder + "/memory.max";
  }
  room.limited_by_group = room.group_room_bytes < room.available_bytes;
  room.available_bytes = std::min(room.available_bytes, room.group_room_bytes);
  return room;
}

MemoryRoom FindMemoryRoom() { return FindMemoryRoom(&ReadSystemText); }

int64_t DefaultDeviceMemoryBytes(const MemoryRoom& room, int workers) {
  if (room.total_bytes <= 0) return 0;
  return std::max<int64_t>(1, room.available_bytes / 2 / workers);
}

}  // namespace eps
