#include "eps_server/optimizer/chunk_kernels.h"

#include <algorithm>
#include <cstddef>

#include "absl/types/span.h"
#include "common/base/status_macros.h"
#include "common/model/model_spec.h"
#include "common/spec/moment_format.h"
#include "common/spec/run_config.h"
#include "common/tensor/dtype.h"
#include "eps_server/optimizer/sum_program.h"
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
// After foreach_target.h: these are per target.
#include "eps_server/optimizer/gradient_sources-inl.h"
#include "eps_server/optimizer/lanes-inl.h"
#include "eps_server/optimizer/masters-inl.h"
#include "eps_server/optimizer/moments-inl.h"
#include "eps_server/optimizer/sums-inl.h"
#include "eps_server/optimizer/update_rules-inl.h"

HWY_BEFORE_NAMESPACE();
namespace eps::server {
namespace HWY_NAMESPACE {

// How far ahead memory is asked for, the best of 128 to 1024 (bench/update_bench, Zen 4); at once a cache line of
// 16-bit elements, two of fp32.
constexpr int64_t kPrefetchElems = 256;
static_assert(kTensorAlignElems % kUnitElems == 0);

bool HasFusedMultiplyAdd() { return HWY_NATIVE_FMA != 0; }

double SumChunkImpl(const ChunkGradient& gradient, int64_t num_elems, float* sum) {
  const FusedProgram program = Fuse(gradient);
  HWY_ALIGN float scratch[kMaxSumDepth][kBlockElems];
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

template <typename Rule, typename Master, typename Source>
void UpdateRange(const Rule rule, const Master master, const NoiseSource noise, const Source source, const VF scale,
                 int64_t begin, int64_t end, SquareLanes& squares) {
  SquareSum square(squares);
  for (int64_t i = begin; i < end; i += kUnitElems) {
    const int64_t ahead = i + kPrefetchElems;
    rule.Prefetch(ahead);
    master.PrefetchIn(ahead);
    master.PrefetchOut(ahead);
    source.Prefetch(ahead);
    UnitNoise of_unit = {};
    if constexpr (Rule::kIsRounded) of_unit = noise.Of(i);
    typename Rule::Unit unit = rule.Open(i);
    for (int half = 0; half < 2; ++half) {
      const int64_t at = i + half * kLanes;
      Floats gradient = source.Load(at);
      square.Add(gradient);
      ForVecs([&](int64_t k) HWY_ATTR { gradient.v[k] = hn::Mul(gradient.v[k], scale); });
      master.Store(rule.Update(master.Load(at), gradient, of_unit, unit, half), at);
    }
    unit.Close(of_unit);
  }
  square.SaveTo(squares);
}

// visit(source, begin, end) of parts of [range.begin, range.end), one behind the other.
template <typename Visit>
void ForEachSource(const FusedProgram& program, const GroupRange& range, const Visit& visit) {
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
      if (a.dtype == Dtype::kBf16) return visit(Bf16Source{a16}, range.begin, range.end);
      if (a.dtype == Dtype::kF32) return visit(Fp32Source{a32}, range.begin, range.end);
    } else if (both(Dtype::kBf16)) {
      return visit(SumSource<Bf16Source, Bf16Source>{{a16}, {b16}}, range.begin, range.end);
    } else if (both(Dtype::kF32)) {
      return visit(SumSource<Fp32Source, Fp32Source>{{a32}, {b32}}, range.begin, range.end);
    }
  }
  HWY_ALIGN float scratch[kMaxSumDepth][kBlockElems];
  for (int64_t first = range.begin; first < range.end; first += kBlockElems) {
    const int64_t count = std::min(kBlockElems, range.end - first);
    visit(BlockSource{SumBlock(program, first, count, scratch), first}, first, first + count);
  }
}

template <typename Rule, typename Master>
double UpdateRanges(const ChunkState& chunk, const FusedProgram& program, absl::Span<const GroupRange> ranges,
                    const UpdateScalars& scalars) {
  SquareLanes squares;
  const Master master(chunk);
  const NoiseSource noise(chunk, scalars);
  const VF scale = hn::Set(DF(), scalars.gradient_scale);
  for (const GroupRange& range : ranges) {
    const Rule rule(chunk, scalars, scalars.groups[static_cast<size_t>(range.group)]);
    ForEachSource(program, range, [&](auto source, int64_t begin, int64_t end) HWY_ATTR {
      UpdateRange(rule, master, noise, source, scale, begin, end, squares);
    });
  }
  return squares.Total();
}

struct LambSquares {
  SquareLanes weights, step;
};

template <typename Moments, typename Master, typename Source>
void MeasureRange(const LambStep<Moments>& rule, const Master master, const Source source, const VF scale,
                  int64_t begin, int64_t end, SquareLanes& gradient_squares, LambSquares& squares) {
  SquareSum of_gradient(gradient_squares), of_weights(squares.weights), of_step(squares.step);
  for (int64_t i = begin; i < end; i += kUnitElems) {
    const int64_t ahead = i + kPrefetchElems;
    rule.adam.Prefetch(ahead);
    master.PrefetchIn(ahead);
    source.Prefetch(ahead);
    const typename AdamW<Moments>::Unit unit = rule.adam.Open(i);
    for (int half = 0; half < 2; ++half) {
      const int64_t at = i + half * kLanes;
      Floats gradient = source.Load(at);
      of_gradient.Add(gradient);
      ForVecs([&](int64_t k) HWY_ATTR { gradient.v[k] = hn::Mul(gradient.v[k], scale); });
      const Floats weights = master.Load(at);
      of_weights.Add(weights);
      of_step.Add(rule.Of(weights, gradient, unit, half));
    }
  }
  of_gradient.SaveTo(gradient_squares);
  of_weights.SaveTo(squares.weights);
  of_step.SaveTo(squares.step);
}

template <typename Moments, typename Master>
double MeasureRanges(const ChunkState& chunk, const FusedProgram& program, absl::Span<const GroupRange> ranges,
                     const UpdateScalars& scalars, absl::Span<StepSquares> result) {
  SquareLanes gradient_squares;
  const Master master(chunk);
  const VF scale = hn::Set(DF(), scalars.gradient_scale);
  for (size_t r = 0; r < ranges.size(); ++r) {
    const LambStep<Moments> rule(chunk, scalars, scalars.groups[static_cast<size_t>(ranges[r].group)]);
    LambSquares squares;
    ForEachSource(program, ranges[r], [&](auto source, int64_t begin, int64_t end) HWY_ATTR {
      MeasureRange(rule, master, source, scale, begin, end, gradient_squares, squares);
    });
    result[r] = {squares.weights.Total(), squares.step.Total()};
  }
  return gradient_squares.Total();
}

// visit(TypeConstant<Master>) of the form in which the store keeps masters.
template <typename Type>
struct TypeConstant {
  using type = Type;
};
template <typename Visit>
double ForMaster(const ChunkState& chunk, const Visit& visit) {
  switch (chunk.wire_dtype) {
    case Dtype::kF32:
      return visit(TypeConstant<Fp32Master>());
    case Dtype::kBf16:
      return visit(TypeConstant<SplitMaster>());
    case Dtype::kF16:
      break;
  }
  return visit(TypeConstant<Fp16Master>());
}
template <typename Visit>
double ForMoments(const ChunkState& chunk, const Visit& visit) {
  switch (chunk.moment_format) {
    case MomentFormat::kFp32:
      return visit(TypeConstant<Fp32Moments>());
    case MomentFormat::kBf16:
      return visit(TypeConstant<Bf16Moments>());
    case MomentFormat::kFp8:
      break;
  }
  return visit(TypeConstant<Fp8Moments>());
}

template <typename Rule>
double UpdateWith(const ChunkState& chunk, const FusedProgram& program, absl::Span<const GroupRange> ranges,
                  const UpdateScalars& scalars) {
  return ForMaster(chunk, [&](auto master) {
    return UpdateRanges<Rule, typename decltype(master)::type>(chunk, program, ranges, scalars);
  });
}

double UpdateChunkImpl(const ChunkState& chunk, const ChunkGradient& gradient, absl::Span<const GroupRange> ranges,
                       const UpdateScalars& scalars) {
  const FusedProgram program = Fuse(gradient);
  return ForMoments(chunk, [&](auto moments) {
    using Moments = typename decltype(moments)::type;
    switch (scalars.rule) {
      case OptimizerRule::kAdamW:
      case OptimizerRule::kLamb:
        return UpdateWith<AdamW<Moments>>(chunk, program, ranges, scalars);
      case OptimizerRule::kAdam:
        return UpdateWith<Adam<Moments>>(chunk, program, ranges, scalars);
      case OptimizerRule::kLion:
        return UpdateWith<Lion<Moments>>(chunk, program, ranges, scalars);
      case OptimizerRule::kSgd:
        break;
    }
    return chunk.moment1 != nullptr ? UpdateWith<Momentum<Moments>>(chunk, program, ranges, scalars)
                                    : UpdateWith<PlainSgd>(chunk, program, ranges, scalars);
  });
}

double MeasureStepsImpl(const ChunkState& chunk, const ChunkGradient& gradient, absl::Span<const GroupRange> ranges,
                        const UpdateScalars& scalars, absl::Span<StepSquares> squares) {
  const FusedProgram program = Fuse(gradient);
  return ForMoments(chunk, [&](auto moments) {
    return ForMaster(chunk, [&](auto master) {
      return MeasureRanges<typename decltype(moments)::type, typename decltype(master)::type>(chunk, program, ranges,
                                                                                              scalars, squares);
    });
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace eps::server
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace eps::server {

HWY_EXPORT(HasFusedMultiplyAdd);
HWY_EXPORT(SumChunkImpl);
HWY_EXPORT(UpdateChunkImpl);
HWY_EXPORT(MeasureStepsImpl);

absl::Status CheckVectorUnit() {
  if (HWY_DYNAMIC_DISPATCH(HasFusedMultiplyAdd)()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "this processor's vectors have no fused multiply-add (x86: AVX2 with FMA), which the bits of "
      "a run depend on");
}

void UpdateChunk(const ChunkState& chunk, const ChunkGradient& gradient, absl::Span<const GroupRange> ranges,
                 const UpdateScalars& scalars, double* sum_of_squares) {
  const double squares = HWY_DYNAMIC_DISPATCH(UpdateChunkImpl)(chunk, gradient, ranges, scalars);
  if (sum_of_squares != nullptr) *sum_of_squares = squares;
}

double MeasureSteps(const ChunkState& chunk, const ChunkGradient& gradient, absl::Span<const GroupRange> ranges,
                    const UpdateScalars& scalars, absl::Span<StepSquares> squares) {
  EPS_CHECK(squares.size() == ranges.size());
  return HWY_DYNAMIC_DISPATCH(MeasureStepsImpl)(chunk, gradient, ranges, scalars, squares);
}

double SumChunk(const ChunkGradient& gradient, int64_t num_elems, float* sum) {
  return HWY_DYNAMIC_DISPATCH(SumChunkImpl)(gradient, num_elems, sum);
}

}  // namespace eps::server
#endif  // HWY_ONCE
