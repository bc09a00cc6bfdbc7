#ifndef EPS_COMMON_TOKENIZER_VOCABULARY_H_
#define EPS_COMMON_TOKENIZER_VOCABULARY_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace eps {

// Tokens by spelling and by id. Ids may leave gaps.
//
// Threads: safe once nothing is added any more
class Vocabulary {
 public:
  // More would need gigabytes for gaps alone; the largest known have 260,000.
  static constexpr int64_t kMaxId = (int64_t{1} << 24) - 1;

  // Errors: INVALID_ARGUMENT the id or the spelling is another's
  absl::Status Add(absl::string_view spelling, int32_t id);

  std::optional<int32_t> Find(absl::string_view spelling) const;
  // Empty of a gap, and of what is no id.
  const std::string& Spelling(int32_t id) const;
  bool Has(int32_t id) const { return id >= 0 && id < num_ids() && is_there_[static_cast<size_t>(id)]; }
  // One more than the largest id.
  int32_t num_ids() const { return static_cast<int32_t>(by_id_.size()); }

 private:
  absl::flat_hash_map<std::string, int32_t> ids_;
  std::vector<std::string> by_id_;
  std::vector<bool> is_there_;
};

}  // namespace eps

#endif  // EPS_COMMON_TOKENIZER_VOCABULARY_H_
