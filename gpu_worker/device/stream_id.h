#ifndef EPS_GPU_WORKER_DEVICE_STREAM_ID_H_
#define EPS_GPU_WORKER_DEVICE_STREAM_ID_H_

#include <array>

#include "absl/strings/string_view.h"

namespace eps::worker {

// Of a relay, kIn has weights and swapped inner activations on their way to the device; kOut gradients and activations
// on their way from it, and boundaries and documents on theirs to it; kCompute tokens, too.
enum class StreamId { kCompute, kIn, kOut };
inline constexpr int kNumStreams = 3;
inline constexpr std::array kStreams = {StreamId::kCompute, StreamId::kIn, StreamId::kOut};
absl::string_view StreamName(StreamId id);  // "compute", "in", "out"

// Why a stream waits for an event: what StreamStats counts by. kVersion and kRoom are parts of the others, which the
// relay tells apart (RelayExecutor).
enum class WaitCause { kNone, kPull, kStash, kPush, kVersion, kRoom };
inline constexpr int kNumWaitCauses = 6;
absl::string_view WaitCauseName(WaitCause cause);  // "pull", "stash", ...

}  // namespace eps::worker

#endif  // EPS_GPU_WORKER_DEVICE_STREAM_ID_H_
