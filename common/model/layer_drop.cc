#include "common/model/layer_drop.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>

#include "common/base/status_macros.h"
#include "common/numeric/philox.h"

namespace eps {
namespace {

// In [0, 1), 53 bits.
double UniformOf(uint64_t seed, StepId step, LayerId layer) {
  const RandomKey key{.seed = seed, .step = step.value(), .vnode = Whole::kDroppedLayers, .layer = layer.value()};
  const std::array<uint32_t, 4> bits = Philox(key.philox(), {0, 0, 0, 0});
  return static_cast<double>((uint64_t{bits[0]} << 32 | bits[1]) >> 11) * 0x1p-53;
}

}  // namespace

LayerDrop::LayerDrop(const ModelSpec& model, LayerDropConfig config)
    : config_(config), seed_(model.config.init_seed), num_blocks_(static_cast<int>(model.layers.size()) - 2) {
  EPS_CHECK(config.share >= 0 && config.share < 1);
  std::vector<LayerId> all;
  for (const LayerSpec& layer : model.layers) {
    if (layer.kind != LayerKind::kBlock) continue;
    all.push_back(layer.id);
    if (layer.trains()) kept_one_of_.push_back(layer.id);
  }
  if (kept_one_of_.empty()) kept_one_of_ = std::move(all);
}

double LayerDrop::ShareOf(LayerId layer) const {
  if (layer.value() < 1 || layer.value() > num_blocks_) return 0;
  if (config_.rule == DropRule::kUniform) return config_.share;
  return config_.share * layer.value() / num_blocks_;
}

std::vector<LayerId> LayerDrop::DroppedIn(StepId step) const {
  std::vector<LayerId> dropped;
  if (!is_on()) return dropped;
  for (int layer = 1; layer <= num_blocks_; ++layer) {
    const LayerId id(layer);
    if (UniformOf(seed_, step, id) < ShareOf(id)) dropped.push_back(id);
  }
  if (!DropsAll(dropped)) return dropped;
  const auto nearness = [&](LayerId id) { return UniformOf(seed_, step, id) / ShareOf(id); };
  const LayerId stays = *std::max_element(kept_one_of_.begin(), kept_one_of_.end(),
                                          [&](LayerId a, LayerId b) { return nearness(a) < nearness(b); });
  dropped.erase(std::find(dropped.begin(), dropped.end(), stays));
  return dropped;
}

std::vector<LayerId> LayerDrop::Average() const {
  std::vector<LayerId> dropped;
  double sum = 0.5;
  for (int layer = 1; is_on() && layer <= num_blocks_; ++layer) {
    sum += ShareOf(LayerId(layer));
    if (sum < 1) continue;
    sum -= 1;
    dropped.push_back(LayerId(layer));
  }
  if (DropsAll(dropped)) dropped.erase(std::find(dropped.begin(), dropped.end(), kept_one_of_.front()));
  return dropped;
}

bool LayerDrop::DropsAll(const std::vector<LayerId>& dropped) const {
  return std::includes(dropped.begin(), dropped.end(), kept_one_of_.begin(), kept_one_of_.end());
}

std::vector<bool> DroppedBlobs(const ModelSpec& model, absl::Span<const LayerId> dropped) {
  std::vector<bool> blobs(model.blobs.size(), false);
  if (dropped.empty()) return blobs;
  for (const BlobSpec& blob : model.blobs) {
    blobs[static_cast<size_t>(blob.id.value())] = std::all_of(blob.uses.begin(), blob.uses.end(), [&](LayerId layer) {
      return std::binary_search(dropped.begin(), dropped.end(), layer);
    });
  }
  return blobs;
}

}  // namespace eps
