#ifndef EPS_SERVER_SERVICE_INCOMING_CONTRIBUTIONS_H_
#define EPS_SERVER_SERVICE_INCOMING_CONTRIBUTIONS_H_

#include <cstdint>
#include <deque>
#include <map>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/formats/chunk_header.h"
#include "common/model/model_spec.h"
#include "eps_server/aggregation/aggregator.h"

namespace eps::server {

// What one push stream has offered, and how far each contribution is: every check that needs no aggregator.
//
// Threads: none of its own; the stream guards it.
class IncomingContributions {
 public:
  explicit IncomingContributions(const ModelSpec& model) : model_(model) {}

  // Errors: INVALID_ARGUMENT naming the field: the number is in use · RESOURCE_EXHAUSTED too many under way
  absl::Status Offer(uint32_t number, const ContributionKey& key);

  // The aggregator's answer. False: nobody waits for it any more.
  bool Admit(uint32_t number);
  // Forgets it: not wanted.
  void Drop(uint32_t number);

  // What was offered under this number. Errors: INVALID_ARGUMENT nothing was
  absl::StatusOr<ContributionKey> Find(uint32_t number) const;

  struct Place {
    ContributionKey key;
    bool wanted = false;    // false: the chunk was there already, or all of the contribution is
    bool last = false;      // of its contribution
    int64_t num_bytes = 0;  // of the chunk, unpacked
  };
  // Where a received chunk goes. A repeated one is fine, and not wanted.
  // Errors: INVALID_ARGUMENT naming the field: a number that was not offered or not admitted, a header other than the
  //         offer's, a chunk out of order, none of those that were offered, or of another length than the blob's (longer,
  //         where it is packed)
  absl::StatusOr<Place> Take(const ChunkHeader& header);

  // It was answered: every chunk is held, or it is not wanted. Those that are under way may still come, and are not
  // wanted.
  void Complete(uint32_t number);

  // Those that were admitted and are not complete: what the end of the stream abandons.
  std::vector<ContributionKey> Unfinished() const;

 private:
  enum class State { kOffered, kAdmitted, kComplete };
  struct Entry {
    ContributionKey key;
    State state = State::kOffered;
    int64_t next_chunk = 0;  // of the blob
  };

  const ModelSpec& model_;
  std::map<uint32_t, Entry> entries_;
  std::deque<uint32_t> complete_;  // still in entries_ for the sake of chunks under way; oldest first
};

}  // namespace eps::server

#endif  // EPS_SERVER_SERVICE_INCOMING_CONTRIBUTIONS_H_
