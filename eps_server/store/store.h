#ifndef EPS_SERVER_STORE_STORE_H_
#define EPS_SERVER_STORE_STORE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/base/ids.h"
#include "common/ipc/shared_segment.h"
#include "common/model/model_spec.h"
#include "common/numeric/fp8_block.h"
#include "common/spec/moment_format.h"
#include "common/spec/run_config.h"
#include "common/tensor/dtype.h"
#include "eps_server/store/paged_memory.h"

namespace eps::server {

// What a parameter costs in the daemon's DRAM; eps plan prints it before anything is allocated.
//
//   wire bf16: 2 + 2 (two wire buffers) + 2 (the rest of the master, common/numeric/bf16.h) + moments
//   wire fp16: 2 + 2 + 4 (the master: no 16 bits beside such a wire form restore it) + moments
//   wire fp32: 4 + 4 (the wire form is the master) + moments
//   with one wire buffer (precision.wire_versions) its 2, or 4 with fp32, are there once
//   moments:   AdamW, Adam, LAMB 4 + 4 · Lion 4 · SGD 4 with momentum, else 0; in bf16 2 for each 4, in fp8 33/32
//
// With optimizer_offload the rest of the masters and the moments lie on a disk, but for what memory_bytes hold of them.
// A frozen one costs its wire form, once: a quantized one 33/32 or 17/32 bytes, and up to 255 a blob beside (WireLayout).
struct StoreSizes {
  int64_t wire_bytes = 0;       // all buffers, of what is trained
  int64_t frozen_bytes = 0;     // frozen blobs that are not quantized
  int64_t quantized_bytes = 0;  // those that are
  int64_t rest_bytes = 0;       // masters, less what the wire form holds of them
  int64_t moment_bytes = 0;
  int64_t offloaded_bytes = 0;  // of these two, that are not in memory
  int64_t frame_bytes = 0;      // memory through which those pass
  int64_t disk_bytes = 0;       // that the file takes for them
  int64_t weights_bytes() const { return wire_bytes + frozen_bytes + quantized_bytes; }
  // What of the two, and for it, is in memory.
  int64_t state_bytes() const { return rest_bytes + moment_bytes - offloaded_bytes + frame_bytes; }
  int64_t total_bytes() const { return weights_bytes() + state_bytes(); }
};
StoreSizes ComputeStoreSizes(const ModelSpec& model, const RunConfig& run);

// What fp8 holds of a rule's first or second moment (which: 0 or 1): the second is a mean of squares.
constexpr Fp8Kind KindOfMoment(int which) { return which == 0 ? Fp8Kind::kSigned : Fp8Kind::kPositive; }

// Raw memory of a chunk under update: what it reads at version s and what it writes for s + 1. Every
// array has num_elems elements; wire_in and wire_out are of wire_dtype, moments in moment_format. Owned by the store: rest,
// master and moments for as long as `page` lives, or, where that is null, as the chunk's lie in memory, the store.
struct ChunkState {
  Dtype wire_dtype = Dtype::kBf16;
  MomentFormat moment_format = MomentFormat::kFp32;
  const void* wire_in = nullptr;  // version s, buffer s mod 2
  void* wire_out = nullptr;       // version s + 1, the other buffer; or the same, where there is one
  uint16_t* rest = nullptr;       // bf16 wire only; read and written
  float* master = nullptr;        // fp16 wire only; read and written, and wire_in is not read
  void* moment1 = nullptr;        // AdamW's, Adam's, LAMB's and Lion's m, SGD's momentum; null if the rule has none
  void* moment2 = nullptr;        // AdamW's, Adam's and LAMB's v
  int64_t first_elem = 0;         // of the chunk, in its blob
  int64_t num_elems = 0;
  std::shared_ptr<std::byte> page;
};

// The model in DRAM: per blob the fp32 master, the optimizer's moments and two wire buffers. Version s is in
// buffer s mod 2, so step s's weights stay readable while s + 1 is being made.
//
// The fp32 master is kept as the current version's wire form and the bits that it lacks: exact, and 2 bytes
// less per parameter than a copy of its own, which only an fp16 wire needs. With one wire buffer
// (precision.wire_versions) an update writes where it reads, and version s is gone once it has begun. A frozen blob has
// one wire buffer, which is every version, and nothing beside it.
//
// Wire forms are always in memory. What updates alone read may lie on a disk (optimizer_offload), and then whatever loads,
// reads or updates masters and moments may fail: the first error is final, and what there is of the state as good as lost.
//
// Threads: all methods are safe. Readers of a published version take no lock while they read. A thread that holds a
// ChunkState asks for nothing else that may lie on a disk.
class Store {
 public:
  // Allocates everything (zeroed); versions start unpublished.
  // Errors: RESOURCE_EXHAUSTED, with what was needed · ScratchFile's, naming optimizer_offload.path
  static absl::StatusOr<std::unique_ptr<Store>> Create(const ModelSpec& model, const RunConfig& run);
  virtual ~Store() = default;

  virtual StoreSizes sizes() const = 0;
  virtual Dtype wire_dtype() const = 0;
  virtual int wire_versions() const = 0;  // wire buffers: 1 or 2

  // Sets the fp32 masters of a tensor (or any elements) of a blob that has no published version yet, for
  // `version`; moments likewise (which: 0 or 1), of a blob that is not frozen, rounded to moment_format: those in fp8
  // from a multiple of kFp8BlockElems, and what the last block lacks of values is as if zero. Padding of masters stays
  // zero. A frozen blob keeps the values rounded to the wire form, as a pull gives them; of a quantized one they come
  // from a multiple of kQuantizedBlockElems on, and what the last block lacks of values is as if zero.
  // Errors: the disk's, that the state lies on
  virtual absl::Status LoadMaster(BlobId blob, Version version, int64_t offset_elems,
                                  absl::Span<const float> values) = 0;
  virtual absl::Status LoadMoment(BlobId blob, int which, int64_t offset_elems, absl::Span<const float> values) = 0;

  // Makes `version` readable; wakes who waits for it. Versions of a blob are published in order.
  virtual void Publish(BlobId blob, Version version) = 0;
  // The newest published version; Version(-1) before the first.
  virtual Version published(BlobId blob) const = 0;

  // Calls `done` once `version` of `blob` is published (at once if it is), or cannot be read any more. Not under a
  // lock. `waiter`: an address of whoever waits, for GiveUpWaits; null for one that never gives up.
  // Errors: NOT_FOUND no such blob · INVALID_ARGUMENT a negative version · OUT_OF_RANGE beyond the one after the newest
  //         · ABORTED overwritten (older than the newest wire_versions()), or older than the first that was published ·
  //         CancelWaiters' status
  virtual void WhenPublished(BlobId blob, Version version, std::function<void(absl::Status)> done,
                             const void* waiter = nullptr) = 0;
  // Forgets the waits of `waiter` that are not over: their `done` is destroyed, and not called. One that is being
  // called meanwhile may go on after this returns.
  virtual void GiveUpWaits(const void* waiter) = 0;
  virtual int64_t num_waits() const = 0;  // that are not over
  // Ends every wait with `reason`, now and later.
  virtual void CancelWaiters(absl::Status reason) = 0;

  // The wire form of a published version, in place: valid until version + wire_versions() is being made. With two the
  // gate of the step (docs/architecture.md) puts that after every contribution of step `version` is in. With one the
  // update of the blob waits for the blob's contributions, and whoever computed them has read it.
  virtual absl::Span<const std::byte> Wire(BlobId blob, Version version) const = 0;
  // The memory of all wire forms, as WireLayout has it, for processes of this host; null where the system cannot share
  // memory.
  virtual const SharedSegment* wire_segment() const = 0;

  // The memory of one chunk for the update from `version` to version + 1. Of a blob that is not frozen, as CarryOver.
  // access: kRead of who writes nothing there, which spares a disk the writing.
  // Errors: the disk's, that the state lies on
  virtual absl::StatusOr<ChunkState> Chunk(BlobId blob, int64_t chunk, Version version,
                                           PagedMemory::Access access = PagedMemory::Access::kWrite) = 0;
  // Chunk, or ReadChunk, will be asked for soon, of several in pull order: what lies on a disk of it is read meanwhile.
  virtual void Prefetch(BlobId blob, int64_t chunk) const = 0;
  // Copies the wire form of `version` to version + 1's buffer: a step that changes nothing.
  virtual void CarryOver(BlobId blob, Version version) = 0;

  // For checkpoints: the fp32 master of `version` (the newest made), exact, of a frozen blob the values of its wire
  // form. The caller sees to it that the blob is not updated meanwhile.
  // Errors: the disk's, that the state lies on
  virtual absl::Status ReadMaster(BlobId blob, Version version, int64_t offset_elems,
                                  absl::Span<float> values) const = 0;
  // The same of all elements of a chunk of a blob that is not frozen, and then each moment, as it lies: MomentBytes.
  // state: as long as all of these, 4-byte aligned
  virtual absl::Status ReadChunk(BlobId blob, int64_t chunk, Version version, absl::Span<std::byte> state) const = 0;
  virtual int num_moments() const = 0;
  virtual MomentFormat moment_format() const = 0;

  virtual PagingCounts paging() const = 0;       // all 0 where nothing lies on a disk
  virtual absl::Status disk_status() const = 0;  // the disk's first error, if it had one
};

}  // namespace eps::server

#endif  // EPS_SERVER_STORE_STORE_H_
