#include "common/model/hf_config.h"

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

// A config.json that is taken is written again as the same, in its own words too, and so is a deeper model laid over
// it; in an export's form but for adapters, which that has merged.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
  const std::string text(reinterpret_cast<const char*>(data), num_bytes);
  const absl::StatusOr<eps::ModelConfig> config = eps::ModelConfigFromJson(text);
  if (!config.ok()) return 0;
  const absl::StatusOr<eps::ModelConfig> again = eps::ModelConfigFromJson(eps::ModelConfigToJson(*config));
  if (!again.ok() || !(*again == *config)) abort();
  for (const int more_layers : {0, 1}) {
    eps::ModelConfig grown = *config;
    if (grown.num_layers < 64) grown.num_layers += more_layers;
    const absl::StatusOr<std::string> laid_over = eps::LayOverSource(grown, text);
    if (!laid_over.ok()) abort();
    const absl::StatusOr<eps::ModelConfig> kept = eps::ModelConfigFromJson(*laid_over);
    if (!kept.ok() || !(*kept == grown)) abort();
    grown.lora = {};
    if (!eps::CheckSaysAll(grown).ok()) continue;  // no other program's, and written by checkpoints alone
    const absl::StatusOr<std::string> over = eps::ModelConfigToJson(grown, "F32", {.source = text});
    if (!over.ok()) abort();
    const absl::StatusOr<eps::ModelConfig> read = eps::ModelConfigFromJson(*over);
    if (!read.ok() || !(*read == grown)) abort();
  }
  return 0;
}
