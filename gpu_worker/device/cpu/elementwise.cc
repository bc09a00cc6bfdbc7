#include "gpu_worker/device/cpu/elementwise.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "common/numeric/bf16.h"
#include "common/tensor/dtype.h"
#include "gpu_worker/device/cpu/vector_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "gpu_worker/device/cpu/elementwise.cc"
#include "hwy/cache_control.h"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// After foreach_target.h: these are per target.
#include "gpu_worker/device/cpu/dropout-inl.h"
#include "gpu_worker/device/cpu/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace eps::worker::cpu {
namespace HWY_NAMESPACE {
namespace {

using DU16 = hn::Rebind<uint16_t, DF>;

void GeluBackwardImpl(const GeluBackwardArgs& args, int64_t begin, int64_t end) {
  const DF d;
  const float* x = static_cast<const float*>(args.x);
  float* dy = static_cast<float*>(args.dy);
  float* gelu_out = static_cast<float*>(args.gelu_out);
  const VF one = hn::Set(d, 1.0f);
  for (int64_t i = begin; i < end; i += kVecLanes) {
    const int64_t left = end - i;
    const VF v = LoadTail(d, x + i, left);
    const GeluParts g = Gelu(d, v);
    if (gelu_out != nullptr) {
      // Past the caches: the array is large, nothing reads it soon, and its lines may be shared
      // with other cores since its last use. 2.0 in place of 7.5 ms for 6.3 M elements on two Zen 4
      // cores apart; no difference where they share a cache.
      if (left >= kVecLanes) {
        hn::Stream(hn::Mul(v, g.gate), d, gelu_out + i);
      } else {
        StoreTail(hn::Mul(v, g.gate), d, gelu_out + i, left);
      }
    }
    // gate' = gate (1 - gate) slope
    const VF bend = hn::Mul(hn::Mul(g.gate, hn::Sub(one, g.gate)), g.slope);
    const VF derivative = hn::MulAdd(v, bend, g.gate);
    StoreTail(hn::Mul(LoadTail(d, dy + i, left), derivative), d, dy + i, left);
  }
  hwy::FlushStream();  // streamed stores become visible before the tile counts as done
}

void DropoutImpl(const DropoutPlan& dropout, const float* x, float* y, int64_t begin, int64_t end, float* scratch) {
  const DF d;
  constexpr int64_t kStep = 1024;
  uint32_t* buf = reinterpret_cast<uint32_t*>(scratch);
  for (int64_t at = begin; at < end; at += kStep) {
    const int64_t n = std::min(kStep, end - at);
    const uint32_t* words = KeepBits(dropout, at, n, buf);
    for (int64_t i = 0; i < n; i += kVecLanes) {
      const VF v = LoadTail(d, x + at + i, n - i);
      StoreTail(DropV(dropout, v, hn::LoadU(DU32(), words + i)), d, y + at + i, n - i);
    }
  }
}

HWY_INLINE VF WidenV(const uint16_t* src) {
  return hn::BitCast(DF(), hn::ShiftLeft<16>(hn::PromoteTo(DU32(), hn::LoadU(DU16(), src))));
}

void WidenImpl(const WidenArgs& args, int64_t begin, int64_t end) {
  const DF d;
  const uint16_t* src = static_cast<const uint16_t*>(args.src);
  float* dst = static_cast<float*>(args.dst);
  int64_t i = begin;
  for (; i + kVecLanes <= end; i += kVecLanes) hn::StoreU(WidenV(src + i), d, dst + i);
  for (; i < end; ++i) dst[i] = ToFloat(Bf16{src[i]});
}

bool FinishLeafImpl(const FinishLeafArgs& args, int64_t begin, int64_t end) {
  const DF d;
  const DU32 du;
  const auto half = hn::Set(du, 0x8000u), high = hn::Set(du, 0xFFFF0000u);
  const VF zero = hn::Zero(d);
  VF poison = zero;  // x * 0 is NaN for an x that is not finite, and stays
  for (int64_t i = begin; i < end; i += kVecLanes) {
    const int64_t left = end - i;
    const VF v = LoadTail(d, args.src + i, left);
    poison = hn::MulAdd(v, zero, poison);
    if (args.round_bf16) {
      StoreTail(hn::BitCast(d, hn::And(hn::Add(hn::BitCast(du, v), half), high)), d, args.src + i, left);
    }
  }
  return hn::AllTrue(d, hn::Eq(poison, zero));
}

void AddGradientImpl(const AddGradientArgs& args, int64_t begin, int64_t end) {
  const DF d;
  for (int64_t i = begin; i < end; i += kVecLanes) {
    const int64_t left = end - i;
    StoreTail(hn::Add(LoadTail(d, args.dst + i, left), LoadTail(d, args.src + i, left)), d, args.dst + i, left);
  }
}

void EmitBf16Impl(const EmitGradientArgs& args, int64_t begin, int64_t end) {
  const DF d;
  const DU32 du;
  const hn::RebindToSigned<DU32> di;
  uint16_t* dst = static_cast<uint16_t*>(args.dst);
  int64_t i = begin;
  for (; i + kVecLanes <= end; i += kVecLanes) {
    const auto bits = hn::Add(hn::BitCast(du, hn::LoadU(d, args.src + i)), hn::Set(du, 0x8000u));
    hn::StoreU(hn::DemoteTo(DU16(), hn::BitCast(di, hn::ShiftRight<16>(bits))), DU16(), dst + i);
  }
  for (; i < end; ++i) dst[i] = ToBf16(args.src[i]).bits;
}

// Elements [c, c + lanes) of a row of a table in its wire form; from `left` on zero.
template <Dtype kDtype>
HWY_INLINE VF TableV(const void* row, int64_t c, int64_t left) {
  const DF d;
  if constexpr (kDtype == Dtype::kF32) {
    return LoadTail(d, static_cast<const float*>(row) + c, left);
  } else {
    const uint16_t* src = static_cast<const uint16_t*>(row) + c;
    if (left >= kVecLanes) return WidenV(src);
    HWY_ALIGN uint16_t lanes[kLogicalLanes] = {};
    std::memcpy(lanes, src, static_cast<size_t>(left) * sizeof(uint16_t));
    return WidenV(lanes);
  }
}

template <Dtype kDtype>
HWY_INLINE void EmbeddingRow(const EmbeddingArgs& args, const DropoutPlan& dropout, int64_t row, float* scratch) {
  const DF d;
  const int64_t C = args.C, row_bytes = C * SizeOf(kDtype);
  const char* wte = static_cast<const char*>(args.wte) + args.tokens[row] * row_bytes;
  const char* wpe = static_cast<const char*>(args.wpe) + row % args.T * row_bytes;
  float* y = static_cast<float*>(args.y) + row * C;
  const uint32_t* words = nullptr;
  if (dropout.on) words = KeepBits(dropout, row * C, C, reinterpret_cast<uint32_t*>(scratch));
  for (int64_t c = 0; c < C; c += kVecLanes) {
    const int64_t left = C - c;
    VF v = hn::Add(TableV<kDtype>(wte, c, left), TableV<kDtype>(wpe, c, left));
    if (words != nullptr) v = DropV(dropout, v, hn::LoadU(DU32(), words + c));
    StoreTail(v, d, y + c, left);
  }
}

void EmbeddingImpl(const EmbeddingArgs& args, const DropoutPlan& dropout, int64_t begin, int64_t end, float* scratch) {
  for (int64_t row = begin; row < end; ++row) {
    if (args.wire_dtype == Dtype::kF32) {
      EmbeddingRow<Dtype::kF32>(args, dropout, row, scratch);
    } else {
      EmbeddingRow<Dtype::kBf16>(args, dropout, row, scratch);
    }
  }
}

HWY_INLINE void AddTo(float* dst, const float* src, int64_t n) {
  const DF d;
  for (int64_t c = 0; c < n; c += kVecLanes) {
    StoreTail(hn::Add(LoadTail(d, dst + c, n - c), LoadTail(d, src + c, n - c)), d, dst + c, n - c);
  }
}

void EmbeddingBackwardImpl(const EmbeddingBackwardArgs& args, int64_t begin, int64_t end) {
  const float* dy = static_cast<const float*>(args.dy);
  for (int64_t row = 0; row < args.B * args.T; ++row) {
    const float* src = dy + row * args.C + begin;
    AddTo(args.dwte + args.tokens[row] * args.C + begin, src, end - begin);
    AddTo(args.dwpe + row % args.T * args.C + begin, src, end - begin);
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace eps::worker::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace eps::worker::cpu {

HWY_EXPORT(GeluBackwardImpl);
HWY_EXPORT(DropoutImpl);
HWY_EXPORT(WidenImpl);
HWY_EXPORT(FinishLeafImpl);
HWY_EXPORT(AddGradientImpl);
HWY_EXPORT(EmitBf16Impl);
HWY_EXPORT(EmbeddingImpl);
HWY_EXPORT(EmbeddingBackwardImpl);

void GeluBackwardElems(const GeluBackwardArgs& args, int64_t begin, int64_t end) {
  HWY_DYNAMIC_DISPATCH(GeluBackwardImpl)(args, begin, end);
}
void DropoutElems(const DropoutPlan& dropout, const float* x, float* y, int64_t begin, int64_t end, float* scratch) {
  if (dropout.on) {
    HWY_DYNAMIC_DISPATCH(DropoutImpl)(dropout, x, y, begin, end, scratch);
  } else if (x != y) {
    std::memcpy(y + begin, x + begin, static_cast<size_t>(end - begin) * sizeof(float));
  }
}
void WidenElems(const WidenArgs& args, int64_t begin, int64_t end) {
  if (args.src_dtype == Dtype::kBf16) {
    HWY_DYNAMIC_DISPATCH(WidenImpl)(args, begin, end);
  } else {
    std::memcpy(static_cast<float*>(args.dst) + begin, static_cast<const float*>(args.src) + begin,
                static_cast<size_t>(end - begin) * sizeof(float));
  }
}
bool FinishLeafElems(const FinishLeafArgs& args, int64_t begin, int64_t end) {
  return HWY_DYNAMIC_DISPATCH(FinishLeafImpl)(args, begin, end);
}
void AddGradientElems(const AddGradientArgs& args, int64_t begin, int64_t end) {
  HWY_DYNAMIC_DISPATCH(AddGradientImpl)(args, begin, end);
}
void EmitGradientElems(const EmitGradientArgs& args, int64_t begin, int64_t end) {
  if (args.dst_dtype == Dtype::kBf16) {
    HWY_DYNAMIC_DISPATCH(EmitBf16Impl)(args, begin, end);
  } else {
    std::memcpy(static_cast<float*>(args.dst) + begin, args.src + begin,
                static_cast<size_t>(end - begin) * sizeof(float));
  }
}
void EmbeddingRows(const EmbeddingArgs& args, const DropoutPlan& dropout, int64_t begin, int64_t end, float* scratch) {
  HWY_DYNAMIC_DISPATCH(EmbeddingImpl)(args, dropout, begin, end, scratch);
}
void EmbeddingBackwardColumns(const EmbeddingBackwardArgs& args, int64_t begin, int64_t end) {
  HWY_DYNAMIC_DISPATCH(EmbeddingBackwardImpl)(args, begin, end);
}

namespace {
// The best of the targets that the processor has and these kernels are compiled for.
int64_t BestTarget() {
  const int64_t usable = hwy::SupportedTargets() & (HWY_TARGETS);
  return usable & -usable;  // Highway's lowest bit is its best target
}
}  // namespace
bool VectorTargetSupported() { return BestTarget() != 0; }
const char* VectorTargetName() { return hwy::TargetName(BestTarget()); }

}  // namespace eps::worker::cpu
#endif  // HWY_ONCE
