#include "common/security/changing_files.h"

namespace eps {
namespace {

// Whoever writes them so often has had the time for all of a set, and it is tried whether they are one.
constexpr int kRestlessLooks = 5;

}  // namespace

bool ChangingFiles::Look() {
  const bool changed = stamps_.Changed();
  is_to_read_ |= changed;
  return changed;
}

bool ChangingFiles::HaveSettled() {
  restless_looks_ = Look() ? restless_looks_ + 1 : 0;
  return is_to_read_ && restless_looks_ % kRestlessLooks == 0;
}

void ChangingFiles::Take() {
  is_to_read_ = false;
  refusal_.clear();
}

bool ChangingFiles::Refuse(const absl::Status& why) {
  if (refusal_ == why.message()) return false;
  refusal_ = std::string(why.message());
  return true;
}

}  // namespace eps
