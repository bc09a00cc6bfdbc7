#include "eps_server/store/store.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/anonymous_memory.h"
#include "common/base/mutex.h"
#include "common/base/status_macros.h"
#include "common/formats/wire_layout.h"
#include "common/numeric/bf16.h"
#include "common/numeric/fp16.h"
#include "common/numeric/fp8_block.h"
#include "common/numeric/mx_int8.h"

namespace eps::server {
namespace {

// What a model takes: the wire forms in memory that workers of this host can map, the rest in memory of our own. Where
// the system cannot share memory the wire forms lie before the rest.
struct StoreMemory {
  std::optional<SharedSegment> wire;
  AnonymousMemory rest;

  static absl::StatusOr<StoreMemory> Map(const StoreSizes& sizes, const WireLayout& layout) {
    // Shared memory is promised whatever its size: so that a model far too large is refused here, and not by the
    // out-of-memory killer, the system is asked for as much of our own first.
    EPS_ASSIGN_OR_RETURN(AnonymousMemory all, AnonymousMemory::Map(sizes.total_bytes(), "model state"));
    auto wire = SharedSegment::Create("eps-weights", layout.segment_bytes(), SegmentWriter::kCreator);
    if (absl::IsUnimplemented(wire.status())) return StoreMemory{std::nullopt, std::move(all)};
    EPS_RETURN_IF_ERROR_WITH(wire.status(), "model state");
    if (sizes.total_bytes() == sizes.weights_bytes()) return StoreMemory{*std::move(wire), AnonymousMemory()};
    all = AnonymousMemory();
    EPS_ASSIGN_OR_RETURN(AnonymousMemory rest,
                         AnonymousMemory::Map(sizes.total_bytes() - sizes.weights_bytes(), "model state"));
    return StoreMemory{*std::move(wire), std::move(rest)};
  }
};

// Where a blob lies. Every array but moments in fp8 starts at a multiple of 64 bytes, as blobs are multiples of 64
// elements.
struct BlobMemory {
  std::byte* wire[2] = {nullptr, nullptr};  // the same one twice where there is one: frozen, wire_versions
  uint16_t* rest = nullptr;                 // bf16 wire only
  float* master = nullptr;                  // fp16 wire only
  std::byte* moments[2] = {nullptr, nullptr};
  int64_t num_elems = 0;
  int64_t wire_bytes = 0;  // of one of them
  bool frozen = false, quantized = false;
};

class StoreImpl final : public Store {
 public:
  StoreImpl(const ModelSpec& model, const RunConfig& run, StoreMemory memory)
      : sizes_(ComputeStoreSizes(model, run)),
        layout_(model, run.precision.wire, run.precision.wire_versions),
        wire_dtype_(run.precision.wire),
        wire_versions_(run.precision.wire_versions),
        num_moments_(run.optimizer.num_moments()),
        moment_format_(run.precision.moments),
        memory_(std::move(memory)),
        states_(model.blobs.size()) {
    LayOut(model);
  }

  StoreSizes sizes() const override { return sizes_; }
  Dtype wire_dtype() const override { return wire_dtype_; }
  int wire_versions() const override { return wire_versions_; }
  int num_moments() const override { return num_moments_; }
  MomentFormat moment_format() const override { return moment_format_; }

  void LoadMaster(BlobId blob, Version version, int64_t offset_elems, absl::Span<const float> values) override {
    const BlobMemory& at = Range(blob, offset_elems, static_cast<int64_t>(values.size()));
    EPS_CHECK(published(blob) < version);
    std::byte* wire = at.wire[version.value() & 1];
    if (at.quantized) {
      EPS_CHECK(offset_elems % kMxBlockElems == 0);
      EncodeMxInt8(values, offset_elems, at.num_elems, wire);
      return;
    }
    if (wire_dtype_ == Dtype::kF32) {
      std::copy(values.begin(), values.end(), reinterpret_cast<float*>(wire) + offset_elems);
      return;
    }
    uint16_t* high = reinterpret_cast<uint16_t*>(wire) + offset_elems;
    if (wire_dtype_ == Dtype::kF16) {
      if (!at.frozen) std::copy(values.begin(), values.end(), at.master + offset_elems);
      for (size_t i = 0; i < values.size(); ++i) high[i] = ToFp16(values[i]).bits;
      return;
    }
    if (at.frozen) {
      for (size_t i = 0; i < values.size(); ++i) high[i] = Split(values[i]).wire.bits;
      return;
    }
    uint16_t* low = at.rest + offset_elems;
    for (size_t i = 0; i < values.size(); ++i) {
      const SplitFloat split = Split(values[i]);
      high[i] = split.wire.bits;
      low[i] = split.rest;
    }
  }

  void LoadMoment(BlobId blob, int which, int64_t offset_elems, absl::Span<const float> values) override {
    const BlobMemory& at = Range(blob, offset_elems, static_cast<int64_t>(values.size()));
    EPS_CHECK(which >= 0 && which < num_moments_ && !at.frozen);
    std::byte* const moment = at.moments[which] + MomentBytes(moment_format_, offset_elems);
    switch (moment_format_) {
      case MomentFormat::kFp32:
        std::copy(values.begin(), values.end(), reinterpret_cast<float*>(moment));
        return;
      case MomentFormat::kBf16:
        std::transform(values.begin(), values.end(), reinterpret_cast<uint16_t*>(moment),
                       [](float value) { return ToBf16(value).bits; });
        return;
      case MomentFormat::kFp8:
        EPS_CHECK(offset_elems % kFp8BlockElems == 0);
        EncodeFp8(KindOfMoment(which), values, moment);
    }
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
      if (memory_.wire.has_value()) layout_.StorePublished(memory_.wire->bytes(), blob, version);
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

  const SharedSegment* wire_segment() const override { return memory_.wire.has_value() ? &*memory_.wire : nullptr; }

  ChunkState Chunk(BlobId blob, int64_t chunk, Version version) override {
    const BlobMemory& at = blobs_[Index(blob)];
    const int64_t first = chunk * kChunkElems;
    EPS_CHECK(chunk >= 0 && first < at.num_elems && !at.frozen);
    const int64_t wire_offset = first * SizeOf(wire_dtype_);
    ChunkState state;
    state.wire_dtype = wire_dtype_;
    state.wire_in = at.wire[version.value() & 1] + wire_offset;
    state.wire_out = at.wire[(version.value() + 1) & 1] + wire_offset;
    if (at.rest != nullptr) state.rest = at.rest + first;
    if (at.master != nullptr) state.master = at.master + first;
    state.moment_format = moment_format_;
    if (num_moments_ > 0) state.moment1 = at.moments[0] + MomentBytes(moment_format_, first);
    if (num_moments_ > 1) state.moment2 = at.moments[1] + MomentBytes(moment_format_, first);
    state.first_elem = first;
    state.num_elems = std::min(kChunkElems, at.num_elems - first);
    return state;
  }

  void CarryOver(BlobId blob, Version version) override {
    const BlobMemory& at = blobs_[Index(blob)];
    EPS_CHECK(!at.frozen);
    if (wire_versions_ == 1) return;
    memcpy(at.wire[(version.value() + 1) & 1], at.wire[version.value() & 1], static_cast<size_t>(at.wire_bytes));
  }

  void ReadMaster(BlobId blob, Version version, int64_t offset_elems, absl::Span<float> values) const override {
    const BlobMemory& at = Range(blob, offset_elems, static_cast<int64_t>(values.size()));
    const std::byte* wire = at.wire[version.value() & 1];
    if (at.quantized) {
      DecodeMxInt8(wire, offset_elems, at.num_elems, values);
      return;
    }
    if (wire_dtype_ == Dtype::kF32) {
      std::copy_n(reinterpret_cast<const float*>(wire) + offset_elems, values.size(), values.begin());
      return;
    }
    const uint16_t* high = reinterpret_cast<const uint16_t*>(wire) + offset_elems;
    if (at.frozen) {
      const bool is_fp16 = wire_dtype_ == Dtype::kF16;
      for (size_t i = 0; i < values.size(); ++i) values[i] = is_fp16 ? ToFloat(Fp16{high[i]}) : ToFloat(Bf16{high[i]});
      return;
    }
    if (wire_dtype_ == Dtype::kF16) {
      std::copy_n(at.master + offset_elems, values.size(), values.begin());
      return;
    }
    const uint16_t* low = at.rest + offset_elems;
    for (size_t i = 0; i < values.size(); ++i) values[i] = Join({{high[i]}, low[i]});
  }

  absl::Span<const std::byte> Moment(BlobId blob, int which) const override {
    const BlobMemory& at = blobs_[Index(blob)];
    EPS_CHECK(which >= 0 && which < num_moments_ && !at.frozen);
    return {at.moments[which], static_cast<size_t>(MomentBytes(moment_format_, at.num_elems))};
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

  // The wire forms as WireLayout has them; then array after array, each over all blobs in pull order.
  void LayOut(const ModelSpec& model) {
    EPS_CHECK(layout_.weights_bytes() == sizes_.weights_bytes());
    const bool shared = memory_.wire.has_value();
    std::byte* const wire = shared ? memory_.wire->bytes().data() : memory_.rest.base();
    std::byte* next = memory_.rest.base() + (shared ? 0 : sizes_.weights_bytes());
    std::byte* const begin = next;
    const auto take = [&next](int64_t num_bytes) { return std::exchange(next, next + num_bytes); };
    blobs_.resize(model.blobs.size());
    for (size_t b = 0; b < blobs_.size(); ++b) {
      blobs_[b].num_elems = model.blobs[b].num_elems;
      blobs_[b].wire_bytes = model.blobs[b].wire_bytes(wire_dtype_);
      blobs_[b].frozen = model.blobs[b].frozen;
      blobs_[b].quantized = model.blobs[b].is_quantized;
    }
    for (size_t b = 0; b < blobs_.size(); ++b) {
      for (int i = 0; i < 2; ++i) {
        blobs_[b].wire[i] = wire + layout_.offset_bytes(BlobId(static_cast<int32_t>(b)), Version(i));
      }
    }
    for (BlobMemory& blob : blobs_) {
      if (blob.frozen) continue;
      if (wire_dtype_ == Dtype::kBf16) blob.rest = reinterpret_cast<uint16_t*>(take(blob.num_elems * 2));
      if (wire_dtype_ == Dtype::kF16) blob.master = reinterpret_cast<float*>(take(blob.num_elems * 4));
    }
    for (int i = 0; i < num_moments_; ++i) {
      for (BlobMemory& blob : blobs_) {
        if (!blob.frozen) blob.moments[i] = take(MomentBytes(moment_format_, blob.num_elems));
      }
    }
    EPS_CHECK(next - begin == sizes_.total_bytes() - sizes_.weights_bytes());
    for (const BlobSpec& blob : model.blobs) {
      if (shared) layout_.StorePublished(memory_.wire->bytes(), blob.id, Version(-1));
    }
    if (wire_dtype_ == Dtype::kBf16) ZeroPadding(model);
  }

  // Zeroed memory is not the split form of 0: its rest is not 0. Whole tensors come with
  // LoadMaster.
  void ZeroPadding(const ModelSpec& model) {
    for (size_t b = 0; b < blobs_.size(); ++b) {
      if (blobs_[b].frozen) continue;
      const std::vector<TensorSpec>& tensors = model.blobs[b].tensors;
      for (size_t t = 0; t < tensors.size(); ++t) {
        const int64_t begin = tensors[t].offset_elems + tensors[t].num_elems();
        const int64_t end = t + 1 < tensors.size() ? tensors[t + 1].offset_elems : blobs_[b].num_elems;
        std::fill(blobs_[b].rest + begin, blobs_[b].rest + end, Split(0.0f).rest);
      }
    }
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
  const int64_t num_elems = model.num_trainable_elems();
  const Dtype wire = run.precision.wire;
  StoreSizes sizes;
  sizes.wire_bytes = run.precision.wire_versions * num_elems * SizeOf(wire);
  for (const BlobSpec& blob : model.blobs) {
    if (!blob.frozen) continue;
    (blob.is_quantized ? sizes.quantized_bytes : sizes.frozen_bytes) += WireLayout::TakenBytes(blob, wire);
  }
  sizes.rest_bytes = num_elems * (wire == Dtype::kBf16 ? 2 : wire == Dtype::kF16 ? 4 : 0);
  sizes.moment_bytes = run.optimizer.num_moments() * MomentBytes(run.precision.moments, num_elems);
  return sizes;
}

absl::StatusOr<std::unique_ptr<Store>> Store::Create(const ModelSpec& model, const RunConfig& run) {
  for (const BlobSpec& blob : model.blobs) EPS_CHECK(blob.num_elems > 0 && blob.num_elems % kTensorAlignElems == 0);
  EPS_ASSIGN_OR_RETURN(StoreMemory memory,
                       StoreMemory::Map(ComputeStoreSizes(model, run),
                                        WireLayout(model, run.precision.wire, run.precision.wire_versions)));
  return std::make_unique<StoreImpl>(model, run, std::move(memory));
}

}  // namespace eps::server
