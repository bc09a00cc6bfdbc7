#include "gpu_worker/transport/free_places.h"

#include <cstdint>
#include <iterator>
#include <optional>

namespace eps::worker {

FreePlaces::FreePlaces(int64_t first_byte, int64_t end_byte) {
  if (end_byte > first_byte) free_.emplace(first_byte, end_byte - first_byte);
}

std::optional<int64_t> FreePlaces::Take(int64_t num_bytes) {
  for (auto place = free_.begin(); place != free_.end(); ++place) {
    const auto [first_byte, free_bytes] = *place;
    if (free_bytes < num_bytes) continue;
    free_.erase(place);
    if (free_bytes > num_bytes) free_.emplace(first_byte + num_bytes, free_bytes - num_bytes);
    return first_byte;
  }
  return std::nullopt;
}

void FreePlaces::Return(int64_t first_byte, int64_t num_bytes) {
  auto place = free_.emplace(first_byte, num_bytes).first;
  if (const auto next = std::next(place); next != free_.end() && first_byte + num_bytes == next->first) {
    place->second += next->second;
    free_.erase(next);
  }
  if (place == free_.begin()) return;
  const auto before = std::prev(place);
  if (before->first + before->second != first_byte) return;
  before->second += place->second;
  free_.erase(place);
}

}  // namespace eps::worker
