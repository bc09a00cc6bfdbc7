#include "common/base/end_signals.h"

#include <signal.h>

namespace eps {

EndSignals::Meaning EndSignals::OnSignal(int number) {
  if (first_ == 0) {
    first_ = number;
    first_at_ = clock_();
    return Meaning::kEndInOrder;
  }
  return number == SIGHUP || clock_() - first_at_ < kRepeat ? Meaning::kNothingNew : Meaning::kEndAtOnce;
}

}  // namespace eps
