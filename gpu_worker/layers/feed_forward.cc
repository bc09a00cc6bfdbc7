#include "gpu_worker/layers/feed_forward.h"

#include <algorithm>

namespace eps::worker {

FeedForwardContext::Tile FeedForwardContext::TileFrom(int64_t first_row) const {
  const RowRange rows{first_row, std::min(first_row + shape.tile_rows(), shape.M())};
  NormContext norm_of_tile = norm;
  norm_of_tile.M = rows.num_rows();
  return {.rows = rows,
          .linear = linear.Of(rows),
          .norm = norm_of_tile,
          .statistics = {.mean = statistics.mean + first_row, .rstd = statistics.rstd + first_row},
          .x = At(x, first_row * RowBytes())};
}

Dropout FeedForwardContext::DropoutOf(const Tile& tile) const {
  return linear.key.MakeDropout(shape.residual_dropout, kMlpProjectionDropoutUse, shape.M() * shape.C,
                                tile.rows.first * shape.C);
}

void FeedForwardContext::Forward(void* y) const {
  for (int64_t row = 0; row < shape.M(); row += shape.tile_rows()) {
    ForwardTile(TileFrom(row), y == nullptr ? nullptr : At(y, row * RowBytes()));
  }
}

void FeedForwardContext::ForwardTile(const Tile& tile, void* y) const {
  tile.norm.Forward(norm_parameters, tile.x, tile.statistics, normed);
  if (y == nullptr && shape.is_tiled()) return;
  MatMulArgs up_epilogue;
  if (!shape.is_gated && y != nullptr) {
    up_epilogue.epilogue = MatMulArgs::Epilogue::kActivation;
    up_epilogue.activation = shape.activation;
    up_epilogue.activated = hidden;
  }
  tile.linear.Forward(offsets.up, normed, {up, shape.up_width()}, up_epilogue);
  if (y == nullptr) return;
  if (shape.is_gated) kernels.Swiglu({.M = tile.rows.num_rows(), .F = shape.F, .gate_up = up, .y = hidden});
  tile.linear.Forward(offsets.down, hidden, {y, shape.C},
                      {.epilogue = MatMulArgs::Epilogue::kResidual,
                       .residual = shape.adds_to_normed ? normed : tile.x,
                       .dropout = DropoutOf(tile)});
}

void FeedForwardContext::Backward(const BackwardArrays& arrays, void* dy, float* gradient) const {
  for (int64_t row = 0; row < shape.M(); row += shape.tile_rows()) {
    BackwardTile(TileFrom(row), arrays, At(dy, row * RowBytes()), gradient);
  }
}

void FeedForwardContext::BackwardTile(const Tile& tile, const BackwardArrays& arrays, void* dy, float* gradient) const {
  const int64_t M = tile.rows.num_rows();
  if (shape.is_tiled()) {
    tile.norm.Again(norm_parameters, tile.x, tile.statistics, normed);
    tile.linear.Forward(offsets.up, normed, {up, shape.up_width()});
  }

  const void* d_out = dy;
  if (const Dropout dropout = DropoutOf(tile); dropout.rate > 0) {
    kernels.ApplyDropout({.n = M * shape.C, .x = dy, .y = arrays.dropped, .dropout = dropout});
    d_out = arrays.dropped;
  }
  void* d_hidden = shape.is_gated ? arrays.d_hidden : arrays.d_up;
  const LinearGradient of_down = tile.linear.GradientOf(offsets.down, d_out, shape.C);
  tile.linear.BackwardInput(offsets.down, of_down, d_hidden);
  if (shape.is_gated) {  // its products have no biases
    kernels.SwigluBackward({.M = M, .F = shape.F, .gate_up = up, .dy = d_hidden, .dgate_up = arrays.d_up, .y = hidden});
  } else {
    kernels.ActivationBackward({.M = M,
                                .N = shape.F,
                                .activation = shape.activation,
                                .x = up,
                                .dy = arrays.d_up,
                                .activated = hidden,
                                .dbias = tile.linear.BiasGradient(offsets.up.products.front(), gradient),
                                .scratch = arrays.kernel});
  }
  tile.linear.BackwardWeights(offsets.down, hidden, of_down, gradient);
  tile.linear.BackwardBiases(offsets.down, of_down, gradient, arrays.kernel);

  tile.norm.Again(norm_parameters, tile.x, tile.statistics, normed);
  const LinearGradient of_up = tile.linear.GradientOf(offsets.up, arrays.d_up, shape.up_width());
  tile.linear.BackwardWeights(offsets.up, normed, of_up, gradient);
  tile.linear.BackwardInput(offsets.up, of_up, arrays.d_normed, shape.adds_to_normed ? dy : nullptr);
  const BlockOffsets::Norm& parameters = offsets.mlp_norm;
  tile.norm.Backward(norm_parameters, arrays.d_normed, tile.x, tile.statistics, shape.adds_to_normed ? nullptr : dy, dy,
                     gradient + parameters.scale, parameters.shift < 0 ? nullptr : gradient + parameters.shift,
                     arrays.kernel);
}

}  // namespace eps::worker
