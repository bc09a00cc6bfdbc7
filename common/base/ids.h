#ifndef EPS_COMMON_BASE_IDS_H_
#define EPS_COMMON_BASE_IDS_H_

#include <compare>
#include <cstdint>
#include <ostream>
#include <utility>

namespace eps {

// An integer that is not just any integer: ids of different kinds do not mix by accident.
template <typename Tag, typename Rep>
class Id {
 public:
  using rep = Rep;
  constexpr Id() = default;
  constexpr explicit Id(Rep value) : value_(value) {}
  constexpr Rep value() const { return value_; }
  friend constexpr auto operator<=>(Id, Id) = default;
  template <typename H>
  friend H AbslHashValue(H h, Id id) {
    return H::combine(std::move(h), id.value_);
  }
  friend std::ostream& operator<<(std::ostream& os, Id id) { return os << id.value_; }

 private:
  Rep value_ = 0;
};

using BlobId = Id<struct BlobIdTag, int32_t>;      // position in ModelSpec::blobs, which is pull order
using LayerId = Id<struct LayerIdTag, int32_t>;    // position in ModelSpec::layers, which is relay order
using StepId = Id<struct StepIdTag, int64_t>;      // counted from 0
using Version = Id<struct VersionTag, int64_t>;    // step s reads version s of a blob and makes s + 1
using WorkerId = Id<struct WorkerIdTag, int64_t>;  // given by the daemon at attach, never reused

constexpr Version ReadVersion(StepId step) { return Version(step.value()); }
constexpr Version NextVersion(StepId step) { return Version(step.value() + 1); }

}  // namespace eps

#endif  // EPS_COMMON_BASE_IDS_H_
