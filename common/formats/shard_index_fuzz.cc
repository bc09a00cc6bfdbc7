#include "common/formats/shard_index.h"

#include <cstdint>
#include <cstdlib>
#include <string>

// Every file of an index that is taken lies beside it.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
  const auto index = eps::ParseShardIndex({reinterpret_cast<const char*>(data), num_bytes});
  if (!index.ok()) return 0;
  if (index->empty()) abort();
  for (const auto& [tensor, file] : *index) {
    if (file.empty() || file == ".." || file == "." || file.find('/') != std::string::npos) abort();
  }
  return 0;
}
