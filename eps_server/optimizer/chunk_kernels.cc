#include "eps_server/optimizer/chunk_kernels.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "eps_server/optimizer/moment_rounding.h"
#include "hwy/cache_control.h"
#include "hwy/detect_targets.h"
// Leaves out targets without fused multiply-add and those whose vectors have no size at compile
// time. Highway's portable fallback is compiled because it asks for it, and refused by
// CheckVectorUnit.
#undef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "eps_server/optimizer/chunk_kernels.cc"
#include "hwy/foreach_target.h"  // must come before highway.h
#include "hwy/highway.h"

#ifndef EPS_SERVER_OPTIMIZER_CHUNK_KERNELS_ONCE
#define EPS_SERVER_OPTIMIZER_CHUNK_KERNELS_ONCE
namespace eps::server {

inline constexpr int64_t kLanes = 16;         // logical, at any vector width
inline constexpr int64_t kBlockElems = 1024;  // 4 KiB of fp32: a block of sums stays in L1
inline constexpr int kMaxDepth = 24;          // partial sums of 2^16 vnodes, and one more use
// How far ahead, the best of 128 to 1024 (bench/update_bench, Zen 4), and how much at once: a cache
// line of 16-bit elements, two of fp32.
inline constexpr int64_t kPrefetchElems = 256;
inline constexpr int64_t kPrefetchUnit = 32;
static_assert(kPrefetchUnit == kMomentNoiseUnit);
static_assert(kTensorAlignElems % kPrefetchUnit == 0);

// The summing program with loads and adds joined where they follow each other.
struct FusedOp {
  enum class Kind {
    kLoad,     // push a
    kLoadAdd,  // push a + b
    kAddTo,    // top += a
    kAdd       // pop right, then top += right
  } kind;
  int a = 0;
  int b = 0;
};

struct FusedProgram {
  std::vector<FusedOp> ops;
  const GradientOperand* operands = nullptr;
};

FusedProgram Fuse(const ChunkGradient& gradient) {
  FusedProgram fused;
  fused.operands = gradient.operands.data();
  const std::vector<SumOp>& program = gradient.program;
  const auto is = [&](size_t i, SumOp::Kind kind) { return i < program.size() && program[i].kind == kind; };
  int depth = 0;
  for (size_t i = 0; i < program.size();) {
    if (is(i, SumOp::Kind::kAdd)) {
      fused.ops.push_back({FusedOp::Kind::kAdd});
      --depth;
      ++i;
    } else if (is(i + 1, SumOp::Kind::kLoad) && is(i + 2, SumOp::Kind::kAdd)) {
      fused.ops.push_back({FusedOp::Kind::kLoadAdd, program[i].operand, program[i + 1].operand});
      ++depth;
      i += 3;
    } else if (depth > 0 && is(i + 1, SumOp::Kind::kAdd)) {
      fused.ops.push_back({FusedOp::Kind::kAddTo, program[i].operand});
      i += 2;
    } else {
      fused.ops.push_back({FusedOp::Kind::kLoad, program[i].operand});
      ++depth;
      ++i;
    }
    EPS_CHECK(depth >= 1 && depth <= kMaxDepth);
  }
  EPS_CHECK(depth == 1);
  return fused;
}

struct SquareLanes {
  alignas(64) double lanes[kLanes] = {};
  double Total() const {
    double total = 0;
    for (const double lane : lanes) total += lane;
    return total;
  }
};

}  // namespace eps::server
#endif  // EPS_SERVER_OPTIMIZER_CHUNK_KERNELS_ONCE

HWY_BEFORE_NAMESPACE();
namespace eps::server {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::CappedTag<float, kLanes>;
using VF = hn::Vec<DF>;
using DU = hn::RebindToUnsigned<DF>;
using VU = hn::Vec<DU>;
using DI = hn::RebindToSigned<DF>;
using D16 = hn::Rebind<uint16_t, DF>;
using DPairs = hn::Repartition<uint16_t, DF>;  // as many bytes as DF
using DH = hn::Rebind<hwy::float16_t, DF>;
using DHalf = hn::Half<DF>;
using DD = hn::Rebind<double, DHalf>;
using VD = hn::Vec<DD>;
constexpr int64_t kVec = static_cast<int64_t>(hn::MaxLanes(DF()));
constexpr int64_t kVecs = kLanes / kVec;  // vectors per 16 logical lanes

bool HasFusedMultiplyAdd() { return HWY_NATIVE_FMA != 0; }

HWY_INLINE VF LoadBf16(const uint16_t* from) {
  return hn::BitCast(DF(), hn::ShiftLeft<16>(hn::PromoteTo(DU(), hn::LoadU(D16(), from))));
}
// As common/numeric/fp16.h: to nearest, ties to even, on every processor.
HWY_INLINE VF LoadFp16(const uint16_t* from) { return hn::PromoteTo(DF(), hn::BitCast(DH(), hn::LoadU(D16(), from))); }
HWY_INLINE void StoreFp16(VF value, uint16_t* to) {
  hn::StoreU(hn::BitCast(D16(), hn::DemoteTo(DH(), value)), D16(), to);
}

template <Dtype kDtype>
HWY_INLINE VF LoadOperand(const std::byte* values, int64_t i) {
  if constexpr (kDtype == Dtype::kBf16) return LoadBf16(reinterpret_cast<const uint16_t*>(values) + i);
  if constexpr (kDtype == Dtype::kF16) return LoadFp16(reinterpret_cast<const uint16_t*>(values) + i);
  return hn::LoadU(DF(), reinterpret_cast<const float*>(values) + i);
}

// fn(DtypeConstant) of a dtype known at run time.
template <Dtype kDtype>
struct DtypeConstant {
  static constexpr Dtype value = kDtype;
};
template <typename Fn>
HWY_INLINE void ForDtype(Dtype dtype, const Fn& fn) {
  switch (dtype) {
    case Dtype::kF32:
      return fn(DtypeConstant<Dtype::kF32>());
    case Dtype::kBf16:
      return fn(DtypeConstant<Dtype::kBf16>());
    case Dtype::kF16:
      return fn(DtypeConstant<Dtype::kF16>());
  }
}

// ---- sums ----

template <Dtype kA>
void LoadBlock(const std::byte* a, int64_t first, int64_t count, float* HWY_RESTRICT out) {
  for (int64_t i = 0; i < count; i += kVec) hn::Store(LoadOperand<kA>(a, first + i), DF(), out + i);
}
template <Dtype kA, Dtype kB>
void LoadAddBlock(const std::byte* a, const std::byte* b, int64_t first, int64_t count, float* HWY_RESTRICT out) {
  for (int64_t i = 0; i < count; i += kVec) {
    hn::Store(hn::Add(LoadOperand<kA>(a, first + i), LoadOperand<kB>(b, first + i)), DF(), out + i);
  }
}
template <Dtype kA>
void AddToBlock(const std::byte* a, int64_t first, int64_t count, float* HWY_RESTRICT out) {
  for (int64_t i = 0; i < count; i += kVec) {
    hn::Store(hn::Add(hn::Load(DF(), out + i), LoadOperand<kA>(a, first + i)), DF(), out + i);
  }
}
void AddBlock(const float* HWY_RESTRICT right, int64_t count, float* HWY_RESTRICT left) {
  for (int64_t i = 0; i < count; i += kVec) {
    hn::Store(hn::Add(hn::Load(DF(), left + i), hn::Load(DF(), right + i)), DF(), left + i);
  }
}

// Elements [first, first + count) of the sum: in place if there is a single fp32 contribution, else
// in scratch.
const float* SumBlock(const FusedProgram& program, int64_t first, int64_t count, float (*scratch)[kBlockElems]) {
  if (program.ops.size() == 1 && program.ops[0].kind == FusedOp::Kind::kLoad) {
    const GradientOperand& only = program.operands[program.ops[0].a];
    if (only.dtype == Dtype::kF32) return reinterpret_cast<const float*>(only.values) + first;
  }
  int depth = 0;
  for (const FusedOp& op : program.ops) {
    const GradientOperand& a = program.operands[op.a];
    const GradientOperand& b = program.operands[op.b];
    switch (op.kind) {
      case FusedOp::Kind::kLoad:
        ForDtype(a.dtype, [&](auto da) { LoadBlock<da.value>(a.values, first, count, scratch[depth]); });
        ++depth;
        break;
      case FusedOp::Kind::kLoadAdd:
        ForDtype(a.dtype, [&](auto da) {
          ForDtype(b.dtype, [&](auto db) {
            LoadAddBlock<da.value, db.value>(a.values, b.values, first, count, scratch[depth]);
          });
        });
        ++depth;
        break;
      case FusedOp::Kind::kAddTo:
        ForDtype(a.dtype, [&](auto da) { AddToBlock<da.value>(a.values, first, count, scratch[depth - 1]); });
        break;
      case FusedOp::Kind::kAdd:
        --depth;
        AddBlock(scratch[depth], count, scratch[depth - 1]);
        break;
    }
  }
  return scratch[0];
}

// ---- the 16 logical lanes ----

// AVX2 widens and narrows 16-bit values by one instruction each where it may stay within halves of a vector, and by two
// where not: there lanes 0 to 3 and 8 to 11 are the first vector, 4 to 7 and 12 to 15 the second. Elsewhere they are in order.
constexpr bool kIsByHalves = HWY_TARGET == HWY_AVX2;
static_assert(!kIsByHalves || kVecs == 2);

struct Floats {
  VF v[kVecs];
};
struct Words {
  VU v[kVecs];
};

// fn(k) of each of the vectors.
template <typename Fn>
HWY_INLINE void ForVecs(const Fn& fn) {
  for (int64_t k = 0; k < kVecs; ++k) fn(k);
}

// From lanes in order to those of Floats, and back.
HWY_INLINE Floats Reordered(const Floats& x) {
#if HWY_TARGET == HWY_AVX2
  return {hn::ConcatLowerLower(DF(), x.v[1], x.v[0]), hn::ConcatUpperUpper(DF(), x.v[1], x.v[0])};
#else
  return x;
#endif
}

HWY_INLINE Floats LoadFloats(const float* from) {
  Floats in_order;
  ForVecs([&](int64_t k) HWY_ATTR { in_order.v[k] = hn::LoadU(DF(), from + k * kVec); });
  return Reordered(in_order);
}
HWY_INLINE void StoreFloats(const Floats& x, float* to) {
  const Floats in_order = Reordered(x);
  ForVecs([&](int64_t k) HWY_ATTR { hn::StoreU(in_order.v[k], DF(), to + k * kVec); });
}

// `high` in the upper 16 bits of each word, `low` in the lower ones.
HWY_INLINE Words LoadHalves(const uint16_t* high, const uint16_t* low) {
  Words words;
#if HWY_TARGET == HWY_AVX2
  const auto h = hn::LoadU(DPairs(), high), l = hn::LoadU(DPairs(), low);
  words.v[0] = hn::BitCast(DU(), hn::InterleaveLower(DPairs(), l, h));
  words.v[1] = hn::BitCast(DU(), hn::InterleaveUpper(DPairs(), l, h));
#else
  ForVecs([&](int64_t k) HWY_ATTR {
    const VU h = hn::PromoteTo(DU(), hn::LoadU(D16(), high + k * kVec));
    words.v[k] = hn::Or(hn::ShiftLeft<16>(h), hn::PromoteTo(DU(), hn::LoadU(D16(), low + k * kVec)));
  });
#endif
  return words;
}
HWY_INLINE Floats LoadBf16s(const uint16_t* from) {
  Floats x;
#if HWY_TARGET == HWY_AVX2
  const auto high = hn::LoadU(DPairs(), from), low = hn::Zero(DPairs());
  x.v[0] = hn::BitCast(DF(), hn::InterleaveLower(DPairs(), low, high));
  x.v[1] = hn::BitCast(DF(), hn::InterleaveUpper(DPairs(), low, high));
#else
  ForVecs([&](int64_t k) HWY_ATTR { x.v[k] = LoadBf16(from + k * kVec); });
#endif
  return x;
}
// Words of at most 0xFFFF: the saturating conversions change nothing.
HWY_INLINE void StoreLowHalves(const Words& words, uint16_t* to) {
#if HWY_TARGET == HWY_AVX2
  const __m256i packed = _mm256_packus_epi32(words.v[0].raw, words.v[1].raw);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), packed);
#elif HWY_TARGET <= HWY_AVX3
  // One instruction, where Highway's own takes three.
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtepi32_epi16(words.v[0].raw));
#else
  ForVecs([&](int64_t k)
              HWY_ATTR { hn::StoreU(hn::DemoteTo(D16(), hn::BitCast(DI(), words.v[k])), D16(), to + k * kVec); });
#endif
}

// ---- sums of squares ----

// Element i goes to lane i mod 16. The product of two floats is exact in fp64, so fused or not is
// the same.
struct SquareSum {
  static constexpr int64_t kDoubles = static_cast<int64_t>(hn::MaxLanes(DD()));
  static constexpr int64_t kAccs = kLanes / kDoubles;
  VD acc[kAccs];
  HWY_INLINE explicit SquareSum(const SquareLanes& from) {
    for (int64_t k = 0; k < kAccs; ++k) acc[k] = hn::Load(DD(), from.lanes + k * kDoubles);
  }
  HWY_INLINE void Add(const Floats& g) {
    ForVecs([&](int64_t k) HWY_ATTR {
#if HWY_TARGET == HWY_SCALAR
      const VD x = hn::PromoteTo(DD(), g.v[k]);
      acc[k] = hn::MulAdd(x, x, acc[k]);
#else
      const VD low = hn::PromoteTo(DD(), hn::LowerHalf(DHalf(), g.v[k]));
      const VD high = hn::PromoteTo(DD(), hn::UpperHalf(DHalf(), g.v[k]));
      const int64_t of_low = kIsByHalves ? k : 2 * k, of_high = kIsByHalves ? k + 2 : 2 * k + 1;
      acc[of_low] = hn::MulAdd(low, low, acc[of_low]);
      acc[of_high] = hn::MulAdd(high, high, acc[of_high]);
#endif
    });
  }
  HWY_INLINE void SaveTo(SquareLanes& to) const {
    for (int64_t k = 0; k < kAccs; ++k) hn::Store(acc[k], DD(), to.lanes + k * kDoubles);
  }
};

double SumChunkImpl(const ChunkGradient& gradient, int64_t num_elems, float* sum) {
  const FusedProgram program = Fuse(gradient);
  HWY_ALIGN float scratch[kMaxDepth][kBlockElems];
  SquareLanes squares;
  for (int64_t first = 0; first < num_elems; first += kBlockElems) {
    const int64_t count = std::min(kBlockElems, num_elems - first);
    const float* g = SumBlock(program, first, count, scratch);
    SquareSum square(squares);
    for (int64_t i = 0; i < count; i += kLanes) {
      const Floats values = LoadFloats(g + i);
      if (sum != nullptr) StoreFloats(values, sum + first + i);
      square.Add(values);
    }
    square.SaveTo(squares);
  }
  return squares.Total();
}

// ---- updates ----

struct Fp32Master {
  const float* in;
  float* out;
  explicit Fp32Master(const ChunkState& chunk)
      : in(static_cast<const float*>(chunk.wire_in)), out(static_cast<float*>(chunk.wire_out)) {}
  HWY_INLINE Floats Load(int64_t i) const { return LoadFloats(in + i); }
  HWY_INLINE void Store(const Floats& p, int64_t i) const { StoreFloats(p, out + i); }
  HWY_INLINE void Prefetch(int64_t i) const {
    for (const int64_t at : {i, i + kLanes}) {
      hwy::Prefetch(in + at);
      hwy::Prefetch(out + at);
    }
  }
};

// common/numeric/bf16.h: Split and Join.
struct SplitMaster {
  const uint16_t* in;
  uint16_t* out;
  uint16_t* rest;
  explicit SplitMaster(const ChunkState& chunk)
      : in(static_cast<const uint16_t*>(chunk.wire_in)),
        out(static_cast<uint16_t*>(chunk.wire_out)),
        rest(chunk.rest) {}
  HWY_INLINE Floats Load(int64_t i) const {
    const Words rounded = LoadHalves(in + i, rest + i);
    Floats p;
    ForVecs([&](int64_t k) HWY_ATTR { p.v[k] = hn::BitCast(DF(), hn::Sub(rounded.v[k], hn::Set(DU(), 0x8000u))); });
    return p;
  }
  HWY_INLINE void Store(const Floats& p, int64_t i) const {
    Words high, low;
    ForVecs([&](int64_t k) HWY_ATTR {
      const VU rounded = hn::Add(hn::BitCast(DU(), p.v[k]), hn::Set(DU(), 0x8000u));
      high.v[k] = hn::ShiftRight<16>(rounded);
      low.v[k] = hn::And(rounded, hn::Set(DU(), 0xFFFFu));
    });
    StoreLowHalves(high, out + i);
    StoreLowHalves(low, rest + i);
  }
  HWY_INLINE void Prefetch(int64_t i) const {
    hwy::Prefetch(in + i);
    hwy::Prefetch(out + i);
    hwy::Prefetch(rest + i);
  }
};

// The master beside its wire form, which is made anew and not read.
struct Fp16Master {
  float* master;
  uint16_t* out;
  explicit Fp16Master(const ChunkState& chunk) : master(chunk.master), out(static_cast<uint16_t*>(chunk.wire_out)) {}
  HWY_INLINE Floats Load(int64_t i) const { return LoadFloats(master + i); }
  HWY_INLINE void Store(const Floats& p, int64_t i) const {
    const Floats in_order = Reordered(p);
    ForVecs([&](int64_t k) HWY_ATTR {
      hn::StoreU(in_order.v[k], DF(), master + i + k * kVec);
      StoreFp16(in_order.v[k], out + i + k * kVec);
    });
  }
  HWY_INLINE void Prefetch(int64_t i) const {
    hwy::Prefetch(master + i);
    hwy::Prefetch(master + i + kLanes);
    hwy::Prefetch(out + i);
  }
};

// The optimizer's moments as they are kept.
struct Fp32Moment {
  static constexpr bool kIsRounded = false;
  float* values;
  explicit Fp32Moment(void* values) : values(static_cast<float*>(values)) {}
  HWY_INLINE Floats Load(int64_t i) const { return LoadFloats(values + i); }
  HWY_INLINE void Store(const Floats& moment, const Words& /*noise*/, int64_t i) const {
    StoreFloats(moment, values + i);
  }
  HWY_INLINE void Prefetch(int64_t i) const {
    hwy::Prefetch(values + i);
    hwy::Prefetch(values + i + kLanes);
  }
};
// moment_rounding.h: RoundMoment.
struct Bf16Moment {
  static constexpr bool kIsRounded = true;
  uint16_t* values;
  explicit Bf16Moment(void* values) : values(static_cast<uint16_t*>(values)) {}
  HWY_INLINE Floats Load(int64_t i) const { return LoadBf16s(values + i); }
  HWY_INLINE void Store(const Floats& moment, const Words& noise, int64_t i) const {
    Words kept;
    ForVecs([&](int64_t k)
                HWY_ATTR { kept.v[k] = hn::ShiftRight<16>(hn::Add(hn::BitCast(DU(), moment.v[k]), noise.v[k])); });
    StoreLowHalves(kept, values + i);
  }
  HWY_INLINE void Prefetch(int64_t i) const { hwy::Prefetch(values + i); }
};

// moment_rounding.h: MomentNoise.
struct NoiseSource {
  Words first;  // of the chunk's first pairs, before mixing
  NoiseSource(const ChunkState& chunk, const UpdateScalars& s) {
    const uint32_t pair = s.moment_key + static_cast<uint32_t>(chunk.first_elem / 2);
    uint32_t lanes[kLanes];
    for (uint32_t lane = 0; lane < kLanes; ++lane) {
      // The middle two of four quarters change places.
      const uint32_t from = kIsByHalves && lane / 4 % 3 != 0 ? lane ^ 12 : lane;
      lanes[lane] = pair + from;
    }
    ForVecs([&](int64_t k) HWY_ATTR { first.v[k] = hn::LoadU(DU(), lanes + k * kVec); });
  }
  // The words of elements [i, i + 32), i a multiple of 32: those of the first 16 have the low halves.
  HWY_INLINE Words Pairs(int64_t i) const {
    Words words;
    ForVecs([&](int64_t k) HWY_ATTR {
      VU x = hn::Add(first.v[k], hn::Set(DU(), static_cast<uint32_t>(i / 2)));
      x = hn::Mul(hn::Xor(x, hn::ShiftRight<16>(x)), hn::Set(DU(), 0x85EBCA6Bu));
      x = hn::Mul(hn::Xor(x, hn::ShiftRight<13>(x)), hn::Set(DU(), 0xC2B2AE35u));
      words.v[k] = hn::Xor(x, hn::ShiftRight<16>(x));
    });
    return words;
  }
  HWY_INLINE static Words Half(const Words& pairs, bool second) {
    Words half;
    ForVecs([&](int64_t k) HWY_ATTR {
      half.v[k] = second ? hn::ShiftRight<16>(pairs.v[k]) : hn::And(pairs.v[k], hn::Set(DU(), 0xFFFFu));
    });
    return half;
  }
};

template <typename Moment>
struct AdamW {
  static constexpr bool kIsRounded = Moment::kIsRounded;
  Moment m, v;
  VF keep, beta1, one_minus_beta1, beta2, one_minus_beta2, inv_sqrt_bias2, eps, step_size;
  AdamW(const ChunkState& chunk, const UpdateScalars& s, bool decays)
      : m(chunk.moment1),
        v(chunk.moment2),
        keep(hn::Set(DF(), decays ? s.keep : 1.0f)),
        beta1(hn::Set(DF(), s.beta1)),
        one_minus_beta1(hn::Set(DF(), s.one_minus_beta1)),
        beta2(hn::Set(DF(), s.beta2)),
        one_minus_beta2(hn::Set(DF(), s.one_minus_beta2)),
        inv_sqrt_bias2(hn::Set(DF(), s.inv_sqrt_bias2)),
        eps(hn::Set(DF(), s.eps)),
        step_size(hn::Set(DF(), s.step_size)) {}
  HWY_INLINE Floats Update(const Floats& p, const Floats& g, const Words& noise, int64_t i) const {
    Floats mi = m.Load(i), vi = v.Load(i), out;
    ForVecs([&](int64_t k) HWY_ATTR {
      const VF gk = g.v[k];
      mi.v[k] = hn::MulAdd(mi.v[k], beta1, hn::Mul(gk, one_minus_beta1));
      vi.v[k] = hn::MulAdd(vi.v[k], beta2, hn::Mul(hn::Mul(gk, gk), one_minus_beta2));
      const VF denominator = hn::MulAdd(hn::Sqrt(vi.v[k]), inv_sqrt_bias2, eps);
      out.v[k] = hn::NegMulAdd(step_size, hn::Div(mi.v[k], denominator), hn::Mul(p.v[k], keep));
    });
    m.Store(mi, noise, i);
    v.Store(vi, noise, i);
    return out;
  }
  HWY_INLINE void Prefetch(int64_t i) const {
    m.Prefetch(i);
    v.Prefetch(i);
  }
};

template <typename Moment>
struct Momentum {
  static constexpr bool kIsRounded = Moment::kIsRounded;
  Moment b;
  VF decay, momentum, step_size;
  Momentum(const ChunkState& chunk, const UpdateScalars& s, bool decays)
      : b(chunk.moment1),
        decay(hn::Set(DF(), decays ? s.decay : 0.0f)),
        momentum(hn::Set(DF(), s.momentum)),
        step_size(hn::Set(DF(), s.step_size)) {}
  HWY_INLINE Floats Update(const Floats& p, const Floats& g, const Words& noise, int64_t i) const {
    Floats bi = b.Load(i), out;
    ForVecs([&](int64_t k) HWY_ATTR {
      bi.v[k] = hn::MulAdd(momentum, bi.v[k], hn::MulAdd(decay, p.v[k], g.v[k]));
      out.v[k] = hn::NegMulAdd(step_size, bi.v[k], p.v[k]);
    });
    b.Store(bi, noise, i);
    return out;
  }
  HWY_INLINE void Prefetch(int64_t i) const { b.Prefetch(i); }
};

template <typename Moment>
struct Lion {
  static constexpr bool kIsRounded = Moment::kIsRounded;
  Moment m;
  VF keep, beta1, one_minus_beta1, beta2, one_minus_beta2, step_size;
  Lion(const ChunkState& chunk, const UpdateScalars& s, bool decays)
      : m(chunk.moment1),
        keep(hn::Set(DF(), decays ? s.keep : 1.0f)),
        beta1(hn::Set(DF(), s.beta1)),
        one_minus_beta1(hn::Set(DF(), s.one_minus_beta1)),
        beta2(hn::Set(DF(), s.beta2)),
        one_minus_beta2(hn::Set(DF(), s.one_minus_beta2)),
        step_size(hn::Set(DF(), s.step_size)) {}
  HWY_INLINE Floats Update(const Floats& p, const Floats& g, const Words& noise, int64_t i) const {
    Floats mi = m.Load(i), out;
    ForVecs([&](int64_t k) HWY_ATTR {
      const VF direction = hn::MulAdd(mi.v[k], beta1, hn::Mul(g.v[k], one_minus_beta1));
      const VF step = hn::IfThenElseZero(hn::Ne(direction, hn::Zero(DF())), hn::CopySign(step_size, direction));
      out.v[k] = hn::Sub(hn::Mul(p.v[k], keep), step);
      mi.v[k] = hn::MulAdd(mi.v[k], beta2, hn::Mul(g.v[k], one_minus_beta2));
    });
    m.Store(mi, noise, i);
    return out;
  }
  HWY_INLINE void Prefetch(int64_t i) const { m.Prefetch(i); }
};

// Without momentum.
struct PlainSgd {
  static constexpr bool kIsRounded = false;
  VF decay, step_size;
  PlainSgd(const ChunkState& /*chunk*/, const UpdateScalars& s, bool decays)
      : decay(hn::Set(DF(), decays ? s.decay : 0.0f)), step_size(hn::Set(DF(), s.step_size)) {}
  HWY_INLINE Floats Update(const Floats& p, const Floats& g, const Words& /*noise*/, int64_t /*i*/) const {
    Floats out;
    ForVecs([&](int64_t k)
                HWY_ATTR { out.v[k] = hn::NegMulAdd(step_size, hn::MulAdd(decay, p.v[k], g.v[k]), p.v[k]); });
    return out;
  }
  HWY_INLINE void Prefetch(int64_t /*i*/) const {}
};

// Where the summed gradient comes from. The usual cases, at most two contributions, are read as the
// update goes; sums of more go through a block in L1.
struct Fp32Source {
  const float* values;
  HWY_INLINE Floats Load(int64_t i) const { return LoadFloats(values + i); }
  HWY_INLINE void Prefetch(int64_t i) const {
    hwy::Prefetch(values + i);
    hwy::Prefetch(values + i + kLanes);
  }
};
struct Bf16Source {
  const uint16_t* values;
  HWY_INLINE Floats Load(int64_t i) const { return LoadBf16s(values + i); }
  HWY_INLINE void Prefetch(int64_t i) const { hwy::Prefetch(values + i); }
};
template <typename Left, typename Right>
struct SumSource {
  Left left;
  Right right;
  HWY_INLINE Floats Load(int64_t i) const {
    Floats sum = left.Load(i);
    const Floats added = right.Load(i);
    ForVecs([&](int64_t k) HWY_ATTR { sum.v[k] = hn::Add(sum.v[k], added.v[k]); });
    return sum;
  }
  HWY_INLINE void Prefetch(int64_t i) const {
    left.Prefetch(i);
    right.Prefetch(i);
  }
};
struct BlockSource {
  const float* block;  // of element `first`
  int64_t first;
  HWY_INLINE Floats Load(int64_t i) const { return LoadFloats(block + (i - first)); }
  HWY_INLINE void Prefetch(int64_t) const {}
};

template <typename Rule, typename Master, typename Source>
void UpdateRange(const Rule rule, const Master master, const NoiseSource noise, const Source source, const VF scale,
                 int64_t begin, int64_t end, SquareLanes& squares) {
  SquareSum square(squares);
  for (int64_t i = begin; i < end; i += kPrefetchUnit) {
    const int64_t ahead = i + kPrefetchElems;
    rule.Prefetch(ahead);
    master.Prefetch(ahead);
    source.Prefetch(ahead);
    Words pairs = {};
    if constexpr (Rule::kIsRounded) pairs = noise.Pairs(i);
    for (int64_t at = i; at < i + kPrefetchUnit; at += kLanes) {
      Floats gradient = source.Load(at);
      square.Add(gradient);
      ForVecs([&](int64_t k) HWY_ATTR { gradient.v[k] = hn::Mul(gradient.v[k], scale); });
      Words half = {};
      if constexpr (Rule::kIsRounded) half = NoiseSource::Half(pairs, at != i);
      master.Store(rule.Update(master.Load(at), gradient, half, at), at);
    }
  }
  square.SaveTo(squares);
}

template <typename Rule, typename Master>
void UpdateDecayRange(const Rule rule, const Master master, const NoiseSource noise, const FusedProgram& program,
                      const VF scale, const DecayRange& range, SquareLanes& squares) {
  const auto update = [&](auto source, int64_t begin, int64_t end) {
    UpdateRange(rule, master, noise, source, scale, begin, end, squares);
  };
  if (program.ops.size() == 1) {
    const FusedOp& only = program.ops[0];
    const GradientOperand& a = program.operands[only.a];
    const GradientOperand& b = program.operands[only.b];
    const auto* a32 = reinterpret_cast<const float*>(a.values);
    const auto* b32 = reinterpret_cast<const float*>(b.values);
    const auto* a16 = reinterpret_cast<const uint16_t*>(a.values);
    const auto* b16 = reinterpret_cast<const uint16_t*>(b.values);
    const auto both = [&](Dtype dtype) { return a.dtype == dtype && b.dtype == dtype; };
    if (only.kind == FusedOp::Kind::kLoad) {
      if (a.dtype == Dtype::kBf16) return update(Bf16Source{a16}, range.begin, range.end);
      if (a.dtype == Dtype::kF32) return update(Fp32Source{a32}, range.begin, range.end);
    } else if (both(Dtype::kBf16)) {
      return update(SumSource<Bf16Source, Bf16Source>{{a16}, {b16}}, range.begin, range.end);
    } else if (both(Dtype::kF32)) {
      return update(SumSource<Fp32Source, Fp32Source>{{a32}, {b32}}, range.begin, range.end);
    }
  }
  HWY_ALIGN float scratch[kMaxDepth][kBlockElems];
  for (int64_t first = range.begin; first < range.end; first += kBlockElems) {
    const int64_t count = std::min(kBlockElems, range.end - first);
    update(BlockSource{SumBlock(program, first, count, scratch), first}, first, first + count);
  }
}

template <typename Rule, typename Master>
double UpdateRanges(const ChunkState& chunk, const FusedProgram& program, const DecayRange* ranges, size_t num_ranges,
                    const UpdateScalars& scalars) {
  SquareLanes squares;
  for (size_t r = 0; r < num_ranges; ++r) {
    UpdateDecayRange(Rule(chunk, scalars, ranges[r].decays), Master(chunk), NoiseSource(chunk, scalars), program,
                     hn::Set(DF(), scalars.gradient_scale), ranges[r], squares);
  }
  return squares.Total();
}

template <typename Rule>
double UpdateWith(const ChunkState& chunk, const FusedProgram& program, const DecayRange* ranges, size_t num_ranges,
                  const UpdateScalars& scalars) {
  switch (chunk.wire_dtype) {
    case Dtype::kF32:
      return UpdateRanges<Rule, Fp32Master>(chunk, program, ranges, num_ranges, scalars);
    case Dtype::kBf16:
      return UpdateRanges<Rule, SplitMaster>(chunk, program, ranges, num_ranges, scalars);
    case Dtype::kF16:
      break;
  }
  return UpdateRanges<Rule, Fp16Master>(chunk, program, ranges, num_ranges, scalars);
}

double UpdateChunkImpl(const ChunkState& chunk, const ChunkGradient& gradient, const DecayRange* ranges,
                       size_t num_ranges, const UpdateScalars& scalars) {
  const FusedProgram program = Fuse(gradient);
  const bool is_bf16 = chunk.moment_dtype == Dtype::kBf16;
  auto* update = UpdateWith<PlainSgd>;
  if (scalars.rule == OptimizerRule::kAdamW) {
    update = is_bf16 ? UpdateWith<AdamW<Bf16Moment>> : UpdateWith<AdamW<Fp32Moment>>;
  } else if (scalars.rule == OptimizerRule::kLion) {
    update = is_bf16 ? UpdateWith<Lion<Bf16Moment>> : UpdateWith<Lion<Fp32Moment>>;
  } else if (chunk.moment1 != nullptr) {
    update = is_bf16 ? UpdateWith<Momentum<Bf16Moment>> : UpdateWith<Momentum<Fp32Moment>>;
  }
  return update(chunk, program, ranges, num_ranges, scalars);
}

}  // namespace HWY_NAMESPACE
}  // namespace eps::server
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace eps::server {

HWY_EXPORT(HasFusedMultiplyAdd);
HWY_EXPORT(SumChunkImpl);
HWY_EXPORT(UpdateChunkImpl);

absl::Status CheckVectorUnit() {
  if (HWY_DYNAMIC_DISPATCH(HasFusedMultiplyAdd)()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "this processor's vectors have no fused multiply-add (x86: AVX2 with FMA), which the bits of "
      "a run depend on");
}

UpdateScalars ComputeUpdateScalars(const OptimizerConfig& optimizer, double learning_rate, int64_t update,
                                   double gradient_scale) {
  UpdateScalars s;
  s.rule = optimizer.rule;
  s.gradient_scale = static_cast<float>(gradient_scale);
  if (optimizer.rule == OptimizerRule::kSgd) {
    s.step_size = static_cast<float>(learning_rate);
    s.decay = static_cast<float>(optimizer.weight_decay);
    s.momentum = static_cast<float>(optimizer.momentum);
    return s;
  }
  s.keep = static_cast<float>(1 - learning_rate * optimizer.weight_decay);
  s.beta1 = static_cast<float>(optimizer.beta1);
  s.one_minus_beta1 = static_cast<float>(1 - optimizer.beta1);
  s.beta2 = static_cast<float>(optimizer.beta2);
  s.one_minus_beta2 = static_cast<float>(1 - optimizer.beta2);
  if (optimizer.rule == OptimizerRule::kLion) {
    s.step_size = static_cast<float>(learning_rate);
    return s;
  }
  const double t = static_cast<double>(update);
  s.step_size = static_cast<float>(learning_rate / (1 - std::pow(optimizer.beta1, t)));
  s.inv_sqrt_bias2 = static_cast<float>(1 / std::sqrt(1 - std::pow(optimizer.beta2, t)));
  s.eps = static_cast<float>(optimizer.eps);
  return s;
}

void UpdateChunk(const ChunkState& chunk, const ChunkGradient& gradient, absl::Span<const DecayRange> ranges,
                 const UpdateScalars& scalars, double* sum_of_squares) {
  const double squares = HWY_DYNAMIC_DISPATCH(UpdateChunkImpl)(chunk, gradient, ranges.data(), ranges.size(), scalars);
  if (sum_of_squares != nullptr) *sum_of_squares = squares;
}

double SumChunk(const ChunkGradient& gradient, int64_t num_elems, float* sum) {
  return HWY_DYNAMIC_DISPATCH(SumChunkImpl)(gradient, num_elems, sum);
}

}  // namespace eps::server
#endif  // HWY_ONCE
