#ifndef EPS_COMMON_BASE_WAIT_CAUSE_H_
#define EPS_COMMON_BASE_WAIT_CAUSE_H_

#include <algorithm>
#include <iterator>

#include "absl/strings/string_view.h"

namespace eps {

// What a worker's compute waits for, in the order in which people are shown it: a layer's weights, a boundary on its
// way between host and device, a gradient on its way from the device, a version that is not yet published, room for a
// gradient where those before it have not been taken by the daemon. A closed set: labels of metrics, keys on the wire, in
// metrics.jsonl and in summary.json.
inline constexpr absl::string_view kWaitCauses[] = {"pull", "stash", "push", "version", "room"};

inline bool IsWaitCause(absl::string_view name) {
  return std::find(std::begin(kWaitCauses), std::end(kWaitCauses), name) != std::end(kWaitCauses);
}

}  // namespace eps

#endif  // EPS_COMMON_BASE_WAIT_CAUSE_H_
