#include "eps_server/optimizer/tensor_groups.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include "common/base/status_macros.h"
#include "common/spec/parameter_groups.h"

namespace eps::server {
namespace {

using GroupByName = std::map<std::string, int>;

TensorGroup GroupOf(const TensorSpec& tensor, const OptimizerConfig& optimizer, const GroupByName& by_name) {
  TensorGroup group = {.weight_decay = tensor.decays() ? optimizer.weight_decay : 0};
  const auto found = by_name.find(tensor.name);
  if (found == by_name.end()) return group;
  const ParameterGroupConfig& config = optimizer.groups[static_cast<size_t>(found->second)];
  group.learning_rate_scale = config.learning_rate_scale;
  group.weight_decay = config.weight_decay.value_or(group.weight_decay);
  return group;
}

// The place of the tensor's group among `groups`, where it is added unless one like it is there.
int PlaceOf(const TensorGroup& group, bool has_trust_ratio, TensorGroups& groups) {
  for (size_t i = 0; i < groups.groups.size() && !has_trust_ratio; ++i) {
    const TensorGroup& other = groups.groups[i];
    if (groups.has_trust_ratio[i] || other.learning_rate_scale != group.learning_rate_scale ||
        other.weight_decay != group.weight_decay) {
      continue;
    }
    return static_cast<int>(i);
  }
  groups.groups.push_back(group);
  groups.has_trust_ratio.push_back(has_trust_ratio);
  return static_cast<int>(groups.groups.size()) - 1;
}

// `place`: of each tensor's group.
std::vector<GroupRange> RangesOf(const BlobSpec& blob, const std::vector<int>& place, int64_t chunk) {
  const int64_t chunk_begin = chunk * kChunkElems, chunk_end = chunk_begin + blob.chunk_elems(chunk);
  std::vector<GroupRange> ranges;
  for (size_t t = 0; t < blob.tensors.size(); ++t) {
    const int64_t next = t + 1 < blob.tensors.size() ? blob.tensors[t + 1].offset_elems : blob.num_elems;
    const int64_t begin = std::max(blob.tensors[t].offset_elems, chunk_begin), end = std::min(next, chunk_end);
    if (begin >= end) continue;
    if (!ranges.empty() && ranges.back().group == place[t]) {
      ranges.back().end = end - chunk_begin;
    } else {
      ranges.push_back({begin - chunk_begin, end - chunk_begin, place[t]});
    }
  }
  return ranges;
}

}  // namespace

std::vector<TensorGroups> GroupTensors(const ModelSpec& model, const OptimizerConfig& optimizer) {
  const auto by_name = AssignParameterGroups(model, optimizer.groups);
  EPS_CHECK(by_name.ok());
  std::vector<TensorGroups> result;
  for (const BlobSpec& blob : model.blobs) {
    TensorGroups& groups = result.emplace_back();
    if (blob.frozen) continue;
    std::vector<int> place;
    for (const TensorSpec& tensor : blob.tensors) {
      const bool has_trust_ratio = optimizer.rule == OptimizerRule::kLamb && tensor.decays();
      place.push_back(PlaceOf(GroupOf(tensor, optimizer, *by_name), has_trust_ratio, groups));
    }
    for (int64_t c = 0; c < blob.num_chunks(); ++c) groups.ranges.push_back(RangesOf(blob, place, c));
  }
  return result;
}

double TrustRatio(const StepSquares& squares, double max_trust_ratio) {
  const bool has_ratio = squares.weights != 0 && squares.step != 0;
  return std::min(has_ratio ? std::sqrt(squares.weights) / std::sqrt(squares.step) : 1.0, max_trust_ratio);
}

}  // namespace eps::server
