#include "common/grpc/grpc_log.h"

#include <cstdint>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/log.h"
#include "common/base/log_limit.h"
#include "common/base/monotonic_clock.h"
#include "grpc/support/log.h"

namespace eps {
namespace {

void Forward(gpr_log_func_args* said) {
  static LogLimit limit;  // gRPC speaks from any thread
  const std::optional<int64_t> so_far = limit.Count(SteadyNow());
  if (!so_far.has_value()) return;
  absl::string_view file = said->file;
  if (const size_t slash = file.rfind('/'); slash != absl::string_view::npos) file.remove_prefix(slash + 1);
  LogWarning("grpc",
             {{"message", said->message}, {"where", absl::StrCat(file, ":", said->line)}, {"said_so_far", *so_far}});
}

}  // namespace

void LogGrpcErrors() { gpr_set_log_function(Forward); }

}  // namespace eps
