#include "eps_server/store/testing.h"

#include <algorithm>
#include <cstddef>

#include "absl/types/span.h"
#include "common/base/ids.h"
#include "common/base/status_macros.h"
#include "common/numeric/bf16.h"
#include "common/numeric/fp8_block.h"
#include "common/spec/moment_format.h"

namespace eps::server {

std::vector<std::byte> MomentOf(const Store& store, const BlobSpec& blob, int which) {
  std::vector<std::byte> moment;
  for (int64_t chunk = 0; chunk < blob.num_chunks(); ++chunk) {
    const int64_t num_elems = blob.chunk_elems(chunk);
    const int64_t num_bytes = MomentBytes(store.moment_format(), num_elems);
    std::vector<std::byte> state(static_cast<size_t>(4 * num_elems + store.num_moments() * num_bytes));
    const Version version(std::max<int64_t>(store.published(blob.id).value(), 0));
    EPS_CHECK(store.ReadChunk(blob.id, chunk, version, absl::MakeSpan(state)).ok());
    const auto begin = state.begin() + 4 * num_elems + which * num_bytes;
    moment.insert(moment.end(), begin, begin + num_bytes);
  }
  return moment;
}

std::vector<float> ReadMoment(const Store& store, const BlobSpec& blob, int which, int64_t first_elem,
                              int64_t num_elems) {
  const std::vector<std::byte> all = MomentOf(store, blob, which);
  const std::byte* const moment = all.data();
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
