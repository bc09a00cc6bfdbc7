#ifndef EPS_COMMON_FORMATS_SAFETENSORS_HEADER_H_
#define EPS_COMMON_FORMATS_SAFETENSORS_HEADER_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/formats/safetensors.h"

namespace eps {

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> entries;  // by rising offset
  std::map<std::string, std::string> metadata;
};

// Reads and checks the header of a whole file. Costs memory in proportion to the tensors, not to
// what the header's JSON could be blown up to: it is read as a stream of events, and nothing that
// does not belong there is kept.
//
// Errors: INVALID_ARGUMENT naming tensor, field and byte offset, but not the file
absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(absl::Span<const std::byte> file);

// shape times dtype. Errors: INVALID_ARGUMENT unknown dtype, negative dimension, more than 2^63 - 1
// bytes
absl::StatusOr<int64_t> SafetensorsTensorBytes(absl::string_view dtype, const std::vector<int64_t>& shape);

// A name as an error shows it: quoted, escaped, cut.
std::string ShowTensorName(absl::string_view name);

}  // namespace eps

#endif  // EPS_COMMON_FORMATS_SAFETENSORS_HEADER_H_
