#ifndef EPS_SERVER_OPTIMIZER_UPDATE_HOLD_H_
#define EPS_SERVER_OPTIMIZER_UPDATE_HOLD_H_

#include <chrono>
#include <optional>
#include <set>
#include <utility>

#include "common/base/ids.h"

namespace eps::server {

// Which blobs may not be updated from which version, as a checkpoint is still to copy it, and how long updates have
// waited for nothing else.
//
// Threads: none of its own; the owner guards it.
class UpdateHold {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  void Hold(BlobId blob, Version version) { held_.insert({version, blob}); }
  bool IsHeld(BlobId blob, Version version) const { return held_.count({version, blob}) > 0; }
  // False: it was not held.
  bool Release(BlobId blob, Version version) { return held_.erase({version, blob}) > 0; }

  // An update of `blob` could run, but for the hold.
  void BeginWait(BlobId blob, TimePoint now) {
    if (waiting_.empty()) begin_ = now;
    waiting_.insert(blob);
  }

  // From the first update that waited to the last one that went on.
  struct Wait {
    TimePoint begin, end;
    double seconds() const { return std::chrono::duration<double>(end - begin).count(); }
  };
  // `blob`, if it waited, does no longer. Returns the wait that is over with it, if one is.
  std::optional<Wait> EndWait(BlobId blob, TimePoint now) {
    if (waiting_.erase(blob) == 0 || !waiting_.empty()) return std::nullopt;
    return Wait{begin_, now};
  }

 private:
  std::set<std::pair<Version, BlobId>> held_;
  std::set<BlobId> waiting_;  // of those in held_
  TimePoint begin_;
};

}  // namespace eps::server

#endif  // EPS_SERVER_OPTIMIZER_UPDATE_HOLD_H_
