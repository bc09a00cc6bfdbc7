#ifndef EPS_GPU_WORKER_LAYERS_FEED_FORWARD_H_
#define EPS_GPU_WORKER_LAYERS_FEED_FORWARD_H_

#include <cstdint>

#include "gpu_worker/device/kernels.h"
#include "gpu_worker/layers/block_offsets.h"
#include "gpu_worker/layers/layer_shape.h"
#include "gpu_worker/layers/linear.h"
#include "gpu_worker/layers/norm.h"

namespace eps::worker {

// The feed-forward part of a block without experts, with the norm in front of it, of rows x (M, C):
//   n = norm(x),  y = r + dropout(act(n W_up + b_up) W_down + b_down)
// in tiles of LayerShape::tile_rows rows, one after the other: what is wider than a row of the model exists of one tile
// alone, so that long sequences take less memory. With one tile `up` is kept for backward; of several backward makes each
// one again, to the same bits. Gradients of parameters are summed tile by tile, by rising rows, and so their bits depend on
// the tile. Source: Kitaev et al., Reformer, arXiv:2001.04451, "chunking".
struct FeedForwardContext {
  Kernels& kernels;
  const LayerShape& shape;
  const BlockOffsets& offsets;
  const LinearContext& linear;  // of all rows, as is norm
  const NormContext& norm;
  NormParameters norm_parameters;
  NormStatistics statistics;  // (M) each; of the inner slot
  const void* x = nullptr;    // act (M, C)
  void* up = nullptr;         // act (tile_rows, up_width), before `act`; of the inner slot, with several tiles scratch
  void* normed = nullptr;     // act (tile_rows, C): scratch
  void* hidden = nullptr;     // act (tile_rows, F): scratch

  // y: act (M, C). y == null: only what the inner slot has.
  void Forward(void* y) const;

  // Scratch. `normed` and `d_normed` may lie where `hidden` and `d_hidden` do: they do not live at the same time.
  struct BackwardArrays {
    void* d_up = nullptr;      // act (tile_rows, up_width)
    void* d_hidden = nullptr;  // act (tile_rows, F); not read where there is no gate
    void* d_normed = nullptr;  // act (tile_rows, C)
    void* dropped = nullptr;   // act (tile_rows, C); not read without dropout
    void* kernel = nullptr;    // the kernels' own, as much as any tile's rows want
  };
  // dy: act (M, C), in: of y, out: of x. gradient: the layer's slot.
  void Backward(const BackwardArrays& arrays, void* dy, float* gradient) const;

 private:
  struct Tile {
    RowRange rows;
    LinearContext linear;
    NormContext norm;
    NormStatistics statistics;
    const void* x = nullptr;  // its first row, as of all arrays below
  };
  Tile TileFrom(int64_t first_row) const;
  void ForwardTile(const Tile& tile, void* y) const;
  void BackwardTile(const Tile& tile, const BackwardArrays& arrays, void* dy, float* gradient) const;
  // Of what `down` gives.
  Dropout DropoutOf(const Tile& tile) const;
  int64_t RowBytes() const { return shape.C * shape.act_bytes(); }
};

}  // namespace eps::worker

#endif  // EPS_GPU_WORKER_LAYERS_FEED_FORWARD_H_
