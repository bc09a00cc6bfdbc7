#ifndef EPS_GPU_WORKER_DEVICE_CPU_VECTOR_LIMIT_H_
#define EPS_GPU_WORKER_DEVICE_CPU_VECTOR_LIMIT_H_

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace eps::worker {

// Holds the cpu device to `width`, one of kVectorWidths, in the whole process: before anything computes in it, and before
// another thread does anything with it.
// Errors: INVALID_ARGUMENT it is none of them, or the processor lacks it · FAILED_PRECONDITION something has computed
absl::Status LimitVectors(absl::string_view width);

}  // namespace eps::worker

#endif  // EPS_GPU_WORKER_DEVICE_CPU_VECTOR_LIMIT_H_
