#include "common/security/changing_files.h"

namespace eps {

bool ChangingFiles::Look() {
  const bool changed = stamps_.Changed();
  is_to_read_ |= changed;
  return changed;
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
