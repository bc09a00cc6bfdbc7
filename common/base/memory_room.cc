#include "common/base/memory_room.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "common/base/byte_size.h"
#include "common/base/control_groups.h"

namespace eps {
namespace {

// Where a control group says what it may have and holds.
struct GroupFiles {
  const char* controller;  // ControlGroupFolders'
  const char* limit;
  const char* held;
  const char* of_all;  // before names of memory.stat: with the groups in it
};
constexpr GroupFiles kVersions[] = {{"", "/memory.max", "/memory.current", ""},
                                    {"memory", "/memory.limit_in_bytes", "/memory.usage_in_bytes", "total_"}};

// In v1 a group without a limit has the largest number, less a part of a page.
constexpr int64_t kLargestLimitBytes = MemoryRoom::kNoLimit - (int64_t{1} << 20);

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

// The group's, where it leaves or allows less than those before it.
void TakeGroup(const TextReader& read, const GroupFiles& files, const std::string& folder, MemoryRoom& room) {
  const std::optional<int64_t> limit = ReadNumber(read, folder + files.limit);
  if (!limit.has_value() || *limit > kLargestLimitBytes) return;
  const std::string stat = read(folder + "/memory.stat").value_or("");
  const int64_t cached = NumberOf(stat, absl::StrCat(files.of_all, "inactive_file"), 0) +
                         NumberOf(stat, absl::StrCat(files.of_all, "active_file"), 0);
  const int64_t held = std::max<int64_t>(0, ReadNumber(read, folder + files.held).value_or(0) - cached);
  const int64_t free = std::max<int64_t>(0, *limit - held);
  if (free < room.group_room_bytes) {
    room.group_room_bytes = free;
    room.group_limit_bytes = *limit;
    room.group_file = folder + files.limit;
  }
  if (*limit < room.smallest_limit_bytes) {
    room.smallest_limit_bytes = *limit;
    room.smallest_limit_file = folder + files.limit;
  }
}

}  // namespace

MemoryRoom FindMemoryRoom(const TextReader& read) {
  const std::string machine = read("/proc/meminfo").value_or("");
  MemoryRoom room = {.total_bytes = NumberOf(machine, "MemTotal", 0) * 1024,  // in KiB
                     .available_bytes = NumberOf(machine, "MemAvailable", 0) * 1024,
                     .swap_bytes = NumberOf(machine, "SwapTotal", 0) * 1024};
  for (const GroupFiles& files : kVersions) {
    for (const std::string& folder : ControlGroupFolders(read, files.controller)) TakeGroup(read, files, folder, room);
  }
  room.limited_by_group = room.group_room_bytes < room.available_bytes;
  room.available_bytes = std::min(room.available_bytes, room.group_room_bytes);
  return room;
}

MemoryRoom FindMemoryRoom() { return FindMemoryRoom(&ReadSystemText); }

std::string MostMemoryText(const MemoryRoom& room) {
  if (room.total_bytes <= 0) return "";
  if (room.smallest_limit_bytes >= room.total_bytes) {
    return absl::StrCat("this machine has ", FormatByteSize(room.total_bytes));
  }
  return absl::StrCat("its control group allows ", FormatByteSize(room.smallest_limit_bytes), " (",
                      room.smallest_limit_file, ")");
}

int64_t DefaultDeviceMemoryBytes(const MemoryRoom& room, int workers) {
  if (room.total_bytes <= 0) return 0;
  return std::max<int64_t>(1, room.available_bytes / 2 / workers);
}

}  // namespace eps
