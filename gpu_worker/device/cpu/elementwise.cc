#include "gpu_worker/device/cpu/elementwise.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "common/numeric/bf16.h"
#include "common/numeric/fp16.h"
#include "common/numeric/mx_int8.h"
#include "common/numeric/nf4.h"
#include "common/numeric/quantized.h"
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
using DU8 = hn::FixedTag<uint8_t, 16>;

template <typename F>
HWY_INLINE void ActivationBackwardWith(const F& f, const ActivationBackwardArgs& args, int64_t begin, int64_t end) {
  const DF d;
  const float* x = static_cast<const float*>(args.x);
  float* dy = static_cast<float*>(args.dy);
  float* activated = static_cast<float*>(args.activated);
  for (int64_t i = begin; i < end; i += kVecLanes) {
    const int64_t left = end - i;
    const Activated a = f(d, LoadTail(d, x + i, left));
    if (activated != nullptr) {
      // Past the caches: the array is large, nothing reads it soon, and its lines may be shared
      // with other cores since its last use. 2.0 in place of 7.5 ms for 6.3 M elements on two Zen 4
      // cores apart; no difference where they share a cache.
      if (left >= kVecLanes) {
        hn::Stream(a.y, d, activated + i);
      } else {
        StoreTail(a.y, d, activated + i, left);
      }
    }
    StoreTail(hn::Mul(LoadTail(d, dy + i, left), a.slope), d, dy + i, left);
  }
  hwy::FlushStream();  // streamed stores become visible before the tile counts as done
}

void ActivationBackwardImpl(const ActivationBackwardArgs& args, int64_t begin, int64_t end) {
  ForActivation(args.activation, [&](const auto& f) HWY_ATTR { ActivationBackwardWith(f, args, begin, end); });
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

// The 16-bit forms of the wire: from their bits, and to them by the rule of gradients.
struct Bf16Form {
  static HWY_INLINE VF Widen(hn::Vec<DU16> bits) {
    return hn::BitCast(DF(), hn::ShiftLeft<16>(hn::PromoteTo(DU32(), bits)));
  }
  static HWY_INLINE hn::Vec<DU16> Narrow(VF v) {
    const hn::RebindToSigned<DU32> di;
    const auto bits = hn::Add(hn::BitCast(DU32(), v), hn::Set(DU32(), 0x8000u));
    return hn::DemoteTo(DU16(), hn::BitCast(di, hn::ShiftRight<16>(bits)));
  }
  static HWY_INLINE hn::Vec<DU16> NarrowTiesToEven(VF v) {
    const hn::RebindToSigned<DU32> di;
    const auto bits = hn::BitCast(DU32(), v);
    const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(DU32(), 1u));
    const auto rounded = hn::Add(bits, hn::Add(odd, hn::Set(DU32(), 0x7FFFu)));
    return hn::DemoteTo(DU16(), hn::BitCast(di, hn::ShiftRight<16>(rounded)));
  }
  static HWY_INLINE VF Round(VF v) {
    const DU32 du;
    const auto half = hn::Set(du, 0x8000u), high = hn::Set(du, 0xFFFF0000u);
    return hn::BitCast(DF(), hn::And(hn::Add(hn::BitCast(du, v), half), high));
  }
  static float Widen(uint16_t bits) { return ToFloat(Bf16{bits}); }
  static uint16_t Narrow(float v) { return ToBf16(v).bits; }
};
struct Fp16Form {
  using DF16 = hn::Rebind<hwy::float16_t, DF>;
  static HWY_INLINE VF Widen(hn::Vec<DU16> bits) { return hn::PromoteTo(DF(), hn::BitCast(DF16(), bits)); }
  static HWY_INLINE hn::Vec<DU16> Narrow(VF v) { return hn::BitCast(DU16(), hn::DemoteTo(DF16(), v)); }
  static HWY_INLINE VF Round(VF v) { return Widen(Narrow(v)); }
  static float Widen(uint16_t bits) { return ToFloat(Fp16{bits}); }
  static uint16_t Narrow(float v) { return ToFp16(v).bits; }
};

template <typename Form>
void Widen16(const uint16_t* src, float* dst, int64_t begin, int64_t end) {
  const DF d;
  int64_t i = begin;
  for (; i + kVecLanes <= end; i += kVecLanes) hn::StoreU(Form::Widen(hn::LoadU(DU16(), src + i)), d, dst + i);
  for (; i < end; ++i) dst[i] = Form::Widen(src[i]);
}

// src_dtype is one of 16 bits.
void WidenImpl(const WidenArgs& args, int64_t begin, int64_t end) {
  const auto* src = static_cast<const uint16_t*>(args.src);
  const auto widen = args.src_dtype == Dtype::kBf16 ? Widen16<Bf16Form> : Widen16<Fp16Form>;
  widen(src, static_cast<float*>(args.dst), begin, end);
}

void DequantizeMxInt8(const DequantizeArgs& args, int64_t begin, int64_t end) {
  const DF d;
  const hn::Rebind<int8_t, DF> d8;
  const hn::RebindToSigned<DF> d32;
  static_assert(kMxBlockElems % kVecLanes == 0);
  const auto* src = static_cast<const int8_t*>(args.src);
  float* dst = static_cast<float*>(args.dst);
  for (int64_t block = begin; block < end; block += kMxBlockElems) {
    const MxInt8Place at = MxInt8Place::Of(block, args.n);
    const VF unit = hn::Set(d, MxInt8Unit(static_cast<uint8_t>(src[at.exponent])));
    for (int64_t i = 0; i < kMxBlockElems; i += kVecLanes) {
      const auto codes = hn::PromoteTo(d32, hn::LoadU(d8, src + at.codes + i));
      hn::StoreU(hn::Mul(hn::ConvertTo(d, codes), unit), d, dst + block + i);
    }
  }
}

// 16 bf16, of which these are the lower and the higher bytes. A template, so that what has other lanes is not compiled.
template <typename V8>
HWY_INLINE void StoreBf16Bytes(V8 lower, V8 higher, float* to) {
  const hn::Repartition<uint16_t, DU8> d16;
  const auto first = hn::BitCast(d16, hn::InterleaveLower(DU8(), lower, higher));
  const auto second = hn::BitCast(d16, hn::InterleaveUpper(DU8(), lower, higher));
  if constexpr (kVecLanes == 16) {
    hn::StoreU(Bf16Form::Widen(hn::Combine(DU16(), second, first)), DF(), to);
  } else if constexpr (kVecLanes == 8) {
    hn::StoreU(Bf16Form::Widen(first), DF(), to);
    hn::StoreU(Bf16Form::Widen(second), DF(), to + 8);
  } else {
    alignas(16) uint16_t values[16];
    hn::Store(first, d16, values);
    hn::Store(second, d16, values + 8);
    for (int i = 0; i < 16; ++i) to[i] = Bf16Form::Widen(values[i]);
  }
}

// The 16 values of a block are computed once, and looked up as their lower and their higher bytes.
void DequantizeNf4(const DequantizeArgs& args, int64_t begin, int64_t end) {
  const DU8 d;
  const hn::Repartition<uint16_t, DU8> d16;
  const auto low_half = hn::Set(d, 0x0F);
  float numbers[kNf4Codes];
  for (int code = 0; code < kNf4Codes; ++code) numbers[code] = Nf4Number(code);
  const auto* src = static_cast<const uint8_t*>(args.src);
  float* dst = static_cast<float*>(args.dst);
  for (int64_t block = begin; block < end; block += kNf4BlockElems) {
    const Nf4Place at = Nf4Place::Of(block, args.n);
    Bf16 scale;
    std::memcpy(&scale.bits, src + at.scale, sizeof(scale.bits));
    alignas(16) uint16_t values[kNf4Codes];
    for (int64_t i = 0; i < kNf4Codes; i += kVecLanes) {
      const VF product = hn::Mul(hn::LoadU(DF(), numbers + i), hn::Set(DF(), ToFloat(scale)));
      hn::StoreU(Bf16Form::NarrowTiesToEven(product), DU16(), values + i);
    }
    const auto first = hn::BitCast(d, hn::Load(d16, values)), second = hn::BitCast(d, hn::Load(d16, values + 8));
    const auto lower = hn::ConcatEven(d, second, first), higher = hn::ConcatOdd(d, second, first);
    for (int64_t i = 0; i < kNf4BlockElems; i += 32) {
      const auto both = hn::LoadU(d, src + at.codes + i / 2);
      const auto even = hn::And(both, low_half);
      const auto odd = hn::And(hn::BitCast(d, hn::ShiftRight<4>(hn::BitCast(d16, both))), low_half);
      for (const bool is_upper : {false, true}) {
        const auto codes = is_upper ? hn::InterleaveUpper(d, even, odd) : hn::InterleaveLower(d, even, odd);
        StoreBf16Bytes(hn::TableLookupBytes(lower, codes), hn::TableLookupBytes(higher, codes),
                       dst + block + i + (is_upper ? 16 : 0));
      }
    }
  }
}

void DequantizeImpl(const DequantizeArgs& args, int64_t begin, int64_t end) {
  switch (args.format) {
    case QuantizedFormat::kMxInt8:
      return DequantizeMxInt8(args, begin, end);
    case QuantizedFormat::kNf4:
      return DequantizeNf4(args, begin, end);
  }
}

// put(v, i, left): what becomes of elements from i on.
template <typename Put>
HWY_INLINE bool FinishLeafWith(const FinishLeafArgs& args, int64_t begin, int64_t end, const Put& put) {
  const DF d;
  const VF zero = hn::Zero(d);
  VF poison = zero;  // x * 0 is NaN for an x that is not finite, and stays
  for (int64_t i = begin; i < end; i += kVecLanes) {
    const int64_t left = end - i;
    const VF v = LoadTail(d, args.src + i, left);
    poison = hn::MulAdd(v, zero, poison);
    put(v, i, left);
  }
  return hn::AllTrue(d, hn::Eq(poison, zero));
}

template <typename Form>
bool FinishLeaf16(const FinishLeafArgs& args, int64_t begin, int64_t end) {
  if (args.dst == nullptr) {
    return FinishLeafWith(args, begin, end, [&](VF v, int64_t i, int64_t left) HWY_ATTR {
      StoreTail(Form::Round(v), DF(), args.src + i, left);
    });
  }
  uint16_t* dst = static_cast<uint16_t*>(args.dst);
  return FinishLeafWith(args, begin, end, [&](VF v, int64_t i, int64_t left) HWY_ATTR {
    if (left >= kVecLanes) return hn::StoreU(Form::Narrow(v), DU16(), dst + i);
    for (int64_t at = i; at < i + left; ++at) dst[at] = Form::Narrow(args.src[at]);
  });
}

bool FinishLeafImpl(const FinishLeafArgs& args, int64_t begin, int64_t end) {
  switch (args.round_to) {
    case Dtype::kBf16:
      return FinishLeaf16<Bf16Form>(args, begin, end);
    case Dtype::kF16:
      return FinishLeaf16<Fp16Form>(args, begin, end);
    case Dtype::kF32:
      break;
  }
  float* dst = static_cast<float*>(args.dst);
  return FinishLeafWith(args, begin, end, [&](VF v, int64_t i, int64_t left) HWY_ATTR {
    if (dst != nullptr) StoreTail(v, DF(), dst + i, left);
  });
}

void AddGradientImpl(const AddGradientArgs& args, int64_t begin, int64_t end) {
  const DF d;
  for (int64_t i = begin; i < end; i += kVecLanes) {
    const int64_t left = end - i;
    StoreTail(hn::Add(LoadTail(d, args.dst + i, left), LoadTail(d, args.src + i, left)), d, args.dst + i, left);
  }
}

template <typename Form>
void Emit16(const float* src, uint16_t* dst, int64_t begin, int64_t end) {
  int64_t i = begin;
  for (; i + kVecLanes <= end; i += kVecLanes) hn::StoreU(Form::Narrow(hn::LoadU(DF(), src + i)), DU16(), dst + i);
  for (; i < end; ++i) dst[i] = Form::Narrow(src[i]);
}

// dst_dtype is one of 16 bits.
void EmitImpl(const EmitGradientArgs& args, int64_t begin, int64_t end) {
  const auto emit = args.dst_dtype == Dtype::kBf16 ? Emit16<Bf16Form> : Emit16<Fp16Form>;
  emit(args.src, static_cast<uint16_t*>(args.dst), begin, end);
}

// Elements [c, c + lanes) of a row of a table in its wire form; from `left` on zero.
template <Dtype kDtype>
HWY_INLINE VF TableV(const void* row, int64_t c, int64_t left) {
  const DF d;
  if constexpr (kDtype == Dtype::kF32) {
    return LoadTail(d, static_cast<const float*>(row) + c, left);
  } else {
    using Form = std::conditional_t<kDtype == Dtype::kBf16, Bf16Form, Fp16Form>;
    const uint16_t* src = static_cast<const uint16_t*>(row) + c;
    if (left >= kVecLanes) return Form::Widen(hn::LoadU(DU16(), src));
    HWY_ALIGN uint16_t lanes[kLogicalLanes] = {};
    std::memcpy(lanes, src, static_cast<size_t>(left) * sizeof(uint16_t));
    return Form::Widen(hn::LoadU(DU16(), lanes));
  }
}

template <typename Args>
HWY_INLINE int64_t PositionOf(const Args& args, int64_t row) {
  return row % args.T - (args.documents.first == nullptr ? 0 : args.documents.first[row]);
}

template <Dtype kDtype>
HWY_INLINE void EmbeddingRow(const EmbeddingArgs& args, const DropoutPlan& dropout, int64_t row, float* scratch) {
  const DF d;
  const int64_t C = args.C, row_bytes = C * SizeOf(kDtype);
  const char* wte = static_cast<const char*>(args.wte) + args.tokens[row] * row_bytes;
  const auto row_of = [&](const void* table, int64_t index) {
    return static_cast<const char*>(table) + index * row_bytes;
  };
  const char* wpe = args.wpe == nullptr ? nullptr : row_of(args.wpe, PositionOf(args, row));
  const char* wtt = args.wtt == nullptr ? nullptr : row_of(args.wtt, args.types[row]);
  float* y = static_cast<float*>(args.y) + row * C;
  const uint32_t* words = nullptr;
  if (dropout.on) words = KeepBits(dropout, row * C, C, reinterpret_cast<uint32_t*>(scratch));
  for (int64_t c = 0; c < C; c += kVecLanes) {
    const int64_t left = C - c;
    VF v = TableV<kDtype>(wte, c, left);
    if (wpe != nullptr) v = hn::Add(v, TableV<kDtype>(wpe, c, left));
    if (wtt != nullptr) v = hn::Add(v, TableV<kDtype>(wtt, c, left));
    if (words != nullptr) v = DropV(dropout, v, hn::LoadU(DU32(), words + c));
    StoreTail(v, d, y + c, left);
  }
}

void EmbeddingImpl(const EmbeddingArgs& args, const DropoutPlan& dropout, int64_t begin, int64_t end, float* scratch) {
  for (int64_t row = begin; row < end; ++row) {
    switch (args.wire_dtype) {
      case Dtype::kF32:
        EmbeddingRow<Dtype::kF32>(args, dropout, row, scratch);
        break;
      case Dtype::kBf16:
        EmbeddingRow<Dtype::kBf16>(args, dropout, row, scratch);
        break;
      case Dtype::kF16:
        EmbeddingRow<Dtype::kF16>(args, dropout, row, scratch);
        break;
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
    if (args.dwpe != nullptr) AddTo(args.dwpe + PositionOf(args, row) * args.C + begin, src, end - begin);
    if (args.dwtt != nullptr) AddTo(args.dwtt + args.types[row] * args.C + begin, src, end - begin);
  }
}

const char* TargetNameImpl() { return hwy::TargetName(HWY_TARGET); }

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace eps::worker::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace eps::worker::cpu {

HWY_EXPORT(ActivationBackwardImpl);
HWY_EXPORT(DropoutImpl);
HWY_EXPORT(WidenImpl);
HWY_EXPORT(DequantizeImpl);
HWY_EXPORT(FinishLeafImpl);
HWY_EXPORT(AddGradientImpl);
HWY_EXPORT(EmitImpl);
HWY_EXPORT(EmbeddingImpl);
HWY_EXPORT(EmbeddingBackwardImpl);
HWY_EXPORT(TargetNameImpl);

void ActivationBackwardElems(const ActivationBackwardArgs& args, int64_t begin, int64_t end) {
  HWY_DYNAMIC_DISPATCH(ActivationBackwardImpl)(args, begin, end);
}
void DropoutElems(const DropoutPlan& dropout, const float* x, float* y, int64_t begin, int64_t end, float* scratch) {
  if (dropout.on) {
    HWY_DYNAMIC_DISPATCH(DropoutImpl)(dropout, x, y, begin, end, scratch);
  } else if (x != y) {
    std::memcpy(y + begin, x + begin, static_cast<size_t>(end - begin) * sizeof(float));
  }
}
void WidenElems(const WidenArgs& args, int64_t begin, int64_t end) {
  if (args.src_dtype != Dtype::kF32) {
    HWY_DYNAMIC_DISPATCH(WidenImpl)(args, begin, end);
  } else {
    std::memcpy(static_cast<float*>(args.dst) + begin, static_cast<const float*>(args.src) + begin,
                static_cast<size_t>(end - begin) * sizeof(float));
  }
}
void DequantizeElems(const DequantizeArgs& args, int64_t begin, int64_t end) {
  HWY_DYNAMIC_DISPATCH(DequantizeImpl)(args, begin, end);
}
bool FinishLeafElems(const FinishLeafArgs& args, int64_t begin, int64_t end) {
  return HWY_DYNAMIC_DISPATCH(FinishLeafImpl)(args, begin, end);
}
void AddGradientElems(const AddGradientArgs& args, int64_t begin, int64_t end) {
  HWY_DYNAMIC_DISPATCH(AddGradientImpl)(args, begin, end);
}
void EmitGradientElems(const EmitGradientArgs& args, int64_t begin, int64_t end) {
  if (args.dst_dtype != Dtype::kF32) {
    HWY_DYNAMIC_DISPATCH(EmitImpl)(args, begin, end);
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

bool VectorTargetSupported() { return (hwy::SupportedTargets() & (HWY_TARGETS)) != 0; }
const char* VectorTargetName() { return HWY_DYNAMIC_DISPATCH(TargetNameImpl)(); }

}  // namespace eps::worker::cpu
#endif  // HWY_ONCE
