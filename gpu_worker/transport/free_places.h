#ifndef EPS_GPU_WORKER_TRANSPORT_FREE_PLACES_H_
#define EPS_GPU_WORKER_TRANSPORT_FREE_PLACES_H_

#include <cstdint>
#include <map>
#include <optional>

namespace eps::worker {

// What is free of a range of memory that is handed out in pieces. The lowest place that fits is taken, so that no more pages
// are touched than are in use at once.
//
// Threads: none of its own; the owner guards it.
class FreePlaces {
 public:
  // From first_byte to end_byte, which may be the same: then nothing can be taken.
  FreePlaces(int64_t first_byte, int64_t end_byte);

  // Where the piece begins; empty: nothing that is free is so long.
  std::optional<int64_t> Take(int64_t num_bytes);
  // A piece that was taken, of the same length.
  void Return(int64_t first_byte, int64_t num_bytes);

 private:
  std::map<int64_t, int64_t> free_;  // first byte -> bytes; neighbours are joined
};

}  // namespace eps::worker

#endif  // EPS_GPU_WORKER_TRANSPORT_FREE_PLACES_H_
