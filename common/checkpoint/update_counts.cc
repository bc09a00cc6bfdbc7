#include "common/checkpoint/update_counts.h"

#include <cstddef>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace eps {

int64_t UpdatingSteps(const RunState& state) { return state.version.value() - state.skipped_steps; }

absl::StatusOr<std::vector<int64_t>> UpdatesOfBlobs(const RunState& state, const ModelSpec& model) {
  std::vector<int64_t> updates(model.blobs.size(), UpdatingSteps(state));
  if (state.updates.empty()) return updates;
  size_t found = 0;
  for (const BlobSpec& blob : model.blobs) {
    const auto count = state.updates.find(blob.name);
    if (blob.frozen) continue;
    if (count == state.updates.end()) {
      return absl::DataLossError(absl::StrCat("updates.", blob.name, ": found nothing, must be there"));
    }
    updates[static_cast<size_t>(blob.id.value())] = count->second;
    ++found;
  }
  if (found == state.updates.size()) return updates;
  return absl::DataLossError(absl::StrCat("updates: found ", state.updates.size(), " blobs, the model trains ", found));
}

std::map<std::string, int64_t> UpdatesByName(const std::vector<int64_t>& updates, const RunState& state,
                                             const ModelSpec& model) {
  std::map<std::string, int64_t> by_name;
  bool differ = false;
  for (const BlobSpec& blob : model.blobs) {
    if (blob.frozen) continue;
    const int64_t count = updates[static_cast<size_t>(blob.id.value())];
    by_name[blob.name] = count;
    differ |= count != UpdatingSteps(state);
  }
  if (!differ) by_name.clear();
  return by_name;
}

}  // namespace eps
