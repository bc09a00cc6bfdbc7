#include "eps_server/step/step_wait.h"

#include <cstddef>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"

namespace eps::server {
namespace {

constexpr size_t kMaxShown = 8;  // of a list in a log line

template <typename List, typename Format>
std::string ShowSome(const List& list, Format format) {
  std::string text;
  size_t shown = 0;
  for (const auto& each : list) {
    if (shown == kMaxShown) return absl::StrCat(text, ",+", list.size() - shown);
    absl::StrAppend(&text, shown++ == 0 ? "" : ",", format(each));
  }
  return text;
}

}  // namespace

void LogStepWait(const StepWait& wait) {
  const auto vnodes = [](const auto& worker) {
    return absl::StrCat(worker.first.value(), ":{", ShowSome(worker.second, [](int v) { return absl::StrCat(v); }),
                        "}");
  };
  LogWarning("step_waits", {{"step", wait.step.value()},
                            {"cause", wait.cause},
                            {"waited_seconds", wait.seconds},
                            {"worker_vnodes", ShowSome(wait.vnodes, vnodes)},
                            {"blobs", ShowSome(wait.blobs, [](const std::string& name) { return name; })}});
}

}  // namespace eps::server
