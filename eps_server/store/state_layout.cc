#include "eps_server/store/state_layout.h"

#include <algorithm>
#include <limits>

namespace eps::server {

StateLayout::StateLayout(const ModelSpec& model, const RunConfig& run)
    : rest_bytes_(MasterRestBytes(run.precision.wire)),
      num_moments_(run.optimizer.num_moments()),
      moment_format_(run.precision.moments) {
  constexpr int64_t kAll = std::numeric_limits<int64_t>::max();
  LayOut(model, run.optimizer_offload.is_on() ? run.optimizer_offload.memory_bytes : kAll);
  const int64_t saved_bytes = total_rest_bytes() + total_moment_bytes() - resident_bytes();
  if (!pages_.empty() && ComputePagingSizes(pages_).memory_bytes() >= saved_bytes) LayOut(model, kAll);
}

void StateLayout::LayOut(const ModelSpec& model, int64_t memory_bytes) {
  num_elems_ = num_chunks_ = num_resident_elems_ = num_resident_chunks_ = 0;
  places_.clear();
  pages_.clear();
  for (const BlobSpec& blob : model.blobs) {
    places_.push_back({.first_chunk = num_chunks_, .first_elem = num_elems_, .num_elems = blob.num_elems});
    if (blob.frozen) continue;
    const int64_t last = blob.num_chunks() - 1;
    Add(last, kChunkElems, memory_bytes);
    Add(1, blob.chunk_elems(last), memory_bytes);
  }
}

void StateLayout::Add(int64_t count, int64_t chunk_elems, int64_t memory_bytes) {
  int64_t resident = 0;
  if (num_resident_chunks_ == num_chunks_) {  // those behind one that has no room have none
    const int64_t chunk_bytes = OffsetOfMoment(num_moments_, chunk_elems);
    resident = chunk_bytes == 0 ? count : std::min(count, (memory_bytes - resident_bytes()) / chunk_bytes);
  }
  num_chunks_ += count;
  num_elems_ += count * chunk_elems;
  num_resident_chunks_ += resident;
  num_resident_elems_ += resident * chunk_elems;
  const int64_t page_bytes = RoundUp(OffsetInPage(num_moments_, chunk_elems), 64);
  if (resident < count) pages_.push_back({.count = count - resident, .num_bytes = page_bytes});
}

}  // namespace eps::server
