#ifndef EPS_SERVER_INCARNATION_H_
#define EPS_SERVER_INCARNATION_H_

#include <cstdint>
#include <random>

namespace eps::server {

// A number that no other daemon process has: every later message carries it, so that what was meant for another one is
// known. Never 0.
inline uint64_t NewIncarnation() {
  std::random_device source;
  return (uint64_t{source()} << 32 | source()) | 1;
}

}  // namespace eps::server

#endif  // EPS_SERVER_INCARNATION_H_
