#include "common/base/control_groups.h"

#include <sched.h>

#include <algorithm>
#include <cstdint>
#include <thread>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "common/base/file_util.h"

namespace eps {
namespace {

constexpr char kGroups[] = "/sys/fs/cgroup";
constexpr int64_t kMaxTextBytes = 1 << 20;

}  // namespace

std::optional<std::string> ReadSystemText(const std::string& path) {
  absl::StatusOr<std::string> text = ReadFile(path, kMaxTextBytes);
  if (!text.ok()) return std::nullopt;
  return *std::move(text);
}

std::vector<std::string> ControlGroupFolders(const TextReader& read, absl::string_view controller) {
  std::string name = "/";
  const std::string groups = read("/proc/self/cgroup").value_or("");
  for (const absl::string_view line : absl::StrSplit(groups, '\n')) {
    // "12:cpu,cpuacct:/NAME"; that of v2 has no controllers.
    const std::vector<absl::string_view> parts = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() != 3 || !absl::StartsWith(parts[2], "/")) continue;
    const std::vector<absl::string_view> controllers = absl::StrSplit(parts[1], ',');
    if (std::count(controllers.begin(), controllers.end(), controller) > 0) name = std::string(parts[2]);
  }
  const std::string top = absl::StrCat(kGroups, controller.empty() ? "" : "/", controller);
  std::vector<std::string> folders;
  while (name != "/" && !name.empty()) {
    folders.push_back(top + name);
    name.resize(name.rfind('/'));
  }
  folders.push_back(top);  // in a container its own group appears here
  return folders;
}

double ControlGroupCores(const TextReader& read) {
  double least = 0;
  for (const std::string& folder : ControlGroupFolders(read)) {
    const std::string text = read(folder + "/cpu.max").value_or("");  // "QUOTA PERIOD\n", or "max PERIOD\n"
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(absl::StripAsciiWhitespace(text), absl::MaxSplits(' ', 1));
    int64_t quota = 0, period = 0;
    if (!absl::SimpleAtoi(parts.first, &quota) || !absl::SimpleAtoi(parts.second, &period)) continue;
    if (quota <= 0 || period <= 0) continue;
    const double cores = static_cast<double>(quota) / static_cast<double>(period);
    if (least == 0 || cores < least) least = cores;
  }
  return least;
}

int SchedulableCores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return CPU_COUNT(&set);
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));  // more cores than the set has bits
}

int UsableCores(const TextReader& read, int schedulable_cores) {
  const double allowed = ControlGroupCores(read);
  if (allowed == 0 || allowed >= schedulable_cores) return schedulable_cores;
  return std::max(1, static_cast<int>(allowed));
}

int UsableCores() {
  static const int cores = UsableCores(&ReadSystemText, SchedulableCores());
  return cores;
}

}  // namespace eps
