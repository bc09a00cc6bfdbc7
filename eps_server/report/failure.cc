#include "eps_server/report/failure.h"

#include "nlohmann/json.hpp"

namespace eps::server {

std::string FailureJson(int64_t steps, absl::string_view why, bool diverged) {
  const nlohmann::ordered_json failure = {{"step", steps}, {"failure", std::string(why)}, {"diverged", diverged}};
  // A path in it need not be UTF-8.
  return failure.dump(-1, ' ', /*ensure_ascii=*/false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace eps::server
