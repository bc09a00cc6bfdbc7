#ifndef EPS_COMMON_FORMATS_WIRE_LAYOUT_H_
#define EPS_COMMON_FORMATS_WIRE_LAYOUT_H_

#include <cstdint>
#include <vector>

#include "common/base/ids.h"
#include "common/model/model_spec.h"
#include "common/tensor/dtype.h"

namespace eps {

// Where the wire forms lie in the daemon's wire segment: two buffers, one after the other, for the even and for the odd
// versions; in each, every blob in pull order, without a gap. A blob is a multiple of 64 elements, so each starts at a
// multiple of 128 bytes (bf16) or 256 (fp32).
class WireLayout {
 public:
  WireLayout(const ModelSpec& model, Dtype dtype) {
    for (const BlobSpec& blob : model.blobs) {
      offset_bytes_.push_back(buffer_bytes_);
      buffer_bytes_ += blob.num_elems * SizeOf(dtype);
    }
  }

  // `blob` is one of the model's, `version` at least 0.
  int64_t offset_bytes(BlobId blob, Version version) const {
    return (version.value() & 1) * buffer_bytes_ + offset_bytes_[static_cast<size_t>(blob.value())];
  }
  int64_t buffer_bytes() const { return buffer_bytes_; }
  int64_t segment_bytes() const { return 2 * buffer_bytes_; }

 private:
  std::vector<int64_t> offset_bytes_;  // within a buffer
  int64_t buffer_bytes_ = 0;
};

}  // namespace eps

#endif  // EPS_COMMON_FORMATS_WIRE_LAYOUT_H_
