#include "gpu_worker/layers/reference_gpt2.h"

#include <cmath>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace eps::worker {
namespace {

// Every gradient of the reference is what finite differences of its loss say, dropout and tied table included.
TEST(ReferenceGpt2Test, GradientsAreThoseOfFiniteDifferences) {
  const ModelSpec model = BuildModel({.num_layers = 2,
                                      .d_model = 4,
                                      .num_heads = 2,
                                      .context = 3,
                                      .vocab = 5,
                                      .embedding_dropout = 0.1,
                                      .attention_dropout = 0.2,
                                      .residual_dropout = 0.3})
                              .value();
  std::mt19937 random(7);
  std::normal_distribution<double> normal(0, 0.5);
  std::vector<std::vector<double>> masters;
  for (const BlobSpec& blob : model.blobs) {
    std::vector<double> values(static_cast<size_t>(blob.num_elems));
    for (const TensorSpec& tensor : blob.tensors) {
      for (int64_t i = 0; i < tensor.num_elems(); ++i) {
        values[static_cast<size_t>(tensor.offset_elems + i)] = normal(random);
      }
    }
    masters.push_back(values);
  }
  ReferenceGpt2 reference(&model, masters);
  Assignment assignment{.step = StepId(3), .counted_tokens = 11};
  for (int vnode = 0; vnode < 2; ++vnode) {
    VnodeBatch batch{.vnode = vnode, .tokens = {}, .labels = {}};
    for (int i = 0; i < 2 * 3; ++i) {
      batch.tokens.push_back((i * 7 + vnode) % 5);
      batch.labels.push_back(i == 4 && vnode == 0 ? -100 : (i * 3 + vnode) % 5);
    }
    assignment.vnodes.push_back(batch);
  }
  const auto result = reference.Step(assignment, 1, 5);
  EXPECT_EQ(result.counted, (std::vector<int64_t>{5, 6}));

  for (const BlobSpec& blob : model.blobs) {
    for (const TensorSpec& tensor : blob.tensors) {
      for (int64_t i = 0; i < tensor.num_elems(); ++i) {
        const int64_t at = tensor.offset_elems + i;
        double gradient = 0;  // of both uses
        for (const LayerId layer : blob.uses) {
          for (const BlobUse& use : model.layer(layer).blobs) {
            if (use.blob == blob.id) {
              const auto& slot = result.gradients[static_cast<size_t>(layer.value())];
              gradient += slot[static_cast<size_t>(use.offset_elems + at)];
            }
          }
        }
        double& value = reference.masters()[static_cast<size_t>(blob.id.value())][static_cast<size_t>(at)];
        const double kept = value, h = 1e-5;
        value = kept + h;
        const double above = reference.Step(assignment, 1, 5).mean_loss;
        value = kept - h;
        const double below = reference.Step(assignment, 1, 5).mean_loss;
        value = kept;
        // Central differences: an error of h^2 times a third derivative, and 1e-16 / h of rounding.
        EXPECT_LE(std::abs((above - below) / (2 * h) - gradient), 2e-8) << tensor.name << " " << i;
      }
    }
  }
}

}  // namespace
}  // namespace eps::worker
