#include "eps_server/store/testing.h"

#include <cstddef>

#include "absl/types/span.h"
#include "common/numeric/bf16.h"
#include "common/tensor/dtype.h"

namespace eps::server {

std::vector<float> ReadMoment(const Store& store, BlobId blob, int which, int64_t first_elem, int64_t num_elems) {
  const absl::Span<const std::byte> moment = store.Moment(blob, which);
  std::vector<float> values;
  for (int64_t i = first_elem; i < first_elem + num_elems; ++i) {
    values.push_back(store.moment_dtype() == Dtype::kF32
                         ? reinterpret_cast<const float*>(moment.data())[i]
                         : ToFloat(Bf16{reinterpret_cast<const uint16_t*>(moment.data())[i]}));
  }
  return values;
}

}  // namespace eps::server
