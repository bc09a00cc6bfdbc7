#include "eps_server/optimizer/chunk_kernels.h"

#include <algorithm>
#include <cstddef>

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

// How far ahead memory is asked for, the best of 128 to 1024 (bench/update_bench, Zen 4); at once a cache line of 16-bit
// elements, two of fp32.
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
    master.Prefetch(ahead);
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
  HWY_ALIGN float scratch[kMaxSumDepth][kBlockElems];
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

using UpdateFn = double (*)(const ChunkState&, const FusedProgram&, const DecayRange*, size_t, const UpdateScalars&);

template <typename Moments>
UpdateFn UpdateWithMoments(const ChunkState& chunk, OptimizerRule rule) {
  switch (rule) {
    case OptimizerRule::kAdamW:
      return UpdateWith<AdamW<Moments>>;
    case OptimizerRule::kLion:
      return UpdateWith<Lion<Moments>>;
    case OptimizerRule::kSgd:
      break;
  }
  return chunk.moment1 != nullptr ? UpdateWith<Momentum<Moments>> : UpdateWith<PlainSgd>;
}

UpdateFn UpdateOf(const ChunkState& chunk, OptimizerRule rule) {
  switch (chunk.moment_format) {
    case MomentFormat::kFp32:
      return UpdateWithMoments<Fp32Moments>(chunk, rule);
    case MomentFormat::kBf16:
      return UpdateWithMoments<Bf16Moments>(chunk, rule);
    case MomentFormat::kFp8:
      break;
  }
  return UpdateWithMoments<Fp8Moments>(chunk, rule);
}

double UpdateChunkImpl(const ChunkState& chunk, const ChunkGradient& gradient, const DecayRange* ranges,
                       size_t num_ranges, const UpdateScalars& scalars) {
  const FusedProgram program = Fuse(gradient);
  auto* const update = UpdateOf(chunk, scalars.rule);
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
