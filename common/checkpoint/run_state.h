#ifndef EPS_COMMON_CHECKPOINT_RUN_STATE_H_
#define EPS_COMMON_CHECKPOINT_RUN_STATE_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/base/ids.h"
#include "common/choices/choices.h"
#include "common/schedule/loss_scale.h"

namespace eps {

// By which a data file is known again.
struct DataMark {
  int64_t num_bytes = 0;
  std::string sha256;  // 64 lower-case hexadecimal digits, of parts of it (eps_server/data/data_mark.h); "": not known

  bool is_known() const { return !sha256.empty(); }
  friend bool operator==(const DataMark&, const DataMark&) = default;
};

// Device models that a run knows of: whose choices it holds, which workers of one model share, and which computed it.
inline constexpr size_t kMaxDeviceModels = 16;
inline constexpr size_t kMaxDeviceModelBytes = 256;

// What can be one: 1 to kMaxDeviceModelBytes of printable ASCII.
inline bool IsDeviceModel(absl::string_view text) {
  return !text.empty() && text.size() <= kMaxDeviceModelBytes &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= 0x20 && c < 0x7f; });
}

// What a run is beside its tensors, at a step boundary. All of it is in manifest.json.
struct RunState {
  Version version;                     // of every blob; the number of steps done
  std::vector<double> losses;          // of each step from 0, nats
  std::vector<double> gradient_norms;  // of each step; NaN-free: -1 where it was not finite
  double last_norm = 0;                // for LAGGED clipping; -1: the last step was skipped
  int64_t tokens = 0;                  // counted so far
  double train_seconds = 0;            // spent in steps so far, over all sittings
  int64_t skipped_steps = 0;           // whose gradient was not finite; the optimizer's own step does not count them
  DataMark data;                       // of data.path; not known in a manifest of format 1 or 2
  std::map<std::string, Choices> choices;  // by device model, those that have any; none before format 4
  // Whose workers were given virtual nodes of training steps so far, the first kMaxDeviceModels of them: bits are promised for one. None
  // before format 7.
  std::set<std::string> device_models;
  LossScale loss_scale;  // of the next step
  // How many updates each blob that trains has had, by its name; empty: version - skipped_steps, all of them
  // (update_counts.h). Of runs that drop layers, and of models that were grown; none before format 6.
  std::map<std::string, int64_t> updates;
};

}  // namespace eps

#endif  // EPS_COMMON_CHECKPOINT_RUN_STATE_H_
