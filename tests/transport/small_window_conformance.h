#ifndef EPS_TESTS_TRANSPORT_SMALL_WINDOW_CONFORMANCE_H_
#define EPS_TESTS_TRANSPORT_SMALL_WINDOW_CONFORMANCE_H_

#include "gpu_worker/transport/transport_conformance.h"

namespace eps::worker {

// What a transport must do when the daemon's window holds one chunk of fp32 and little more.
class SmallWindowTest : public TransportConformanceTest {};

}  // namespace eps::worker

#endif  // EPS_TESTS_TRANSPORT_SMALL_WINDOW_CONFORMANCE_H_
