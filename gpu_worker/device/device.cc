#include "gpu_worker/device/device.h"

#include "absl/strings/string_view.h"

namespace eps::worker {

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
  }
  return "unknown";
}

}  // namespace eps::worker
