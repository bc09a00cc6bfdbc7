#include "common/grpc/proto_text.h"

#include "common/base/utf8.h"

namespace eps {

std::string ProtoText(absl::string_view text, size_t max_bytes) {
  std::string copy;
  const absl::string_view well_formed = WellFormed(text, copy);
  if (well_formed.size() <= max_bytes) return std::string(well_formed);
  // Where a character begins that is not in it as a whole: the bytes that go on with one are 10xxxxxx.
  size_t num_bytes = max_bytes;
  while (num_bytes > 0 && (static_cast<unsigned char>(well_formed[num_bytes]) & 0xC0) == 0x80) --num_bytes;
  return std::string(well_formed.substr(0, num_bytes));
}

}  // namespace eps
