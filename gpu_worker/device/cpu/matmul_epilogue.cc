#include "gpu_worker/device/cpu/matmul_epilogue.h"

#include <cstdint>

#include "gpu_worker/device/cpu/vector_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "gpu_worker/device/cpu/matmul_epilogue.cc"
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

using Epilogue = MatMulArgs::Epilogue;

// Writes a row's vectors, past the caches where that is asked for and the row is aligned.
class RowWriter {
 public:
  RowWriter(float* row, bool past_caches)
      : row_(row), past_caches_(past_caches && reinterpret_cast<uintptr_t>(row) % (kVecLanes * sizeof(float)) == 0) {}
  HWY_INLINE void Write(VF v, int64_t j, int64_t n) const {
    if (past_caches_ && n - j >= kVecLanes) {
      hn::Stream(v, DF(), row_ + j);
    } else {
      StoreTail(v, DF(), row_ + j, n - j);
    }
  }

 private:
  float* const row_;
  const bool past_caches_;
};

// The sums of one row, n of them, plus the bias, which may be null.
HWY_INLINE VF Biased(const float* sums, const float* bias, int64_t j, int64_t n) {
  const DF d;
  const VF x = LoadTail(d, sums + j, n - j);
  return bias == nullptr ? x : hn::Add(x, LoadTail(d, bias + j, n - j));
}

HWY_INLINE void BiasRow(const float* sums, const float* bias, const RowWriter& c, int64_t n) {
  for (int64_t j = 0; j < n; j += kVecLanes) c.Write(Biased(sums, bias, j, n), j, n);
}

template <typename F>
HWY_INLINE void ActivationRow(const F& f, const float* sums, const float* bias, const RowWriter& c,
                              const RowWriter& activated, int64_t n) {
  for (int64_t j = 0; j < n; j += kVecLanes) {
    const VF x = Biased(sums, bias, j, n);
    c.Write(x, j, n);
    activated.Write(f(DF(), x).y, j, n);
  }
}

// words: the dropout's, or null.
HWY_INLINE void ResidualRow(const float* sums, const float* bias, const float* residual, const DropoutPlan& dropout,
                            const uint32_t* words, const RowWriter& c, int64_t n) {
  const DF d;
  for (int64_t j = 0; j < n; j += kVecLanes) {
    VF x = Biased(sums, bias, j, n);
    if (words != nullptr) x = DropV(dropout, x, hn::LoadU(DU32(), words + j));
    c.Write(hn::Add(LoadTail(d, residual + j, n - j), x), j, n);
  }
}

void EpilogueImpl(const MatMulArgs& args, const DropoutPlan& dropout, const OutputBlock& block, float* scratch) {
  const int64_t n = block.num_columns;
  const float* bias = args.bias == nullptr ? nullptr : static_cast<const float*>(args.bias) + block.column;
  for (int64_t i = 0; i < block.num_rows; ++i) {
    const int64_t row = block.row + i, at = row * args.ldc + block.column;
    float* const c_row = static_cast<float*>(args.c) + at;
    const float* sums = block.sums + i * block.sums_row;
    const RowWriter c(c_row, block.past_caches && sums != c_row);
    switch (args.epilogue) {
      case Epilogue::kNone:
        BiasRow(sums, bias, c, n);
        break;
      case Epilogue::kActivation:
        ForActivation(args.activation, [&](const auto& f) HWY_ATTR {
          ActivationRow(f, sums, bias, c, RowWriter(static_cast<float*>(args.activated) + at, block.past_caches), n);
        });
        break;
      case Epilogue::kResidual: {
        if (args.residual == args.c) {  // the product was added to it already; there is no dropout then
          BiasRow(sums, bias, c, n);
          break;
        }
        const uint32_t* words = nullptr;
        if (dropout.on) {
          words = KeepBits(dropout, row * args.N + block.column, n, reinterpret_cast<uint32_t*>(scratch));
        }
        ResidualRow(sums, bias, static_cast<const float*>(args.residual) + at, dropout, words, c, n);
        break;
      }
    }
  }
  if (block.past_caches) hwy::FlushStream();  // visible before the tile counts as done
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace eps::worker::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace eps::worker::cpu {

HWY_EXPORT(EpilogueImpl);

void MatMulEpilogue(const MatMulArgs& args, const DropoutPlan& dropout, const OutputBlock& block, float* scratch) {
  const bool in_c = block.sums == static_cast<float*>(args.c) + block.row * args.ldc + block.column;
  const bool only_sums = args.epilogue == MatMulArgs::Epilogue::kNone ||
                         (args.epilogue == MatMulArgs::Epilogue::kResidual && args.residual == args.c);
  if (in_c && only_sums && args.bias == nullptr) return;
  HWY_DYNAMIC_DISPATCH(EpilogueImpl)(args, dropout, block, scratch);
}

}  // namespace eps::worker::cpu
#endif  // HWY_ONCE
