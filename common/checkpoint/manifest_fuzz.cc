#include "common/checkpoint/manifest.h"

#include <cstddef>
#include <cstdlib>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/sha256.h"

namespace {

// What is taken is written again as the same; a NaN loss is not equal to itself, so texts are compared.
void Read(const std::string& text) {
  const absl::StatusOr<eps::Manifest> manifest = eps::ParseManifest(text);
  if (!manifest.ok()) return;
  for (const auto& [name, sum] : manifest->files) {
    if (sum.num_bytes < 1 || sum.sha256.size() != 64) abort();
    if (!sum.part_crcs.empty() && static_cast<int64_t>(sum.part_crcs.size()) != eps::NumParts(sum.num_bytes)) abort();
    if (sum.part_crcs.empty()) return;  // format 1 is read and never written
  }
  const std::string written = eps::ManifestToJson(*manifest);
  const absl::StatusOr<eps::Manifest> again = eps::ParseManifest(written);
  if (!again.ok() || eps::ManifestToJson(*again) != written) abort();
}

}  // namespace

// What has no end of a manifest is read as what stands before a right sum: else hardly anything would come past the sum.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
  std::string text(reinterpret_cast<const char*>(data), num_bytes);
  if (!absl::EndsWith(text, "\"\n}\n")) {
    const std::string sum = eps::Sha256Hex({reinterpret_cast<const std::byte*>(data), num_bytes});
    absl::StrAppend(&text, "  \"sha256\": \"", sum, "\"\n}\n");
  }
  Read(text);
  return 0;
}
