#ifndef EPS_CLI_VERIFY_DIGEST_FILE_H_
#define EPS_CLI_VERIFY_DIGEST_FILE_H_

#include <compare>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace eps::cli {

// Of one tensor: digests as the daemon writes them, to be compared and nothing else.
struct TensorDigests {
  std::string name;
  std::string gradient;  // of the step's summed gradient, before clipping
  std::string master;    // after the update
};

struct StepDigests {
  int64_t step = 0;
  double loss = 0;  // NaN: not a number
  bool skipped = false;
  double seconds = 0;
  int64_t tokens = 0;
  std::vector<TensorDigests> tensors;  // in the model's order
};

// What `eps_server --digests` wrote (docs/formats.md), one entry a step, from 0.
// Errors: NOT_FOUND · DATA_LOSS naming the line and field
absl::StatusOr<std::vector<StepDigests>> ReadDigestFile(const std::string& path);

// Of one micro-batch's way through one layer: which, and a digest of what the layer made of it.
struct ForwardKey {
  int64_t step = 0;
  int layer = 0;
  int vnode = 0;
  int micro_batch = 0;
  friend auto operator<=>(const ForwardKey&, const ForwardKey&) = default;  // the order of a forward relay
};
using ForwardDigests = std::map<ForwardKey, std::string>;

// Adds what `gpu_worker --digests` wrote (docs/formats.md). What was run again has its last digest.
// Errors: as ReadDigestFile
absl::Status ReadForwardFile(const std::string& path, ForwardDigests& digests);

}  // namespace eps::cli

#endif  // EPS_CLI_VERIFY_DIGEST_FILE_H_
