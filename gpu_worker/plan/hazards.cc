#include "gpu_worker/plan/hazards.h"

#include <algorithm>
#include <cstddef>
#include <functional>

namespace eps::worker {
namespace {

size_t Index(StreamId stream) { return static_cast<size_t>(stream); }

}  // namespace

std::vector<int> HazardTracker::Add(StreamId stream, const std::vector<Resource>& reads,
                                    const std::vector<Resource>& writes) {
  std::vector<int>& after = after_;
  after.clear();
  for (const Resource& resource : reads) after.push_back(UsesOf(resource).last_writer);
  for (const Resource& resource : writes) {
    const Uses& uses = UsesOf(resource);
    after.push_back(uses.last_writer);
    after.insert(after.end(), uses.readers.begin(), uses.readers.end());
  }
  // Latest first: its clock often covers the rest.
  std::sort(after.begin(), after.end(), std::greater<>());
  after.erase(std::unique(after.begin(), after.end()), after.end());

  Clock clock = latest_[Index(stream)];
  std::vector<int> waits;
  for (const int step : after) {
    if (step < 0) continue;
    const Known& known = steps_[static_cast<size_t>(step)];
    if (known.stream == stream || step < clock[Index(known.stream)]) continue;
    waits.push_back(step);
    for (size_t s = 0; s < clock.size(); ++s) clock[s] = std::max(clock[s], known.before[s]);
    clock[Index(known.stream)] = std::max(clock[Index(known.stream)], step + 1);
  }
  std::sort(waits.begin(), waits.end());

  const int index = static_cast<int>(steps_.size());
  steps_.push_back({stream, clock});
  clock[Index(stream)] = index + 1;
  latest_[Index(stream)] = clock;
  for (const Resource& resource : reads) UsesOf(resource).readers.push_back(index);
  for (const Resource& resource : writes) {
    Uses& uses = UsesOf(resource);
    uses.last_writer = index;
    uses.readers.clear();
  }
  return waits;
}

HazardTracker::Uses& HazardTracker::UsesOf(const Resource& resource) {
  std::vector<Uses>& of_kind = uses_[static_cast<size_t>(resource.first)];
  const auto index = static_cast<size_t>(resource.second);
  if (index >= of_kind.size()) of_kind.resize(index + 1);
  return of_kind[index];
}

}  // namespace eps::worker
