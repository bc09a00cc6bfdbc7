#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/model/lora.h"
#include "gpu_worker/layers/layers_testing.h"
#include "gpu_worker/layers/tensor_offsets.h"
#include "gtest/gtest.h"

// What blocks compute with adapters, in fp32; in 16 bits: linear_test.cc.

namespace eps::worker {
namespace {

// Adds scale B A of every adapter in the layer's slot to the weight that it is beside.
void Merge(const ModelSpec& model, const LayerSpec& layer, float* weights) {
  for (const BlobUse& use : layer.blobs) {
    for (const TensorSpec& tensor : model.blob(use.blob).tensors) {
      const std::optional<int64_t> a = FindTensorOffset(model, layer.id, tensor.role, LoraPart::kA);
      const std::optional<int64_t> b = FindTensorOffset(model, layer.id, tensor.role, LoraPart::kB);
      if (tensor.lora != LoraPart::kNone || !a.has_value()) continue;
      const ProductShape shape = ProductShapeOf(model.config, tensor.shape);
      const int64_t rank = model.config.lora.rank;
      float* weight = weights + use.offset_elems + tensor.offset_elems;
      for (int64_t o = 0; o < shape.out; ++o) {
        for (int64_t i = 0; i < shape.in; ++i) {
          double sum = 0;
          for (int64_t r = 0; r < rank; ++r) sum += double{weights[*b + o * rank + r]} * weights[*a + r * shape.in + i];
          weight[shape.is_out_in ? o * shape.in + i : i * shape.out + o] +=
              static_cast<float>(model.config.lora.scale() * sum);
        }
      }
    }
  }
}

// What of the weights of `layer`, which may have adapters, a model without any has too.
void CopyBase(const ModelSpec& model, const LayerSpec& layer, const std::vector<float>& weights,
              const ModelSpec& plain_model, BlockInArena& plain) {
  for (const BlobUse& use : plain.layer.blobs) {
    for (const TensorSpec& tensor : plain_model.blob(use.blob).tensors) {
      const int64_t of_expert = tensor.is_of_expert() ? tensor.expert * ExpertStride(model, layer, tensor.role) : 0;
      std::copy_n(weights.begin() + TensorOffset(model, layer.id, tensor.role) + of_expert, tensor.num_elems(),
                  plain.weights + use.offset_elems + tensor.offset_elems);
    }
  }
}

// What forward and backward give, by the weights that the block has.
std::vector<float> BothWays(BlockInArena& block) {
  float* gradient = block.TakeZeros(block.layer.num_elems);
  block.Forward();
  std::vector<float> both(block.y, block.y + block.boundary_elems);
  block.Backward(gradient);
  both.insert(both.end(), block.y, block.y + block.boundary_elems);
  return both;
}

TEST(BlockAdaptersTest, ABlockWithAdaptersIsTheOneOfTheMergedWeights) {
  for (const LayerCase& c : CasesWithAdapters()) {
    if (c.config.lora.dropout > 0) continue;
    ModelConfig plain = c.config;
    plain.lora = {};
    const ModelSpec model = BuildModel(c.config).value(), merged_model = BuildModel(plain).value();
    BlockInArena adapted(model, c), without(model, c), merged(merged_model, c);
    std::fill(without.weights, without.weights + without.layer.trainable_elems, 0.0f);
    std::vector<float> weights(adapted.weights, adapted.weights + adapted.layer.num_elems);
    Merge(model, adapted.layer, weights.data());
    CopyBase(model, adapted.layer, weights, merged_model, merged);
    const std::vector<float> wanted = BothWays(merged);
    EXPECT_LT(Distance(BothWays(adapted), wanted), 1e-5);
    EXPECT_GT(Distance(BothWays(without), wanted), 1e-3);  // the adapters do something
  }
}

TEST(BlockAdaptersTest, LeftOutTheyAreAsIfThereWereNone) {
  for (const LayerCase& c : CasesWithAdapters()) {
    LayerCase without = c;
    without.config.lora = {};
    const ModelSpec model = BuildModel(c.config).value(), plain_model = BuildModel(without.config).value();
    BlockInArena adapted(model, c), plain(plain_model, without);
    CopyBase(model, adapted.layer, {adapted.weights, adapted.weights + adapted.layer.num_elems}, plain_model, plain);
    const auto outputs = [](BlockInArena& block) {
      block.Forward();
      return std::vector<float>(block.y, block.y + block.boundary_elems);
    };
    const std::vector<float> wanted = outputs(plain);
    EXPECT_GT(Distance(outputs(adapted), wanted), 1e-3);
    adapted.forward.has_adapters = false;
    EXPECT_LT(Distance(outputs(adapted), wanted), 1e-6);
  }
}

// Of sum(y * dy), by each tensor that is trained and by x; all random numbers are those of the micro-batch, so that it is a
// function.
TEST(BlockAdaptersTest, GradientsAreSlopes) {
  for (LayerCase c : CasesWithAdapters()) {
    if (c.wire != Dtype::kF32) continue;
    c.config.experts.num = c.config.experts.per_token;  // a choice that changes is a step
    const ModelSpec model = BuildModel(c.config).value();
    BlockInArena block(model, c);
    block.backward.expert_balance = 0;  // of which y knows nothing
    // n elements from `at` on move along a direction of length 1 that is the same for each of them, whatever the gradient.
    const auto direction = [](int64_t i, int64_t n) {
      return (i * 2654435761 % 3 == 0 ? -1 : 1) / std::sqrt(static_cast<double>(n));
    };
    const auto value = [&](float* at, int64_t n, double moved) {
      FillSmall(block.weights, block.layer.num_elems);
      FillSmall(block.x, block.boundary_elems);
      for (int64_t i = 0; i < n; ++i) at[i] += static_cast<float>(moved * direction(i, n));
      block.Forward();
      double sum = 0;
      for (int64_t i = 0; i < block.boundary_elems; ++i)
        sum += block.y[i] * std::sin(static_cast<double>(i) * 0.7) * 0.3;
      return sum;
    };
    float* gradient = block.TakeZeros(block.layer.num_elems);
    value(block.x, 0, 0);
    block.Backward(gradient);
    const std::vector<float> dx(block.y, block.y + block.boundary_elems);
    const auto expect_slope = [&](float* at, const float* slopes, int64_t n, const std::string& what) {
      double slope = 0, square = 0;
      for (int64_t i = 0; i < n; ++i) slope += slopes[i] * direction(i, n), square += double{slopes[i]} * slopes[i];
      constexpr double kMove = 2e-2;
      const double measured = (value(at, n, kMove) - value(at, n, -kMove)) / (2 * kMove);
      EXPECT_GT(square, 0) << what;
      // To the second order of the move, and a rounding of the sum.
      EXPECT_NEAR(measured, slope, 5e-3 * std::sqrt(square) + 2e-4)
          << what << ", rank " << c.config.lora.rank << ", dropout " << c.config.lora.dropout;
    };
    for (const BlobUse& use : block.layer.blobs) {
      if (model.blob(use.blob).frozen) continue;
      for (const TensorSpec& tensor : model.blob(use.blob).tensors) {
        const int64_t at = use.offset_elems + tensor.offset_elems;
        expect_slope(block.weights + at, gradient + at, tensor.num_elems(), tensor.name);
      }
    }
    expect_slope(block.x, dx.data(), block.boundary_elems, "x");
  }
}

}  // namespace
}  // namespace eps::worker
