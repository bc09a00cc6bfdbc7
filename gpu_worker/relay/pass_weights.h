#ifndef EPS_GPU_WORKER_RELAY_PASS_WEIGHTS_H_
#define EPS_GPU_WORKER_RELAY_PASS_WEIGHTS_H_

#include <cstddef>
#include <vector>

#include "common/base/ids.h"

namespace eps::worker {

// How the weights of a pass come to where its kernels read them. A member of a group brings its part of a layer to the
// slot and gets the rest from the others; with kInPlace it takes the layer whole, and nothing is exchanged.
enum class WeightSource {
  kInPlace,  // kernels read them where the daemon has them; what they cannot (ReadsInPlace) is pulled to the slot
  kCopied,   // the device copies them to the slot, from where the daemon has them
  kPulled,   // the transport copies them to the slot
  kStaged,   // the transport copies them to host memory of this worker, and the device from there to the slot
};

struct PassWeights {
  Version version;
  WeightSource source = WeightSource::kPulled;
  // By blob: where the daemon has it, in this host's memory, as long as the step is open; of kInPlace and kCopied
  // alone.
  std::vector<const std::byte*> addresses = {};

  bool in_place() const { return source == WeightSource::kInPlace; }
  const std::byte* address(BlobId blob) const { return addresses[static_cast<size_t>(blob.value())]; }
};

}  // namespace eps::worker

#endif  // EPS_GPU_WORKER_RELAY_PASS_WEIGHTS_H_
