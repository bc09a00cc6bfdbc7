#ifndef EPS_COMMON_BASE_CONTROL_GROUPS_H_
#define EPS_COMMON_BASE_CONTROL_GROUPS_H_

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace eps {

// A file of /proc or /sys, whole; nullopt if it cannot be read.
using TextReader = std::function<std::optional<std::string>(const std::string& path)>;

// The one that reads this machine's.
std::optional<std::string> ReadSystemText(const std::string& path);

// The folders of the control groups around this process, innermost first: those of cgroup v2, or those that v1 has of
// `controller`, as "memory".
std::vector<std::string> ControlGroupFolders(const TextReader& read, absl::string_view controller = "");

// How many cores' worth of time they allow, by the tightest cpu.max; 0: none has a limit. A container that was given
// "1.5 CPUs" has such a limit, and sees all cores of its machine.
double ControlGroupCores(const TextReader& read);

// Cores that this thread may run on: those of the machine, or of what `taskset`, a cpuset or CPUAffinity= leaves.
int SchedulableCores();

// How many threads that compute this process can keep busy: one for each schedulable core, and no more than its control
// groups allow the time of, rounded down; at least 1. The second one is of this process, found once.
int UsableCores(const TextReader& read, int schedulable_cores);
int UsableCores();

}  // namespace eps

#endif  // EPS_COMMON_BASE_CONTROL_GROUPS_H_
