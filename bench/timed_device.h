#ifndef EPS_BENCH_TIMED_DEVICE_H_
#define EPS_BENCH_TIMED_DEVICE_H_

#include <memory>
#include <string>

#include "gpu_worker/device/device.h"

namespace eps::worker {

// `device`, each of whose kernels is timed: by a host call before and one behind it in the compute stream, which costs
// a few microseconds of it. For devices whose stream runs a kernel before what stands behind it, as the cpu device's does.
//
// When it ends it writes `path`, one JSON array, an object for each kernel and shape in order of time:
//   {"kernel": "product", "shape": "NN 2048x1536x384 activation", "calls": 72, "seconds": 2.1, "median_seconds": 0.029,
//    "operations": 2.4e9,                 of one call: a multiply-add is two; 0 of what multiplies no matrices
//    "product": ["NN", 2048, 1536, 384]}  of products alone
// Threads: as `device`
std::unique_ptr<Device> NewTimedDevice(std::unique_ptr<Device> device, std::string path);

}  // namespace eps::worker

#endif  // EPS_BENCH_TIMED_DEVICE_H_
