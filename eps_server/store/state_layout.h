#ifndef EPS_SERVER_STORE_STATE_LAYOUT_H_
#define EPS_SERVER_STORE_STATE_LAYOUT_H_

#include <cstdint>
#include <vector>

#include "common/model/model_spec.h"
#include "common/spec/moment_format.h"
#include "common/spec/run_config.h"
#include "common/tensor/dtype.h"
#include "eps_server/store/paged_memory.h"

namespace eps::server {

// What of a chunk only its update reads, as one page (PagedMemory): what its wire form lacks of the master, then its
// moments, each array from a multiple of 64 bytes on. Chunks come in pull order; frozen blobs have none.
class StateLayout {
 public:
  StateLayout(const ModelSpec& model, const RunConfig& run)
      : rest_bytes_(run.precision.wire == Dtype::kBf16  ? 2
                    : run.precision.wire == Dtype::kF16 ? 4
                                                        : 0),
        num_moments_(run.optimizer.num_moments()),
        moment_format_(run.precision.moments) {
    for (const BlobSpec& blob : model.blobs) {
      first_pages_.push_back(num_pages_);
      if (blob.frozen) continue;
      num_pages_ += blob.num_chunks();
      const int64_t last = blob.num_chunks() - 1;
      if (last > 0) pages_.push_back({.count = last, .num_bytes = page_bytes(kChunkElems)});
      pages_.push_back({.count = 1, .num_bytes = page_bytes(blob.chunk_elems(last))});
    }
  }

  const std::vector<PageRun>& pages() const { return pages_; }
  // Of a blob that is not frozen.
  int64_t page(BlobId blob, int64_t chunk) const { return first_pages_[static_cast<size_t>(blob.value())] + chunk; }

  // Of an element: 2 bytes with a bf16 wire (common/numeric/bf16.h), 4 with fp16 (the master itself), else 0.
  int64_t rest_bytes() const { return rest_bytes_; }
  // Of a chunk of so many elements.
  int64_t page_bytes(int64_t num_elems) const { return moment_offset(num_moments_, num_elems); }
  int64_t moment_offset(int which, int64_t num_elems) const {
    return rest_bytes_ * num_elems + which * ((MomentBytes(moment_format_, num_elems) + 63) / 64 * 64);
  }

 private:
  int64_t rest_bytes_;
  int num_moments_;
  MomentFormat moment_format_;
  int64_t num_pages_ = 0;
  std::vector<PageRun> pages_;
  std::vector<int64_t> first_pages_;  // by blob
};

}  // namespace eps::server

#endif  // EPS_SERVER_STORE_STATE_LAYOUT_H_
