#include "common/model/hf_config.h"

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

// A config.json that is taken is written again as the same.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
  const absl::StatusOr<eps::ModelConfig> config =
      eps::ModelConfigFromJson(std::string(reinterpret_cast<const char*>(data), num_bytes));
  if (!config.ok()) return 0;
  const absl::StatusOr<eps::ModelConfig> again = eps::ModelConfigFromJson(eps::ModelConfigToJson(*config));
  if (!again.ok() || !(*again == *config)) abort();
  return 0;
}
