#include "gpu_worker/device/cpu/matmul_epilogue.h"

#include <cstdint>

#include "gpu_worker/device/cpu/vector_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "gpu_worker/device/cpu/matmul_epilogue.cc"
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

// One row of a tile, n elements.
HWY_INLINE void BiasRow(float* c, const float* bias, int64_t n) {
  const DF d;
  for (int64_t j = 0; j < n; j += kVecLanes) {
    StoreTail(hn::Add(LoadTail(d, c + j, n - j), LoadTail(d, bias + j, n - j)), d, c + j, n - j);
  }
}

template <typename F>
HWY_INLINE void ActivationRow(const F& f, float* c, const float* bias, float* activated, int64_t n) {
  const DF d;
  for (int64_t j = 0; j < n; j += kVecLanes) {
    VF x = LoadTail(d, c + j, n - j);
    if (bias != nullptr) {
      x = hn::Add(x, LoadTail(d, bias + j, n - j));
      StoreTail(x, d, c + j, n - j);
    }
    StoreTail(f(d, x).y, d, activated + j, n - j);
  }
}

// words: the dropout's, or null.
HWY_INLINE void ResidualRow(float* c, const float* bias, const float* residual, const DropoutPlan& dropout,
                            const uint32_t* words, int64_t n) {
  const DF d;
  for (int64_t j = 0; j < n; j += kVecLanes) {
    VF x = LoadTail(d, c + j, n - j);
    if (bias != nullptr) x = hn::Add(x, LoadTail(d, bias + j, n - j));
    if (words != nullptr) x = DropV(dropout, x, hn::LoadU(DU32(), words + j));
    StoreTail(hn::Add(LoadTail(d, residual + j, n - j), x), d, c + j, n - j);
  }
}

void EpilogueImpl(const MatMulArgs& args, const DropoutPlan& dropout, const OutputTile& tile, float* scratch) {
  const int64_t n = tile.num_columns;
  const float* bias = args.bias == nullptr ? nullptr : static_cast<const float*>(args.bias) + tile.column;
  for (int64_t row = tile.row; row < tile.row + tile.num_rows; ++row) {
    const int64_t at = row * args.ldc + tile.column;
    float* c = static_cast<float*>(args.c) + at;
    switch (args.epilogue) {
      case Epilogue::kNone:
        if (bias != nullptr) BiasRow(c, bias, n);
        break;
      case Epilogue::kActivation:
        ForActivation(args.activation, [&](const auto& f) HWY_ATTR {
          ActivationRow(f, c, bias, static_cast<float*>(args.activated) + at, n);
        });
        break;
      case Epilogue::kResidual: {
        if (args.residual == args.c) {  // the product was added to it already; there is no dropout then
          if (bias != nullptr) BiasRow(c, bias, n);
          break;
        }
        const uint32_t* words = nullptr;
        if (dropout.on) {
          words = KeepBits(dropout, row * args.N + tile.column, n, reinterpret_cast<uint32_t*>(scratch));
        }
        ResidualRow(c, bias, static_cast<const float*>(args.residual) + at, dropout, words, n);
        break;
      }
    }
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace eps::worker::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace eps::worker::cpu {

HWY_EXPORT(EpilogueImpl);

void MatMulEpilogue(const MatMulArgs& args, const DropoutPlan& dropout, const OutputTile& tile, float* scratch) {
  if (args.epilogue == MatMulArgs::Epilogue::kNone && args.bias == nullptr) return;
  HWY_DYNAMIC_DISPATCH(EpilogueImpl)(args, dropout, tile, scratch);
}

}  // namespace eps::worker::cpu
#endif  // HWY_ONCE
