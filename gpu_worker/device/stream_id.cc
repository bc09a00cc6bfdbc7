#include "gpu_worker/device/stream_id.h"

namespace eps::worker {

absl::string_view StreamName(StreamId id) {
  switch (id) {
    case StreamId::kCompute:
      return "compute";
    case StreamId::kIn:
      return "in";
    case StreamId::kOut:
      return "out";
  }
  return "unknown";
}

absl::string_view WaitCauseName(WaitCause cause) {
  switch (cause) {
    case WaitCause::kNone:
      return "none";
    case WaitCause::kPull:
      return "pull";
    case WaitCause::kStash:
      return "stash";
    case WaitCause::kPush:
      return "push";
    case WaitCause::kVersion:
      return "version";
    case WaitCause::kRoom:
      return "room";
  }
  return "unknown";
}

}  // namespace eps::worker
