// Sums of a chunk's contributions, and of squares; included once per target.

#if defined(EPS_SERVER_OPTIMIZER_SUMS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef EPS_SERVER_OPTIMIZER_SUMS_INL_H_
#undef EPS_SERVER_OPTIMIZER_SUMS_INL_H_
#else
#define EPS_SERVER_OPTIMIZER_SUMS_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "common/tensor/dtype.h"
#include "eps_server/optimizer/lanes-inl.h"
#include "eps_server/optimizer/sum_program.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace eps::server {
namespace HWY_NAMESPACE {

inline constexpr int64_t kBlockElems = 1024;  // 4 KiB of fp32: a block of sums stays in L1

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
HWY_INLINE void AddBlock(const float* HWY_RESTRICT right, int64_t count, float* HWY_RESTRICT left) {
  for (int64_t i = 0; i < count; i += kVec) {
    hn::Store(hn::Add(hn::Load(DF(), left + i), hn::Load(DF(), right + i)), DF(), left + i);
  }
}

// Elements [first, first + count) of the sum: in place if there is a single fp32 contribution, else
// in scratch.
inline const float* SumBlock(const FusedProgram& program, int64_t first, int64_t count, float (*scratch)[kBlockElems]) {
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

struct SquareLanes {
  alignas(64) double lanes[kLanes] = {};
  double Total() const {
    double total = 0;
    for (const double lane : lanes) total += lane;
    return total;
  }
};

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

}  // namespace HWY_NAMESPACE
}  // namespace eps::server
HWY_AFTER_NAMESPACE();

#endif  // EPS_SERVER_OPTIMIZER_SUMS_INL_H_
