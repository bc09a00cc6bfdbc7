#include "common/formats/shared_message.h"

#include <cstdint>
#include <cstdlib>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

// A message that is taken is written as the same message.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
  const absl::string_view bytes(reinterpret_cast<const char*>(data), num_bytes);
  const absl::StatusOr<eps::SharedMessage> message = eps::DecodeSharedMessage(bytes);
  if (!message.ok()) return 0;
  const absl::StatusOr<eps::SharedMessage> again = eps::DecodeSharedMessage(eps::EncodeSharedMessage(*message));
  if (!again.ok() || !(*again == *message)) abort();
  return 0;
}
