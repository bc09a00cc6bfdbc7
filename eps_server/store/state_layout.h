#ifndef EPS_SERVER_STORE_STATE_LAYOUT_H_
#define EPS_SERVER_STORE_STATE_LAYOUT_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/base/byte_size.h"
#include "common/base/ids.h"
#include "common/model/model_spec.h"
#include "common/spec/moment_format.h"
#include "common/spec/run_config.h"
#include "eps_server/store/paged_memory.h"

namespace eps::server {

// Where what updates alone read lies: what wire forms lack of the masters (the rest), and moments. Chunks are counted in
// pull order, without those of frozen blobs. The first ones are resident: as many as optimizer_offload.memory_bytes hold,
// or all of them, as without it, where the frames of a PagedMemory would take as much as it saves: array after array, each over all of them, so that what nobody has written yet, as
// moments before the first update, takes no memory. Each of the others is a page of a PagedMemory, with its own part of
// every array, each from a multiple of 64 bytes on.
class StateLayout {
 public:
  StateLayout(const ModelSpec& model, const RunConfig& run);

  int64_t num_resident_chunks() const { return num_resident_chunks_; }
  int64_t resident_bytes() const { return OffsetOfMoment(num_moments_, num_resident_elems_); }
  // Of all chunks, wherever they lie.
  int64_t total_rest_bytes() const { return num_elems_ * rest_bytes_; }
  int64_t total_moment_bytes() const { return num_moments_ * MomentBytes(moment_format_, num_elems_); }
  const std::vector<PageRun>& pages() const { return pages_; }

  // A chunk of a blob that is not frozen, in the order above.
  int64_t Index(BlobId blob, int64_t chunk) const { return at(blob).first_chunk + chunk; }
  bool is_resident(BlobId blob, int64_t chunk) const { return Index(blob, chunk) < num_resident_chunks_; }
  // Of one that is not resident.
  int64_t page(BlobId blob, int64_t chunk) const { return Index(blob, chunk) - num_resident_chunks_; }

  // Where the chunk's part of an array begins: of one that is resident in the memory of those, else in its page.
  int64_t rest_offset(BlobId blob, int64_t chunk) const {
    return is_resident(blob, chunk) ? FirstElem(blob, chunk) * rest_bytes_ : 0;
  }
  int64_t moment_offset(BlobId blob, int64_t chunk, int which) const {
    if (!is_resident(blob, chunk)) return OffsetInPage(which, ChunkElems(blob, chunk));
    return OffsetOfMoment(which, num_resident_elems_) + MomentBytes(moment_format_, FirstElem(blob, chunk));
  }

 private:
  struct Place {
    int64_t first_chunk = 0, first_elem = 0;  // among those that are not frozen
    int64_t num_elems = 0;
  };
  const Place& at(BlobId blob) const { return places_[static_cast<size_t>(blob.value())]; }
  int64_t FirstElem(BlobId blob, int64_t chunk) const { return at(blob).first_elem + chunk * kChunkElems; }
  int64_t ChunkElems(BlobId blob, int64_t chunk) const {
    return std::min(kChunkElems, at(blob).num_elems - chunk * kChunkElems);
  }
  // Behind the rest and so many moments of so many elements.
  int64_t OffsetOfMoment(int which, int64_t num_elems) const {
    return rest_bytes_ * num_elems + which * MomentBytes(moment_format_, num_elems);
  }
  int64_t OffsetInPage(int which, int64_t num_elems) const {
    return rest_bytes_ * num_elems + which * RoundUp(MomentBytes(moment_format_, num_elems), 64);
  }
  // Lays all of the model out.
  void LayOut(const ModelSpec& model, int64_t memory_bytes);
  // The next `count` chunks, of so many elements each.
  void Add(int64_t count, int64_t chunk_elems, int64_t memory_bytes);

  int64_t rest_bytes_;  // MasterRestBytes
  int num_moments_;
  MomentFormat moment_format_;
  int64_t num_elems_ = 0, num_chunks_ = 0;
  int64_t num_resident_elems_ = 0, num_resident_chunks_ = 0;
  std::vector<Place> places_;  // by blob
  std::vector<PageRun> pages_;
};

}  // namespace eps::server

#endif  // EPS_SERVER_STORE_STATE_LAYOUT_H_
