#include "common/base/long_work.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/byte_size.h"
#include "common/base/log.h"

namespace eps {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kLogInterval(10);

double SecondsSince(Clock::time_point then) { return std::chrono::duration<double>(Clock::now() - then).count(); }

}  // namespace

void LongWork::Begin(std::string what, int64_t total_bytes) {
  LogInfo("work_begun", {{"what", what}, {"total_bytes", total_bytes}});
  MutexLock lock(mu_);
  view_ = {.what = std::move(what), .total_bytes = total_bytes};
  begun_ = logged_ = Clock::now();
}

absl::Status LongWork::Add(int64_t bytes) {
  {
    MutexLock lock(mu_);
    view_.done_bytes += bytes;
  }
  return GoOn();
}

absl::Status LongWork::Reach(int64_t done_bytes, int64_t total_bytes) {
  {
    MutexLock lock(mu_);
    view_.done_bytes = done_bytes;
    view_.total_bytes = total_bytes;
  }
  return GoOn();
}

LongWork::View LongWork::Look() const {
  MutexLock lock(mu_);
  View view = view_;
  if (!view.what.empty()) view.seconds = SecondsSince(begun_);
  return view;
}

absl::Status LongWork::GoOn() {
  View view;
  {
    MutexLock lock(mu_);
    if (is_cancelled_) return absl::CancelledError(absl::StrCat("given up: ", view_.what));
    if (view_.what.empty() || Clock::now() - logged_ < kLogInterval) return absl::OkStatus();
    logged_ = Clock::now();
    view = view_;
    view.seconds = SecondsSince(begun_);
  }
  LogInfo("work_goes_on", {{"what", view.what},
                           {"done_bytes", view.done_bytes},
                           {"total_bytes", view.total_bytes},
                           {"seconds", view.seconds}});
  return absl::OkStatus();
}

std::string ToText(const LongWork::View& view) {
  if (view.what.empty()) return "nothing yet";
  if (view.total_bytes <= 0) return view.what;
  return absl::StrCat(view.what, ", ", FormatByteSize(view.done_bytes), " of ", FormatByteSize(view.total_bytes));
}

}  // namespace eps
