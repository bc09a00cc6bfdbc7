#ifndef EPS_COMMON_FORMATS_WIRE_LAYOUT_H_
#define EPS_COMMON_FORMATS_WIRE_LAYOUT_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "common/base/byte_size.h"
#include "common/base/ids.h"
#include "common/base/status_macros.h"
#include "common/model/model_spec.h"
#include "common/tensor/dtype.h"

namespace eps {

// What lies where in the daemon's wire segment: two buffers, one after the other, for the even and for the odd
// versions, or one for all of them (precision.wire_versions); in each, the wire form of every blob that is not frozen,
// in pull order, without a gap; then that of the frozen ones, which all versions share. A blob is a multiple of 64
// elements, so each starts at a multiple of 128 bytes (bf16) or 256 (fp32), behind a quantized one too. Behind them the
// newest published version of each blob, int64, -1 before the first: who finds there the one that it wants need not
// ask.
class WireLayout {
 public:
  // wire_versions: 1 or 2
  WireLayout(const ModelSpec& model, Dtype dtype, int wire_versions) : num_buffers_(wire_versions) {
    EPS_CHECK(wire_versions == 1 || wire_versions == 2);
    for (const BlobSpec& blob : model.blobs) {
      int64_t& end_bytes = blob.frozen ? frozen_bytes_ : buffer_bytes_;
      places_.push_back({end_bytes, blob.frozen});
      end_bytes += TakenBytes(blob, dtype);
    }
  }

  // Of what lies behind a quantized blob: as it would have behind another one, of the widest dtype.
  static constexpr int64_t kAlignBytes = kTensorAlignElems * SizeOf(Dtype::kF32);

  // Of one version of a blob.
  static int64_t TakenBytes(const BlobSpec& blob, Dtype dtype) {
    return blob.is_quantized() ? RoundUp(blob.wire_bytes(dtype), kAlignBytes) : blob.wire_bytes(dtype);
  }

  // `blob` is one of the model's, `version` at least 0.
  int64_t offset_bytes(BlobId blob, Version version) const {
    const Place& place = places_[static_cast<size_t>(blob.value())];
    return place.offset_bytes + (place.frozen ? num_buffers_ : version.value() % num_buffers_) * buffer_bytes_;
  }
  int64_t weights_bytes() const { return num_buffers_ * buffer_bytes_ + frozen_bytes_; }
  int64_t segment_bytes() const { return weights_bytes() + static_cast<int64_t>(places_.size() * sizeof(int64_t)); }

  // The newest published version. `segment` has segment_bytes(), from a multiple of 8 on. Whoever reads a version there
  // sees what was written to the buffers before it was stored.
  static_assert(std::atomic_ref<int64_t>::is_always_lock_free, "processes share it");
  Version LoadPublished(absl::Span<const std::byte> segment, BlobId blob) const {
    // atomic_ref wants a mutable object even to read it; nothing is written.
    auto& version = *reinterpret_cast<int64_t*>(const_cast<std::byte*>(segment.data()) + published_offset(blob));
    return Version(std::atomic_ref(version).load(std::memory_order_acquire));
  }
  void StorePublished(absl::Span<std::byte> segment, BlobId blob, Version version) const {
    auto& place = *reinterpret_cast<int64_t*>(segment.data() + published_offset(blob));
    std::atomic_ref(place).store(version.value(), std::memory_order_release);
  }

 private:
  size_t published_offset(BlobId blob) const {
    return static_cast<size_t>(weights_bytes()) + static_cast<size_t>(blob.value()) * sizeof(int64_t);
  }

  struct Place {
    int64_t offset_bytes = 0;  // within a buffer, or among the frozen ones
    bool frozen = false;
  };
  int64_t num_buffers_;
  std::vector<Place> places_;  // by blob
  int64_t buffer_bytes_ = 0;   // of one
  int64_t frozen_bytes_ = 0;
};

}  // namespace eps

#endif  // EPS_COMMON_FORMATS_WIRE_LAYOUT_H_
