#include "gpu_worker/device/cuda/elementwise.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "common/numeric/bf16.h"
#include "common/numeric/mx_int8.h"
#include "common/numeric/nf4.h"
#include "common/numeric/quantized.h"
#include "common/tensor/dtype.h"
#include "gpu_worker/device/cuda/act_dispatch.h"
#include "gpu_worker/device/cuda/cuda_kernel_sizes.h"
#include "gpu_worker/device/cuda/device_code.h"
#include "gpu_worker/device/cuda/device_dropout.h"
#include "gpu_worker/device/cuda/launch.h"
#include "gpu_worker/device/cuda/reduction.h"
#include "gpu_worker/device/cuda/sigmoid.h"
#include "gpu_worker/device/cuda/simt.h"
#include "gpu_worker/device/cuda/tile_sums.h"
#include "gpu_worker/device/kernels.h"

namespace eps::worker::cuda {
namespace {

constexpr float kTwoSqrtTwoOverPi = 1.5957691216057308f;
constexpr float kCubic = 0.044715f;

// An activation and its derivative. The one place where either is computed: forward and backward give the same bits.
struct Activated {
  float y, slope;
};
template <Activation kActivation>
__device__ __forceinline__ Activated Activate(float x) {
  if constexpr (kActivation == Activation::kGeluTanh) {
    // 0.5 (1 + tanh(u)) is sigmoid(2u), with u = sqrt(2/pi) (x + 0.044715 x^3). Few operations: beside them there is
    // little to wait for but memory.
    constexpr float kScale = kTwoSqrtTwoOverPi, kCubicScale = kTwoSqrtTwoOverPi * kCubic;
    const float square = x * x;
    const SigmoidParts parts = PartsOfSigmoid(x * fmaf(kCubicScale, square, kScale));
    const float inner_slope = fmaf(3 * kCubicScale, square, kScale);  // of 2u
    return {x * parts.sigmoid, fmaf(x * parts.slope, inner_slope, parts.sigmoid)};
  } else if constexpr (kActivation == Activation::kGelu) {
    constexpr float kOneOverSqrtTwo = 0.7071067811865476f, kOneOverSqrtTwoPi = 0.3989422804014327f;
    const float phi = 0.5f * erfcf(-x * kOneOverSqrtTwo);
    return {x * phi, phi + x * kOneOverSqrtTwoPi * expf(-0.5f * x * x)};
  } else {
    const SigmoidParts parts = PartsOfSigmoid(2 * x);
    return {tanhf(x), 4 * parts.slope};
  }
}

// fn(an integral constant of `activation`).
template <typename Fn>
void ForActivation(Activation activation, const Fn& fn) {
  switch (activation) {
    case Activation::kGeluTanh:
      return fn(std::integral_constant<Activation, Activation::kGeluTanh>());
    case Activation::kGelu:
      return fn(std::integral_constant<Activation, Activation::kGelu>());
    case Activation::kTanh:
      return fn(std::integral_constant<Activation, Activation::kTanh>());
  }
}

template <typename T, bool kVector, Activation kActivation>
__global__ void ActivateKernel(int64_t M, int64_t N, int64_t ld, const T* x, T* y) {
  const int64_t at = PackStart();
  for (int64_t row = blockIdx.y; row < M; row += gridDim.y) {
    float v[kPack];
    LoadPack<kVector>(x + row * ld, at, N, v);
    EPS_UNROLL
    for (int i = 0; i < kPack; ++i) v[i] = Activate<kActivation>(v[i]).y;
    StorePack<kVector>(v, y + row * ld, at, N);
  }
}

template <typename T, bool kVector>
__global__ void AddResidualKernel(int64_t M, int64_t N, int64_t ld, const T* x, const T* residual, T* y,
                                  DeviceDropout dropout) {
  const int64_t at = PackStart();
  for (int64_t row = blockIdx.y; row < M; row += gridDim.y) {
    float v[kPack], r[kPack], factors[kPack];
    LoadPack<kVector>(x + row * ld, at, N, v);
    LoadPack<kVector>(residual + row * ld, at, N, r);
    DropoutFactors(dropout, row * N + at, factors);
    EPS_UNROLL
    for (int i = 0; i < kPack; ++i) v[i] = factors[i] == 0 ? r[i] : r[i] + v[i] * factors[i];
    StorePack<kVector>(v, y + row * ld, at, N);
  }
}

// Of elements [at, at + 8) of a row of N: what dy becomes, before it is rounded, is in d too; 0 from N on.
template <typename T, bool kVector, Activation kActivation>
__device__ __forceinline__ void ActivationBackwardPack(const T* x, T* dy, T* activated, int64_t at, int64_t N,
                                                       float (&d)[kPack]) {
  float v[kPack];
  LoadPack<kVector>(x, at, N, v);
  LoadPack<kVector>(dy, at, N, d);
  EPS_UNROLL
  for (int i = 0; i < kPack; ++i) {
    const Activated a = Activate<kActivation>(v[i]);
    d[i] *= a.slope;
    v[i] = a.y;
  }
  StorePack<kVector>(d, dy, at, N);
  if (activated != nullptr) StorePack<kVector>(v, activated, at, N);
}

template <typename T, Activation kActivation>
__global__ void ActivationBackwardKernel(int64_t n, const T* x, T* dy, T* activated) {
  float d[kPack];
  ActivationBackwardPack<T, true, kActivation>(x, dy, activated, PackStart(), n, d);
}

// And a tile's sums of the columns of dy, as they are stored: what ColumnSum's kernel gives.
template <typename T, bool kVector, Activation kActivation>
__global__ void __launch_bounds__(kTileWarps* kWarpSize, 4)
    ActivationBackwardColumnsKernel(int64_t M, int64_t N, int64_t rows_per_tile, const T* x, T* dy, T* activated,
                                    float* partials) {
  SumColumns(M, N, rows_per_tile, partials, [&](int64_t row, int64_t at, float(&d)[kPack]) {
    ActivationBackwardPack<T, kVector, kActivation>(x + row * N, dy + row * N,
                                                    activated == nullptr ? nullptr : activated + row * N, at, N, d);
    EPS_UNROLL
    for (int i = 0; i < kPack; ++i) d[i] = ToFloat(FromFloat<T>(d[i]));
  });
}

template <typename T>
__global__ void DropoutKernel(int64_t n, const T* x, T* y, DeviceDropout dropout) {
  const int64_t at = PackStart();
  float v[kPack], factors[kPack];
  LoadPack<true>(x, at, n, v);
  DropoutFactors(dropout, at, factors);
  EPS_UNROLL
  for (int i = 0; i < kPack; ++i) v[i] = factors[i] == 0 ? 0 : v[i] * factors[i];
  StorePack<true>(v, y, at, n);
}

template <typename T>
__global__ void DropoutMaskKernel(int64_t n, T* y, DeviceDropout dropout) {
  const int64_t at = PackStart();
  float factors[kPack];
  DropoutFactors(dropout, at, factors);
  StorePack<true>(factors, y, at, n);
}

template <typename T>
__global__ void DocumentBiasKernel(int64_t n, int64_t columns, Documents documents, T* y) {
  const int64_t at = PackStart();
  int64_t row = at / columns, column = at % columns;  // of all sequences' rows
  float bias[kPack];
  EPS_UNROLL
  for (int i = 0; i < kPack; ++i) {
    const bool seen = at + i < n && column >= documents.first[row] && column < documents.end[row];
    bias[i] = seen ? 0.0f : -INFINITY;
    if (++column == columns) {
      column = 0;
      ++row;
    }
  }
  StorePack<true>(bias, y, at, n);
}

__global__ void SetDropoutKeysKernel(DropoutKeyPack pack, PhiloxKey* out) {
  const int i = static_cast<int>(threadIdx.x);
  if (i < pack.count) out[i] = pack.keys[i];
}

// Wire forms have the bits of activations: only how a number comes to those of bf16 differs.
template <typename From, typename To>
__global__ void WidenKernel(int64_t n, const From* src, To* dst) {
  const int64_t at = PackStart();
  float v[kPack];
  LoadPack<true>(src, at, n, v);
  StorePack<true>(v, dst, at, n);
}

// A pack lies in one block, and a block in one run.
template <typename To>
__global__ void DequantizeMxInt8Kernel(int64_t n, const uint8_t* src, To* dst) {
  static_assert(kMxBlockElems % kPack == 0 && kPack == sizeof(uint64_t));
  const int64_t at = PackStart();
  if (at >= n) return;
  const int64_t run = at / kMxRunElems, within = at % kMxRunElems, left = n - run * kMxRunElems;
  const uint8_t* from = src + run * MxInt8Bytes(kMxRunElems);
  const uint64_t codes = *reinterpret_cast<const uint64_t*>(from + within);
  const float unit = MxInt8Unit(from[(left < kMxRunElems ? left : kMxRunElems) + within / kMxBlockElems]);
  float v[kPack];
  EPS_UNROLL
  for (int i = 0; i < kPack; ++i) v[i] = static_cast<float>(static_cast<int8_t>(codes >> (8 * i))) * unit;
  StorePack<true>(v, dst, at, n);
}

// The 16 numbers are in 16 banks of shared memory, which a warp's threads read at once, whatever their codes are.
template <typename To>
__global__ void DequantizeNf4Kernel(int64_t n, const uint8_t* src, To* dst) {
  static_assert(kNf4BlockElems % kPack == 0 && kPack / 2 == sizeof(uint32_t));
  __shared__ float numbers[kNf4Codes];
  if (threadIdx.x < kNf4Codes) numbers[threadIdx.x] = Nf4Number(static_cast<int>(threadIdx.x));
  __syncthreads();
  const int64_t at = PackStart();
  if (at >= n) return;
  const int64_t within = at % kNf4BlockElems;
  const Nf4Place place = Nf4Place::Of(at - within, n);
  const uint32_t codes = *reinterpret_cast<const uint32_t*>(src + place.codes + within / 2);
  const Bf16 scale = {*reinterpret_cast<const uint16_t*>(src + place.scale)};
  float v[kPack];
  EPS_UNROLL
  for (int i = 0; i < kPack; ++i) v[i] = Nf4Value(numbers[codes >> (4 * i) & 15], scale);
  StorePack<true>(v, dst, at, n);
}

struct alignas(16) CopyPack {
  uint32_t words[4];
};
constexpr int kCopyThreads = 128;  // few, so that the reads of 64 KiB over a link are spread over 32 multiprocessors

template <typename Unit>
__global__ void CopyWordsKernel(int64_t n, const Unit* from, Unit* to) {
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kCopyThreads + threadIdx.x;
  if (at < n) to[at] = from[at];
}

template <typename Unit>
KernelCall CopyUnits(int64_t num_bytes, const void* from, void* to) {
  const int64_t n = num_bytes / static_cast<int64_t>(sizeof(Unit));
  return MakeCall("CopyWords", {.blocks_x = CeilDiv(n, kCopyThreads), .threads = kCopyThreads}, &CopyWordsKernel<Unit>,
                  n, static_cast<const Unit*>(from), static_cast<Unit*>(to));
}

// Gradients are passed over in quads of 4 elements, of which a thread takes two, a block's width apart: what a warp
// stores at once are whole sectors of 32 bytes. The two accesses of a pack of fp32 would each be to half of every
// sector.
constexpr int kQuad = 4;
constexpr int kQuads = kPack / kQuad;
template <typename T>
struct alignas(kQuad * sizeof(T)) Quad {
  T element[kQuad];
};

// The first element of the calling thread's quad.
__device__ __forceinline__ int64_t QuadStart(int quad) {
  return ((static_cast<int64_t>(blockIdx.x) * kQuads + quad) * blockDim.x + threadIdx.x) * kQuad;
}

// The calling thread's quads of `x` (n); 0 behind the end. All are loaded before what follows stores to any.
struct Quads {
  Quad<float> quad[kQuads];
};
__device__ __forceinline__ Quads LoadQuads(const float* x, int64_t n) {
  Quads quads;
  EPS_UNROLL
  for (int q = 0; q < kQuads; ++q) {
    const int64_t at = QuadStart(q);
    if (at + kQuad <= n) {
      quads.quad[q] = *reinterpret_cast<const Quad<float>*>(x + at);
    } else {
      EPS_UNROLL
      for (int i = 0; i < kQuad; ++i) quads.quad[q].element[i] = at + i < n ? x[at + i] : 0.0f;
    }
  }
  return quads;
}

template <typename T>
__device__ __forceinline__ void StoreQuad(const Quad<T>& quad, T* x, int64_t at, int64_t n) {
  if (at + kQuad <= n) {
    *reinterpret_cast<Quad<T>*>(x + at) = quad;
  } else {
    EPS_UNROLL
    for (int i = 0; i < kQuad; ++i) {
      if (at + i < n) x[at + i] = quad.element[i];
    }
  }
}

// A gradient as bits of a wire form.
template <typename Wire>
__device__ __forceinline__ Wire NarrowGradient(float x) {
  return FromFloat<Wire>(x);
}
template <>
__device__ __forceinline__ ActBf16 NarrowGradient<ActBf16>(float x) {
  return {ToBf16(x).bits};
}

template <typename Wire>
__device__ __forceinline__ Quad<Wire> NarrowQuad(const Quad<float>& quad) {
  Quad<Wire> narrow;
  EPS_UNROLL
  for (int i = 0; i < kQuad; ++i) narrow.element[i] = NarrowGradient<Wire>(quad.element[i]);
  return narrow;
}

// Rounds to values of Wire. Out: Wire, or float for the values themselves. `dst` may be `src`; null: none are wanted.
template <typename Wire, typename Out>
__global__ void FinishLeafKernel(int64_t n, const float* src, Out* dst, int32_t* finite) {
  const Quads quads = LoadQuads(src, n);
  bool all_finite = true;
  EPS_UNROLL
  for (int q = 0; q < kQuads; ++q) {
    EPS_UNROLL
    for (int i = 0; i < kQuad; ++i) {
      all_finite = all_finite && (std::bit_cast<uint32_t>(quads.quad[q].element[i]) & 0x7F800000) != 0x7F800000;
    }
  }
  if (!all_finite) *finite = 0;  // whoever writes, writes this
  if (dst == nullptr) return;
  EPS_UNROLL
  for (int q = 0; q < kQuads; ++q) {
    const Quad<Wire> narrow = NarrowQuad<Wire>(quads.quad[q]);
    if constexpr (std::is_same_v<Out, Wire>) {
      StoreQuad(narrow, dst, QuadStart(q), n);
    } else {
      Quad<float> rounded;
      EPS_UNROLL
      for (int i = 0; i < kQuad; ++i) rounded.element[i] = ToFloat(narrow.element[i]);
      StoreQuad(rounded, dst, QuadStart(q), n);
    }
  }
}

__global__ void AddGradientKernel(int64_t n, float* dst, const float* src) {
  Quads sums = LoadQuads(dst, n);
  const Quads addends = LoadQuads(src, n);
  EPS_UNROLL
  for (int q = 0; q < kQuads; ++q) {
    EPS_UNROLL
    for (int i = 0; i < kQuad; ++i) sums.quad[q].element[i] += addends.quad[q].element[i];
    StoreQuad(sums.quad[q], dst, QuadStart(q), n);
  }
}

// Exact after FinishLeaf.
template <typename Wire>
__global__ void EmitKernel(int64_t n, const float* src, Wire* dst) {
  const Quads quads = LoadQuads(src, n);
  EPS_UNROLL
  for (int q = 0; q < kQuads; ++q) StoreQuad(NarrowQuad<Wire>(quads.quad[q]), dst, QuadStart(q), n);
}

__global__ void FillZeroKernel(int64_t n, uint8_t* dst) {
  const int64_t at = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * 16;
  if (at + 16 <= n) {
    *reinterpret_cast<Pack<ActBf16>*>(dst + at) = {};
  } else {
    for (int64_t i = at; i < n; ++i) dst[i] = 0;
  }
}

// Rows that follow each other without a gap are one row.
struct Rows {
  explicit Rows(const EpilogueArgs& args) : M(args.M), N(args.N), ld(args.ld) {
    if (ld != N) return;
    N *= M;
    M = 1;
    ld = 0;
  }
  LaunchShape shape() const { return RowsShape(M, N); }
  int64_t M, N, ld;
};

}  // namespace

void Activate(KernelQueue& queue, Dtype act, Activation activation, const EpilogueArgs& args) {
  const Rows rows(args);
  ForAct(act, [&](auto type) {
    using T = typename decltype(type)::type;
    ForVector(rows.ld, {args.x, args.y}, [&](auto vector) {
      ForActivation(activation, [&](auto f) {
        Launch(queue, "Activate", rows.shape(), &ActivateKernel<T, decltype(vector)::value, decltype(f)::value>, rows.M,
               rows.N, rows.ld, static_cast<const T*>(args.x), static_cast<T*>(args.y));
      });
    });
  });
}

void AddResidual(KernelQueue& queue, Dtype act, const EpilogueArgs& args) {
  const Rows rows(args);
  ForAct(act, [&](auto type) {
    using T = typename decltype(type)::type;
    ForVector(rows.ld, {args.x, args.y, args.residual}, [&](auto vector) {
      Launch(queue, "AddResidual", rows.shape(), &AddResidualKernel<T, decltype(vector)::value>, rows.M, rows.N,
             rows.ld, static_cast<const T*>(args.x), static_cast<const T*>(args.residual), static_cast<T*>(args.y),
             args.dropout);
    });
  });
}

void ActivationBackward(KernelQueue& queue, Dtype act, const ActivationBackwardArgs& args) {
  ForAct(act, [&](auto type) {
    using T = typename decltype(type)::type;
    const T* x = static_cast<const T*>(args.x);
    T *dy = static_cast<T*>(args.dy), *activated = static_cast<T*>(args.activated);
    ForActivation(args.activation, [&](auto f) {
      constexpr Activation kActivation = decltype(f)::value;
      if (args.dbias == nullptr) {
        const int64_t n = args.M * args.N;
        Launch(queue, "ActivationBackward", ElementShape(n), &ActivationBackwardKernel<T, kActivation>, n, x, dy,
               activated);
        return;
      }
      const RowTiling tiling = ReductionTiling(args.M);
      float* partials = static_cast<float*>(args.scratch);
      ForVector(args.N, {x, dy, activated}, [&](auto vector) {
        Launch(queue, "ActivationBackwardColumns", ColumnSumShape(args.N, tiling),
               &ActivationBackwardColumnsKernel<T, decltype(vector)::value, kActivation>, args.M, args.N,
               tiling.rows_per_tile, x, dy, activated, partials);
      });
      AddPartials(queue, partials, tiling.num_tiles, args.N, args.dbias);
    });
  });
}

void ApplyDropout(KernelQueue& queue, Dtype act, int64_t n, const void* x, const DeviceDropout& dropout, void* y) {
  ForAct(act, [&](auto type) {
    using T = typename decltype(type)::type;
    Launch(queue, "ApplyDropout", ElementShape(n), &DropoutKernel<T>, n, static_cast<const T*>(x), static_cast<T*>(y),
           dropout);
  });
}

KernelCall DropoutMask(Dtype act, int64_t n, const DeviceDropout& dropout, void* y) {
  KernelCall call;
  ForAct(act, [&](auto type) {
    using T = typename decltype(type)::type;
    call = MakeCall("DropoutMask", ElementShape(n), &DropoutMaskKernel<T>, n, static_cast<T*>(y), dropout);
  });
  return call;
}

KernelCall DocumentBias(Dtype act, int64_t B, int64_t T, const Documents& documents, void* y) {
  KernelCall call;
  ForAct(act, [&](auto type) {
    using To = typename decltype(type)::type;
    call = MakeCall("DocumentBias", ElementShape(B * T * T), &DocumentBiasKernel<To>, B * T * T, T, documents,
                    static_cast<To*>(y));
  });
  return call;
}

KernelCall CopyWords(int64_t num_bytes, const void* from, void* to) {
  const auto all =
      static_cast<uintptr_t>(num_bytes) | reinterpret_cast<uintptr_t>(from) | reinterpret_cast<uintptr_t>(to);
  return all % sizeof(CopyPack) == 0 ? CopyUnits<CopyPack>(num_bytes, from, to)
                                     : CopyUnits<uint32_t>(num_bytes, from, to);
}

KernelCall SetDropoutKeys(const DropoutKeyPack& keys, PhiloxKey* out) {
  return MakeCall("SetDropoutKeys", {.threads = kWarpSize}, &SetDropoutKeysKernel, keys, out);
}

void Widen(KernelQueue& queue, Dtype act, const WidenArgs& args) {
  ForAct(args.src_dtype, [&](auto from) {
    using From = typename decltype(from)::type;
    ForAct(act, [&](auto to) {
      using To = typename decltype(to)::type;
      Launch(queue, "Widen", ElementShape(args.n), &WidenKernel<From, To>, args.n, static_cast<const From*>(args.src),
             static_cast<To*>(args.dst));
    });
  });
}

void Dequantize(KernelQueue& queue, Dtype act, const DequantizeArgs& args) {
  ForAct(act, [&](auto to) {
    using To = typename decltype(to)::type;
    const bool is_nf4 = args.format == QuantizedFormat::kNf4;
    Launch(queue, "Dequantize", ElementShape(args.n), is_nf4 ? &DequantizeNf4Kernel<To> : &DequantizeMxInt8Kernel<To>,
           args.n, static_cast<const uint8_t*>(args.src), static_cast<To*>(args.dst));
  });
}

void FinishLeaf(KernelQueue& queue, const FinishLeafArgs& args) {
  ForAct(args.round_to, [&](auto wire) {
    using Wire = typename decltype(wire)::type;
    if (args.dst != nullptr) {
      Launch(queue, "FinishLeaf", ElementShape(args.n), &FinishLeafKernel<Wire, Wire>, args.n, args.src,
             static_cast<Wire*>(args.dst), args.finite);
    } else {
      float* const rounded = std::is_same_v<Wire, float> ? nullptr : args.src;  // fp32 are what they are
      Launch(queue, "FinishLeaf", ElementShape(args.n), &FinishLeafKernel<Wire, float>, args.n, args.src, rounded,
             args.finite);
    }
  });
}

void AddGradient(KernelQueue& queue, const AddGradientArgs& args) {
  Launch(queue, "AddGradient", ElementShape(args.n), &AddGradientKernel, args.n, args.dst, args.src);
}

void EmitGradient(KernelQueue& queue, const EmitGradientArgs& args) {
  ForAct(args.dst_dtype, [&](auto wire) {
    using Wire = typename decltype(wire)::type;
    Launch(queue, "EmitGradient", ElementShape(args.n), &EmitKernel<Wire>, args.n, args.src,
           static_cast<Wire*>(args.dst));
  });
}

void FillZero(KernelQueue& queue, const FillZeroArgs& args) {
  Launch(queue, "FillZero", ElementShape(CeilDiv(args.num_bytes, 2)), &FillZeroKernel, args.num_bytes,
         static_cast<uint8_t*>(args.dst));
}

}  // namespace eps::worker::cuda
