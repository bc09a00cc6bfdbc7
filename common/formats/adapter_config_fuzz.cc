#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "common/formats/adapter_folder.h"
#include "common/formats/adapter_parts.h"
#include "common/formats/adapter_reader.h"
#include "common/model/model_config.h"

// An adapter_config.json that is taken is one that a model may have, and is written again as the same.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
  const std::string text(reinterpret_cast<const char*>(data), num_bytes);
  const absl::StatusOr<eps::AdapterConfig> config = eps::ParseAdapterConfig(text);
  if (!config.ok()) return 0;
  eps::ModelConfig model;
  model.lora = config->lora;
  const absl::StatusOr<eps::AdapterConfig> again =
      eps::ParseAdapterConfig(eps::AdapterConfigToJson(model, {}, {.target_modules = {"c_attn"}}));
  if (!again.ok() || !(again->lora == config->lora)) abort();
  return 0;
}
