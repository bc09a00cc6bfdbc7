#include "gpu_worker/faults/relay_faults.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/ids.h"
#include "common/model/model_spec.h"

namespace eps::worker {
namespace {

using Kind = RelayStep::Kind;
using Steps = std::vector<RelayStep>;

// The block beside `layer` whose weights are in the slot before: the one that was visited last, if it is a block.
LayerId Neighbour(const ModelSpec& model, LayerId layer, bool backward) {
  const LayerId visited(layer.value() + (backward ? 1 : -1)), other(layer.value() + (backward ? -1 : 1));
  return model.layer(visited).kind == LayerKind::kBlock ? visited : other;
}

void StaleWeights(const ModelSpec& model, LayerId layer, bool backward, Steps& steps) {
  const LayerId neighbour = Neighbour(model, layer, backward);
  if (model.layer(neighbour).kind != LayerKind::kBlock) return;  // the only one
  const auto is_of_visit = [&](const RelayStep& step) { return step.layer == layer && step.backward == backward; };
  const bool expands = std::any_of(steps.begin(), steps.end(), [&](const RelayStep& step) {
    return step.kind == Kind::kExpand && is_of_visit(step);
  });
  for (RelayStep& step : steps) {
    if (!is_of_visit(step)) continue;
    // Weights are read from the slot, or in place; where they are expanded, from there alone.
    const bool computes = step.kind == Kind::kForward || step.kind == Kind::kRecompute || step.kind == Kind::kBackward;
    if (step.kind == Kind::kPull || step.kind == Kind::kExpand || (computes && !expands)) step.layer = neighbour;
  }
}

// The gradient starts once more behind the first micro-batch: the second one writes what zeroing leaves out. With a single
// micro-batch there is none to start it.
void DropMicroBatch(LayerId layer, Steps& steps) {
  const auto dropped = std::find_if(steps.begin(), steps.end(), [&](const RelayStep& step) {
    return step.kind == Kind::kBackward && step.layer == layer && step.micro_batch == 0;
  });
  if (dropped == steps.end()) return;
  const auto next = std::find_if(dropped + 1, steps.end(), [&](const RelayStep& step) {
    return step.kind == Kind::kBackward && step.layer == layer && step.vnode == dropped->vnode;
  });
  if (next == steps.end()) return;
  next->starts_gradient = true;
  RelayStep zero;
  zero.kind = Kind::kZeroGradient;
  zero.layer = layer;
  zero.backward = true;
  zero.vnode = dropped->vnode;
  zero.gradient = dropped->gradient;
  const auto at = static_cast<int>(dropped - steps.begin()) + 1;
  steps.insert(steps.begin() + at, std::move(zero));
  for (RelayStep& step : steps) {
    for (int& other : step.waits_for) other += other >= at ? 1 : 0;
  }
}

void SwapStash(LayerId layer, Steps& steps) {
  std::vector<RelayStep*> loads;
  for (RelayStep& step : steps) {
    if (step.kind == Kind::kLoadBoundary && step.backward && step.layer == layer) loads.push_back(&step);
  }
  if (loads.size() < 2) return;
  std::swap(loads[0]->host, loads[1]->host);
}

using Fault = void (*)(const ModelSpec&, LayerId, Steps&);
const std::map<std::string, Fault> kFaults = {
    {"stale_weights", [](const ModelSpec& m, LayerId l, Steps& s) { StaleWeights(m, l, /*backward=*/true, s); }},
    {"stale_weights_forward",
     [](const ModelSpec& m, LayerId l, Steps& s) { StaleWeights(m, l, /*backward=*/false, s); }},
    {"drop_micro_batch", [](const ModelSpec&, LayerId l, Steps& s) { DropMicroBatch(l, s); }},
    {"swap_stash", [](const ModelSpec&, LayerId l, Steps& s) { SwapStash(l, s); }},
};

}  // namespace

absl::StatusOr<AlterSchedule> ParseRelayFault(const std::string& text) {
  const size_t at = text.find('@');
  const auto fault = kFaults.find(text.substr(0, at));
  if (fault == kFaults.end() || at == std::string::npos || at + 1 == text.size()) {
    return absl::InvalidArgumentError(absl::StrCat("fault \"", text, "\", must be KIND@LAYER"));
  }
  return
      [apply = fault->second, name = text.substr(at + 1)](const ModelSpec& model, const RelayPlan& plan, Steps& steps) {
        if (plan.resident) return;
        for (const LayerSpec& layer : model.layers) {
          if (layer.name == name && layer.kind == LayerKind::kBlock) apply(model, layer.id, steps);
        }
      };
}

}  // namespace eps::worker
