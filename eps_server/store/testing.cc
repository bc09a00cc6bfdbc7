#include "eps_server/store/testing.h"

#include <cstddef>

#include "absl/types/span.h"
#include "common/numeric/bf16.h"
#include "common/numeric/fp8_block.h"
#include "common/spec/moment_format.h"

namespace eps::server {

std::vector<float> ReadMoment(const Store& store, BlobId blob, int which, int64_t first_elem, int64_t num_elems) {
  const std::byte* const moment = store.Moment(blob, which).data();
  std::vector<float> values;
  for (int64_t i = first_elem; i < first_elem + num_elems; ++i) {
    if (store.moment_format() == MomentFormat::kFp32) {
      values.push_back(reinterpret_cast<const float*>(moment)[i]);
      continue;
    }
    Bf16 value;
    if (store.moment_format() == MomentFormat::kFp8) {
      DecodeFp8(KindOfMoment(which), moment, i, absl::MakeSpan(&value, 1));
    } else {
      value = Bf16{reinterpret_cast<const uint16_t*>(moment)[i]};
    }
    values.push_back(ToFloat(value));
  }
  return values;
}

}  // namespace eps::server
