#include "eps_server/memory/room_check.h"

#include "absl/strings/str_cat.h"
#include "common/base/byte_size.h"
#include "common/base/log.h"

namespace eps::server {

absl::Status DoesNotFit(int64_t needed_bytes, absl::string_view why) {
  return absl::ResourceExhaustedError(absl::StrCat("the daemon needs at least ", needed_bytes, " bytes (",
                                                   FormatByteSize(needed_bytes),
                                                   ") of this host's memory, which `eps plan` explains: ", why));
}

absl::Status CheckRoom(const DaemonMemory& memory, const MemoryRoom& room) {
  if (room.total_bytes == 0) return absl::OkStatus();  // not known
  // A group's swap may have a limit of its own: where it is smaller, some runs that end badly are not refused.
  if (room.smallest_limit_bytes < room.total_bytes &&
      memory.surely_written_bytes() > room.smallest_limit_bytes + room.swap_bytes) {
    const std::string swap =
        room.swap_bytes > 0 ? absl::StrCat(", beside ", FormatByteSize(room.swap_bytes), " of swap") : "";
    return DoesNotFit(memory.total_bytes(), absl::StrCat(MostMemoryText(room), swap));
  }
  if (memory.total_bytes() > room.available_bytes) {
    LogWarning("memory_is_short", {{"needed_bytes", memory.total_bytes()}, {"available_bytes", room.available_bytes}});
  }
  return absl::OkStatus();
}

}  // namespace eps::server
