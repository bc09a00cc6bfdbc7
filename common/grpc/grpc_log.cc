#include "common/grpc/grpc_log.h"

#include <atomic>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/base/log.h"
#include "grpc/support/log.h"

namespace eps {
namespace {

void Forward(gpr_log_func_args* said) {
  // atomic: gRPC speaks from any thread
  static std::atomic<int64_t> count = 0, last_logged = 0;
  const int64_t so_far = ++count;
  const int64_t now = absl::ToUnixSeconds(absl::Now());
  if (int64_t last = last_logged; now <= last || !last_logged.compare_exchange_strong(last, now)) return;
  absl::string_view file = said->file;
  if (const size_t slash = file.rfind('/'); slash != absl::string_view::npos) file.remove_prefix(slash + 1);
  LogWarning("grpc",
             {{"message", said->message}, {"where", absl::StrCat(file, ":", said->line)}, {"said_so_far", so_far}});
}

}  // namespace

void LogGrpcErrors() { gpr_set_log_function(Forward); }

}  // namespace eps
