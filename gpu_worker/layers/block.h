#ifndef EPS_GPU_WORKER_LAYERS_BLOCK_H_
#define EPS_GPU_WORKER_LAYERS_BLOCK_H_

#include <cstdint>

#include "common/model/model_spec.h"
#include "gpu_worker/device/kernels.h"
#include "gpu_worker/layers/block_offsets.h"
#include "gpu_worker/layers/layer_shape.h"

namespace eps::worker {

// A transformer block of any family, of parts that LayerShape names; feed_forward.h has the last two lines, with experts
// experts.h the last one:
//   n1    = norm1(x)
//   x_mid = r1 + dropout1(attention(turned(n1 W_qkv + b_qkv)) W_o + b_o)
//   n2    = norm2(x_mid)
//   y     = r2 + dropout2(act(n2 W_up + b_up) W_down + b_down)
// norm: layer norm, or RMS norm. act: GELU, or SwiGLU of gate and up. turned: by rotary positions, where the family has
// them, after a norm of each head of queries and keys, where it has those.
// r1 = x and r2 = x_mid: norms before what they are for (GPT-2, Llama). r1 = n1 and r2 = n2 with LayerShape::adds_to_normed:
// norms behind the sums (BERT), where norm1 is the last one of the block before, or the embedding's. The first block then
// drops out n1. Each W, but of experts, may have an adapter beside it (LoraConfig): n W is then n W + scale (n A^T) B^T.
// What backward needs beside x. Outputs of the norms and of GELU or SwiGLU are not kept: they are functions of each row
// of what is, and cheap.
struct BlockInner {  // in bytes of the inner slot
  explicit BlockInner(const LayerShape& shape);
  int64_t norm1_mean, norm1_rstd;  // fp32 (M); no means of an RMS norm
  int64_t heads;                   // act (M, (H + kv_heads) D): queries and keys before their norm
  int64_t query_rstd, key_rstd;    // fp32 (M, H), (M, kv_heads): of that norm
  int64_t qkv;                     // act (M, qkv_width): as attention reads it
  int64_t o;                       // act (M, H D): attention's output
  int64_t lse;                     // fp32 (B, H, T)
  int64_t x_mid;                   // act (M, C)
  int64_t norm2_mean, norm2_rstd;  // fp32 (M)
  int64_t router;                  // act (M, experts): logits
  int64_t up;                      // act (mlp_rows, up_width): before GELU or SwiGLU; none where that is done in tiles
  int64_t total_bytes;
};
int64_t BlockForwardScratchBytes(const LayerShape& shape, const KernelSizes& kernels);
int64_t BlockBackwardScratchBytes(const LayerShape& shape, const KernelSizes& kernels);
// With experts: where BlockForward leaves Routing::first_row, in bytes of its scratch.
int64_t BlockForwardFirstRowOffset(const LayerShape& shape);

// The block bound to one micro-batch and its places in the arena.
struct BlockArgs {
  LayerShape shape;
  MicroBatchKey key;
  const BlockOffsets* offsets = nullptr;
  bool is_first = false;          // of the model's blocks
  bool has_adapters = true;       // LinearContext
  const void* weights = nullptr;  // the layer in the compute dtype
  int64_t trainable_elems = 0;    // of the layer (LayerSpec)
  // Backward: whether the gradients of weights are written rather than added to, whatever lay there. The rest
  // (ZeroedGradientRanges) is added to either way, and must be zero before a vnode's first micro-batch.
  bool starts_gradient = false;
  // Backward, with experts: what the balance of the micro-batch's load counts (RouteBackwardArgs).
  double expert_balance = 0;
  Documents documents;                  // of the micro-batch
  const float* rotary_table = nullptr;  // of RotaryArgs; null where the family has no rotary positions
  void* inner = nullptr;                // BlockInner
  void* scratch = nullptr;
};

// x, y: act (M, C). y == null: only `inner` is made (recompute), the same bits as the forward pass made.
void BlockForward(Kernels& kernels, const BlockArgs& args, const void* x, void* y);

// x: act (M, C), the block's input. dy: act (M, C), in: the gradient of y, out: that of x.
// gradient: the layer's slot, fp32, GradientElems of it: added to, or with starts_gradient written.
void BlockBackward(Kernels& kernels, const BlockArgs& args, const void* x, void* dy, float* gradient);

}  // namespace eps::worker

#endif  // EPS_GPU_WORKER_LAYERS_BLOCK_H_
