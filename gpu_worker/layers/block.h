#ifndef EPS_GPU_WORKER_LAYERS_BLOCK_H_
#define EPS_GPU_WORKER_LAYERS_BLOCK_H_

#include <cstdint>

#include "common/model/model_spec.h"
#include "gpu_worker/device/kernels.h"
#include "gpu_worker/layers/layer_shape.h"

namespace eps::worker {

// A GPT-2 transformer block:
//   x_mid = x + dropout1(attention(ln1(x)) W_o + b_o)       attention has dropout 0 on its probabilities
//   y     = x_mid + dropout2(gelu(ln2(x_mid) W_fc + b_fc) W_proj + b_proj)
// Linear weights are (in, out).
struct BlockOffsets {  // in elements of the layer's slot
  int64_t ln1_gamma = 0, ln1_beta = 0;
  int64_t w_qkv = 0, b_qkv = 0;  // (C, 3C), (3C)
  int64_t w_o = 0, b_o = 0;      // (C, C), (C)
  int64_t ln2_gamma = 0, ln2_beta = 0;
  int64_t w_fc = 0, b_fc = 0;      // (C, 4C), (4C)
  int64_t w_proj = 0, b_proj = 0;  // (4C, C), (C)
};
BlockOffsets BlockOffsetsOf(const ModelSpec& model, LayerId layer);

// What backward needs beside x: 9 C numbers a token and little else. Outputs of the layer norms and of the
// GELU are not kept: they are elementwise functions of what is, and cheap.
struct BlockInner {  // in bytes of the inner slot
  explicit BlockInner(const LayerShape& shape);
  int64_t ln1_mean, ln1_rstd;  // fp32 (M)
  int64_t qkv;                 // act (M, 3C)
  int64_t o;                   // act (M, C): attention's output
  int64_t lse;                 // fp32 (B, H, T)
  int64_t x_mid;               // act (M, C)
  int64_t ln2_mean, ln2_rstd;  // fp32 (M)
  int64_t fc;                  // act (M, 4C): before the GELU
  int64_t total_bytes;
};
int64_t BlockForwardScratchBytes(const LayerShape& shape, const KernelSizes& kernels);
int64_t BlockBackwardScratchBytes(const LayerShape& shape, const KernelSizes& kernels);

// The block bound to one micro-batch and its places in the arena.
struct BlockArgs {
  LayerShape shape;
  MicroBatchKey key;
  BlockOffsets offsets;
  const void* weights = nullptr;  // the layer in the compute dtype
  void* inner = nullptr;          // BlockInner
  void* scratch = nullptr;
};

// x, y: act (M, C). y == null: only `inner` is made (recompute), the same bits as the forward pass made.
void BlockForward(Kernels& kernels, const BlockArgs& args, const void* x, void* y);

// x: act (M, C), the block's input. dy: act (M, C), in: the gradient of y, out: that of x.
// gradient: the layer's slot, fp32, added to.
void BlockBackward(Kernels& kernels, const BlockArgs& args, const void* x, void* dy, float* gradient);

}  // namespace eps::worker

#endif  // EPS_GPU_WORKER_LAYERS_BLOCK_H_
