#include "eps_server/store/store.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/anonymous_memory.h"
#include "common/base/log.h"
#include "common/base/mutex.h"
#include "common/base/status_macros.h"
#include "common/formats/wire_layout.h"
#include "common/numeric/bf16.h"
#include "common/numeric/fp16.h"
#include "common/numeric/fp8_block.h"
#include "common/numeric/quantized.h"
#include "eps_server/store/paged_memory.h"
#include "eps_server/store/state_layout.h"

namespace eps::server {
namespace {

// What a model takes: the wire forms in memory that workers of this host can map, where the system can share memory, else
// in memory of our own; the rest as StateLayout has it.
struct StoreMemory {
  std::optional<SharedSegment> shared_wire;
  AnonymousMemory own_wire;
  AnonymousMemory resident;
  std::unique_ptr<PagedMemory> paged;  // null: all is resident

  // state: of the pages, if there are any
  static absl::StatusOr<StoreMemory> Map(const StoreSizes& sizes, const WireLayout& layout, int64_t resident_bytes,
                                         PagedMemory::Options state) {
    // Shared memory is promised whatever its size: so that a model far too large is refused here, and not by the
    // out-of-memory killer, the system is asked for as much of our own first.
    EPS_RETURN_IF_ERROR(AnonymousMemory::Map(sizes.total_bytes(), kWhat).status());
    StoreMemory memory;
    auto wire = SharedSegment::Create("eps-weights", layout.segment_bytes(), SegmentWriter::kCreator);
    if (absl::IsUnimplemented(wire.status())) {
      EPS_ASSIGN_OR_RETURN(memory.own_wire, AnonymousMemory::Map(sizes.weights_bytes(), kWhat));
    } else {
      EPS_RETURN_IF_ERROR_WITH(wire.status(), kWhat);
      memory.shared_wire.emplace(*std::move(wire));
    }
    EPS_ASSIGN_OR_RETURN(memory.resident, AnonymousMemory::Map(resident_bytes, kWhat));
    if (state.pages.empty()) return memory;
    absl::StatusOr<std::unique_ptr<PagedMemory>> paged = PagedMemory::Create(std::move(state));
    if (!paged.ok() && !absl::IsResourceExhausted(paged.status())) {
      return Annotate(paged.status(), "optimizer_offload.path");
    }
    EPS_ASSIGN_OR_RETURN(memory.paged, std::move(paged));
    return memory;
  }
  static constexpr char kWhat[] = "model state";
};

// Where a blob lies.
struct BlobMemory {
  std::byte* wire[2] = {nullptr, nullptr};  // the same one twice where there is one: frozen, wire_versions
  int64_t num_elems = 0;
  int64_t wire_bytes = 0;  // of one of them
  bool frozen = false;
  std::optional<QuantizedFormat> quantized;  // BlobSpec's
};

// A chunk's part of each array, for as long as `page` lives.
struct ChunkArrays {
  std::byte* rest = nullptr;  // bf16: what the wire form lacks; fp16: the master; fp32: nothing is there
  std::array<std::byte*, 2> moments = {nullptr, nullptr};
  std::shared_ptr<std::byte> page;  // null: resident
};

// Behind each tensor is padding, of which zeroed memory is not the split form of 0, as its rest is not 0. Whole tensors
// come with LoadMaster.
class Padding {
 public:
  Padding(const ModelSpec& model, const StateLayout& layout) {
    for (const BlobSpec& blob : model.blobs) {
      for (size_t t = 0; t < blob.tensors.size() && !blob.frozen; ++t) {
        const int64_t begin = blob.tensors[t].offset_elems + blob.tensors[t].num_elems();
        const int64_t end = t + 1 < blob.tensors.size() ? blob.tensors[t + 1].offset_elems : blob.num_elems;
        for (int64_t chunk = begin / kChunkElems; chunk * kChunkElems < end; ++chunk) {
          const int64_t first = chunk * kChunkElems;
          of_chunk_[layout.Index(blob.id, chunk)].push_back(
              {std::max(begin - first, int64_t{0}), std::min(end - first, kChunkElems)});
        }
      }
    }
  }

  // rest: of all elements of a chunk, which StateLayout counts
  void Zero(int64_t chunk_index, std::byte* rest) const {
    const auto gaps = of_chunk_.find(chunk_index);
    if (gaps == of_chunk_.end()) return;
    auto* const values = reinterpret_cast<uint16_t*>(rest);
    for (const Gap& gap : gaps->second) std::fill(values + gap.begin, values + gap.end, Split(0.0f).rest);
  }

 private:
  struct Gap {
    int64_t begin, end;  // elements of the chunk
  };
  std::map<int64_t, std::vector<Gap>> of_chunk_;
};

class StoreImpl final : public Store {
 public:
  StoreImpl(const ModelSpec& model, const RunConfig& run, StoreMemory memory)
      : sizes_(ComputeStoreSizes(model, run)),
        layout_(model, run.precision.wire, run.precision.wire_versions),
        state_layout_(model, run),
        wire_dtype_(run.precision.wire),
        wire_versions_(run.precision.wire_versions),
        num_moments_(run.optimizer.num_moments()),
        moment_format_(run.precision.moments),
        memory_(std::move(memory)),
        states_(model.blobs.size()) {
    LayOut(model);
    if (wire_dtype_ == Dtype::kBf16) ZeroResidentPadding(model);
  }

  StoreSizes sizes() const override { return sizes_; }
  Dtype wire_dtype() const override { return wire_dtype_; }
  int wire_versions() const override { return wire_versions_; }
  int num_moments() const override { return num_moments_; }
  MomentFormat moment_format() const override { return moment_format_; }

  absl::Status LoadMaster(BlobId blob, Version version, int64_t offset_elems, absl::Span<const float> values) override {
    const BlobMemory& at = Range(blob, offset_elems, static_cast<int64_t>(values.size()));
    EPS_CHECK(published(blob) < version);
    std::byte* wire = at.wire[version.value() & 1];
    if (at.quantized.has_value()) {
      EPS_CHECK(offset_elems % kQuantizedBlockElems == 0);
      EncodeQuantized(*at.quantized, values, offset_elems, at.num_elems, wire);
      return absl::OkStatus();
    }
    if (wire_dtype_ == Dtype::kF32) {
      std::copy(values.begin(), values.end(), reinterpret_cast<float*>(wire) + offset_elems);
      return absl::OkStatus();
    }
    uint16_t* high = reinterpret_cast<uint16_t*>(wire) + offset_elems;
    if (at.frozen) {
      const bool is_fp16 = wire_dtype_ == Dtype::kF16;
      for (size_t i = 0; i < values.size(); ++i) {
        high[i] = is_fp16 ? ToFp16(values[i]).bits : Split(values[i]).wire.bits;
      }
      return absl::OkStatus();
    }
    return EachChunk(blob, offset_elems, values.size(), PagedMemory::Access::kWrite, [&](const PartOfChunk& part) {
      uint16_t* const part_high = high + part.first_value;
      const absl::Span<const float> part_values = values.subspan(part.first_value, part.num_values);
      if (wire_dtype_ == Dtype::kF16) {
        std::copy(part_values.begin(), part_values.end(), reinterpret_cast<float*>(part.arrays.rest) + part.first_elem);
        for (size_t i = 0; i < part_values.size(); ++i) part_high[i] = ToFp16(part_values[i]).bits;
        return;
      }
      uint16_t* const low = reinterpret_cast<uint16_t*>(part.arrays.rest) + part.first_elem;
      for (size_t i = 0; i < part_values.size(); ++i) {
        const SplitFloat split = Split(part_values[i]);
        part_high[i] = split.wire.bits;
        low[i] = split.rest;
      }
    });
  }

  absl::Status LoadMoment(BlobId blob, int which, int64_t offset_elems, absl::Span<const float> values) override {
    const BlobMemory& at = Range(blob, offset_elems, static_cast<int64_t>(values.size()));
    EPS_CHECK(which >= 0 && which < num_moments_ && !at.frozen);
    EPS_CHECK(moment_format_ != MomentFormat::kFp8 || offset_elems % kFp8BlockElems == 0);
    return EachChunk(blob, offset_elems, values.size(), PagedMemory::Access::kWrite, [&](const PartOfChunk& part) {
      const absl::Span<const float> part_values = values.subspan(part.first_value, part.num_values);
      std::byte* const moment =
          part.arrays.moments[static_cast<size_t>(which)] + MomentBytes(moment_format_, part.first_elem);
      switch (moment_format_) {
        case MomentFormat::kFp32:
          std::copy(part_values.begin(), part_values.end(), reinterpret_cast<float*>(moment));
          return;
        case MomentFormat::kBf16:
          std::transform(part_values.begin(), part_values.end(), reinterpret_cast<uint16_t*>(moment),
                         [](float value) { return ToBf16(value).bits; });
          return;
        case MomentFormat::kFp8:
          EncodeFp8(KindOfMoment(which), part_values, moment);
      }
    });
  }

  void Publish(BlobId blob, Version version) override {
    std::vector<Waiter> ready;
    Version first;
    {
      MutexLock lock(mu_);
      State& state = states_[Index(blob)];
      EPS_CHECK(state.published.value() < 0 || version.value() == state.published.value() + 1);
      if (state.published.value() < 0) state.first = version;
      state.published = version;
      if (memory_.shared_wire.has_value()) layout_.StorePublished(memory_.shared_wire->bytes(), blob, version);
      auto waits_on = std::partition(state.waiters.begin(), state.waiters.end(),
                                     [&](const Waiter& waiter) { return waiter.version > version; });
      std::move(waits_on, state.waiters.end(), std::back_inserter(ready));
      state.waiters.erase(waits_on, state.waiters.end());
      first = state.first;
    }
    for (const Waiter& waiter : ready) waiter.done(Readable(blob, waiter.version, first, version));
  }

  Version published(BlobId blob) const override {
    MutexLock lock(mu_);
    return states_[Index(blob)].published;
  }

  void WhenPublished(BlobId blob, Version version, std::function<void(absl::Status)> done,
                     const void* waiter) override {
    absl::Status status;
    {
      MutexLock lock(mu_);
      if (blob.value() < 0 || static_cast<size_t>(blob.value()) >= blobs_.size()) {
        status = absl::NotFoundError(absl::StrCat("blob: ", blob.value(), ", there are ", blobs_.size()));
      } else if (version.value() < 0) {
        status = absl::InvalidArgumentError(absl::StrCat("version: ", version.value(), ", must be at least 0"));
      } else {
        State& state = states_[Index(blob)];
        if (version <= state.published) {
          status = Readable(blob, version, state.first, state.published);
        } else if (!cancelled_.ok()) {
          status = cancelled_;
        } else if (state.published.value() >= 0 && version.value() > state.published.value() + 1) {
          // No worker works two steps ahead, and what waits is kept: a bound on what strangers can make of it.
          status = absl::OutOfRangeError(absl::StrCat("version: ", version.value(), ", the newest is ",
                                                      state.published.value(), " and only the next can be awaited"));
        } else {
          state.waiters.push_back({version, std::move(done), waiter});
          return;
        }
      }
    }
    done(status);
  }

  void GiveUpWaits(const void* waiter) override {
    EPS_CHECK(waiter != nullptr);
    std::vector<Waiter> given_up;  // destroyed without the lock: with each goes what it holds
    MutexLock lock(mu_);
    for (State& state : states_) {
      auto of_waiter = std::partition(state.waiters.begin(), state.waiters.end(),
                                      [&](const Waiter& other) { return other.who != waiter; });
      std::move(of_waiter, state.waiters.end(), std::back_inserter(given_up));
      state.waiters.erase(of_waiter, state.waiters.end());
    }
  }

  int64_t num_waits() const override {
    MutexLock lock(mu_);
    int64_t waits = 0;
    for (const State& state : states_) waits += static_cast<int64_t>(state.waiters.size());
    return waits;
  }

  void CancelWaiters(absl::Status reason) override {
    std::vector<Waiter> ended;
    {
      MutexLock lock(mu_);
      if (!cancelled_.ok()) return;  // the first reason is the cause
      cancelled_ = reason;
      for (State& state : states_) {
        std::move(state.waiters.begin(), state.waiters.end(), std::back_inserter(ended));
        state.waiters.clear();
      }
    }
    for (const Waiter& waiter : ended) waiter.done(reason);
  }

  absl::Span<const std::byte> Wire(BlobId blob, Version version) const override {
    const BlobMemory& at = blobs_[Index(blob)];
    return {at.wire[version.value() & 1], static_cast<size_t>(at.wire_bytes)};
  }

  const SharedSegment* wire_segment() const override {
    return memory_.shared_wire.has_value() ? &*memory_.shared_wire : nullptr;
  }

  absl::StatusOr<ChunkState> Chunk(BlobId blob, int64_t chunk, Version version, PagedMemory::Access access) override {
    const BlobMemory& at = blobs_[Index(blob)];
    EPS_CHECK(IsOf(at, chunk));
    const int64_t first = chunk * kChunkElems;
    const int64_t wire_offset = first * SizeOf(wire_dtype_);
    ChunkState state;
    state.wire_dtype = wire_dtype_;
    state.wire_in = at.wire[version.value() & 1] + wire_offset;
    state.wire_out = at.wire[(version.value() + 1) & 1] + wire_offset;
    state.moment_format = moment_format_;
    state.first_elem = first;
    state.num_elems = std::min(kChunkElems, at.num_elems - first);
    EPS_ASSIGN_OR_RETURN(ChunkArrays arrays, Open(blob, chunk, access));
    if (wire_dtype_ == Dtype::kBf16) state.rest = reinterpret_cast<uint16_t*>(arrays.rest);
    if (wire_dtype_ == Dtype::kF16) state.master = reinterpret_cast<float*>(arrays.rest);
    if (num_moments_ > 0) state.moment1 = arrays.moments[0];
    if (num_moments_ > 1) state.moment2 = arrays.moments[1];
    state.page = std::move(arrays.page);
    return state;
  }

  void Prefetch(BlobId blob, int64_t chunk) const override {
    EPS_CHECK(IsOf(blobs_[Index(blob)], chunk));
    if (!state_layout_.is_resident(blob, chunk)) memory_.paged->Prefetch(state_layout_.page(blob, chunk));
  }
  PagingCounts paging() const override { return memory_.paged != nullptr ? memory_.paged->counts() : PagingCounts(); }
  absl::Status disk_status() const override {
    return memory_.paged != nullptr ? OfDisk(memory_.paged->status()) : absl::OkStatus();
  }

  void CarryOver(BlobId blob, Version version) override {
    const BlobMemory& at = blobs_[Index(blob)];
    EPS_CHECK(!at.frozen);
    if (wire_versions_ == 1) return;
    memcpy(at.wire[(version.value() + 1) & 1], at.wire[version.value() & 1], static_cast<size_t>(at.wire_bytes));
  }

  absl::Status ReadMaster(BlobId blob, Version version, int64_t offset_elems, absl::Span<float> values) const override {
    const BlobMemory& at = Range(blob, offset_elems, static_cast<int64_t>(values.size()));
    const std::byte* wire = at.wire[version.value() & 1];
    if (at.quantized.has_value()) {
      DecodeQuantized(*at.quantized, wire, offset_elems, at.num_elems, values);
      return absl::OkStatus();
    }
    if (wire_dtype_ == Dtype::kF32) {
      std::copy_n(reinterpret_cast<const float*>(wire) + offset_elems, values.size(), values.begin());
      return absl::OkStatus();
    }
    const uint16_t* high = reinterpret_cast<const uint16_t*>(wire) + offset_elems;
    if (at.frozen) {
      const bool is_fp16 = wire_dtype_ == Dtype::kF16;
      for (size_t i = 0; i < values.size(); ++i) values[i] = is_fp16 ? ToFloat(Fp16{high[i]}) : ToFloat(Bf16{high[i]});
      return absl::OkStatus();
    }
    return EachChunk(blob, offset_elems, values.size(), PagedMemory::Access::kRead, [&](const PartOfChunk& part) {
      Join(part, high + part.first_value, values.subspan(part.first_value, part.num_values));
    });
  }

  absl::Status ReadChunk(BlobId blob, int64_t chunk, Version version, absl::Span<std::byte> state) const override {
    const BlobMemory& at = blobs_[Index(blob)];
    EPS_CHECK(IsOf(at, chunk));
    const int64_t first = chunk * kChunkElems;
    const int64_t num_elems = std::min(kChunkElems, at.num_elems - first);
    const auto moment_bytes = static_cast<size_t>(MomentBytes(moment_format_, num_elems));
    const size_t master_bytes = static_cast<size_t>(num_elems) * sizeof(float);
    EPS_CHECK(state.size() == master_bytes + static_cast<size_t>(num_moments_) * moment_bytes);
    EPS_ASSIGN_OR_RETURN(const ChunkArrays arrays, Open(blob, chunk, PagedMemory::Access::kRead));
    const std::byte* const wire = at.wire[version.value() & 1] + first * SizeOf(wire_dtype_);
    if (wire_dtype_ == Dtype::kF32) {
      std::memcpy(state.data(), wire, master_bytes);
    } else {
      Join({.arrays = arrays}, reinterpret_cast<const uint16_t*>(wire),
           {reinterpret_cast<float*>(state.data()), static_cast<size_t>(num_elems)});
    }
    for (int which = 0; which < num_moments_; ++which) {
      std::memcpy(state.data() + master_bytes + static_cast<size_t>(which) * moment_bytes,
                  arrays.moments[static_cast<size_t>(which)], moment_bytes);
    }
    return absl::OkStatus();
  }

 private:
  struct Waiter {
    Version version;
    std::function<void(absl::Status)> done;
    const void* who = nullptr;
  };
  struct State {
    Version first = Version(-1);  // that was published: the other buffer held nothing before it
    Version published = Version(-1);
    std::vector<Waiter> waiters;
  };

  void LayOut(const ModelSpec& model) {
    EPS_CHECK(layout_.weights_bytes() == sizes_.weights_bytes());
    const bool shared = memory_.shared_wire.has_value();
    std::byte* const wire = shared ? memory_.shared_wire->bytes().data() : memory_.own_wire.base();
    blobs_.resize(model.blobs.size());
    for (size_t b = 0; b < blobs_.size(); ++b) {
      blobs_[b].num_elems = model.blobs[b].num_elems;
      blobs_[b].wire_bytes = model.blobs[b].wire_bytes(wire_dtype_);
      blobs_[b].frozen = model.blobs[b].frozen;
      blobs_[b].quantized = model.blobs[b].quantized;
      for (int i = 0; i < 2; ++i) {
        blobs_[b].wire[i] = wire + layout_.offset_bytes(BlobId(static_cast<int32_t>(b)), Version(i));
      }
    }
    for (const BlobSpec& blob : model.blobs) {
      if (shared) layout_.StorePublished(memory_.shared_wire->bytes(), blob.id, Version(-1));
    }
  }

  void ZeroResidentPadding(const ModelSpec& model) {
    const Padding padding(model, state_layout_);
    for (const BlobSpec& blob : model.blobs) {
      for (int64_t chunk = 0; chunk < blob.num_chunks() && !blob.frozen; ++chunk) {
        if (!state_layout_.is_resident(blob.id, chunk)) return;  // nor is any behind it
        padding.Zero(state_layout_.Index(blob.id, chunk),
                     memory_.resident.base() + state_layout_.rest_offset(blob.id, chunk));
      }
    }
  }

  static bool IsOf(const BlobMemory& blob, int64_t chunk) {
    return chunk >= 0 && chunk * kChunkElems < blob.num_elems && !blob.frozen;
  }
  static absl::Status OfDisk(const absl::Status& status) { return Annotate(status, "optimizer_offload.path"); }

  absl::StatusOr<ChunkArrays> Open(BlobId blob, int64_t chunk, PagedMemory::Access access) const {
    ChunkArrays arrays;
    std::byte* memory = memory_.resident.base();
    if (!state_layout_.is_resident(blob, chunk)) {
      absl::StatusOr<std::shared_ptr<std::byte>> page = memory_.paged->Open(state_layout_.page(blob, chunk), access);
      if (!page.ok()) return OfDisk(page.status());
      arrays.page = *std::move(page);
      memory = arrays.page.get();
    }
    arrays.rest = memory + state_layout_.rest_offset(blob, chunk);
    for (int i = 0; i < num_moments_; ++i) {
      arrays.moments[static_cast<size_t>(i)] = memory + state_layout_.moment_offset(blob, chunk, i);
    }
    return arrays;
  }

  // Some elements of a chunk, as part of a row of values.
  struct PartOfChunk {
    ChunkArrays arrays;
    int64_t first_elem = 0;  // of the chunk
    size_t first_value = 0, num_values = 0;
  };
  // Calls use(part) of each chunk that has some of the blob's elements from offset_elems on.
  template <typename Use>
  absl::Status EachChunk(BlobId blob, int64_t offset_elems, size_t num_values, PagedMemory::Access access,
                         const Use& use) const {
    const int64_t blob_elems = blobs_[Index(blob)].num_elems;
    for (size_t done = 0; done < num_values;) {
      const int64_t elem = offset_elems + static_cast<int64_t>(done);
      const int64_t chunk = elem / kChunkElems;
      PartOfChunk part{.first_elem = elem % kChunkElems, .first_value = done};
      const int64_t chunk_elems = std::min(kChunkElems, blob_elems - chunk * kChunkElems);
      part.num_values = std::min(num_values - done, static_cast<size_t>(chunk_elems - part.first_elem));
      EPS_ASSIGN_OR_RETURN(part.arrays, Open(blob, chunk, access));
      use(part);
      done += part.num_values;
    }
    return absl::OkStatus();
  }

  // The masters of a chunk's elements, whose 16-bit wire forms are `high`.
  void Join(const PartOfChunk& part, const uint16_t* high, absl::Span<float> masters) const {
    if (wire_dtype_ == Dtype::kF16) {
      std::copy_n(reinterpret_cast<const float*>(part.arrays.rest) + part.first_elem, masters.size(), masters.begin());
      return;
    }
    const uint16_t* const low = reinterpret_cast<const uint16_t*>(part.arrays.rest) + part.first_elem;
    for (size_t i = 0; i < masters.size(); ++i) masters[i] = eps::Join({{high[i]}, low[i]});
  }

  size_t Index(BlobId blob) const {
    EPS_CHECK(blob.value() >= 0 && static_cast<size_t>(blob.value()) < blobs_.size());
    return static_cast<size_t>(blob.value());
  }
  const BlobMemory& Range(BlobId blob, int64_t offset_elems, int64_t num_elems) const {
    const BlobMemory& at = blobs_[Index(blob)];
    EPS_CHECK(offset_elems >= 0 && num_elems >= 0 && num_elems <= at.num_elems - offset_elems);
    return at;
  }
  absl::Status Readable(BlobId blob, Version version, Version first, Version newest) const {
    if (version < first) {
      return absl::AbortedError(absl::StrCat("version ", version.value(), " of blob ", blob.value(),
                                             " was never here; the first is ", first.value()));
    }
    if (version.value() > newest.value() - wire_versions_) return absl::OkStatus();
    return absl::AbortedError(absl::StrCat("version ", version.value(), " of blob ", blob.value(),
                                           " was overwritten; the newest is ", newest.value()));
  }

  // Fixed after construction.
  const StoreSizes sizes_;
  const WireLayout layout_;
  const StateLayout state_layout_;
  const Dtype wire_dtype_;
  const int wire_versions_;
  const int num_moments_;
  const MomentFormat moment_format_;
  const StoreMemory memory_;
  std::vector<BlobMemory> blobs_;

  mutable Mutex mu_;
  std::vector<State> states_ ABSL_GUARDED_BY(mu_);  // its length is fixed
  absl::Status cancelled_ ABSL_GUARDED_BY(mu_);
};

}  // namespace

StoreSizes ComputeStoreSizes(const ModelSpec& model, const RunConfig& run) {
  const Dtype wire = run.precision.wire;
  StoreSizes sizes;
  sizes.wire_bytes = run.precision.wire_versions * model.num_trainable_elems() * SizeOf(wire);
  for (const BlobSpec& blob : model.blobs) {
    if (!blob.frozen) continue;
    (blob.is_quantized() ? sizes.quantized_bytes : sizes.frozen_bytes) += WireLayout::TakenBytes(blob, wire);
  }
  const StateLayout layout(model, run);
  sizes.rest_bytes = layout.total_rest_bytes();
  sizes.moment_bytes = layout.total_moment_bytes();
  sizes.offloaded_bytes = sizes.rest_bytes + sizes.moment_bytes - layout.resident_bytes();
  const PagingSizes paging = ComputePagingSizes(layout.pages());
  sizes.frame_bytes = paging.memory_bytes();
  sizes.disk_bytes = paging.disk_bytes;
  return sizes;
}

absl::StatusOr<std::unique_ptr<Store>> Store::Create(const ModelSpec& model, const RunConfig& run) {
  for (const BlobSpec& blob : model.blobs) EPS_CHECK(blob.num_elems > 0 && blob.num_elems % kTensorAlignElems == 0);
  const StateLayout layout(model, run);
  if (run.optimizer_offload.is_on() && layout.pages().empty()) {
    LogInfo("offload_not_used", {{"path", run.optimizer_offload.path},
                                 {"why", "all of the state stays in memory, of which no less would be taken"}});
  }
  PagedMemory::Options state{.what = StoreMemory::kWhat, .pages = layout.pages(), .folder = run.optimizer_offload.path};
  if (run.precision.wire == Dtype::kBf16 && !state.pages.empty()) {
    state.initialize = [padding = Padding(model, layout), first = layout.num_resident_chunks()](
                           int64_t page, std::byte* memory) { padding.Zero(first + page, memory); };
  }
  EPS_ASSIGN_OR_RETURN(StoreMemory memory,
                       StoreMemory::Map(ComputeStoreSizes(model, run),
                                        WireLayout(model, run.precision.wire, run.precision.wire_versions),
                                        layout.resident_bytes(), std::move(state)));
  return std::make_unique<StoreImpl>(model, run, std::move(memory));
}

}  // namespace eps::server
