#include "common/schedule/vnode_batch.h"

#include <cstddef>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace eps {

absl::StatusOr<std::vector<int32_t>> DocumentEnds(absl::Span<const int32_t> document_first, int64_t context) {
  std::vector<int32_t> ends(document_first.size());
  for (size_t i = 0; i < document_first.size(); ++i) {
    const auto at = static_cast<int32_t>(static_cast<int64_t>(i) % context);
    const bool goes_on = at > 0 && document_first[i] == document_first[i - 1];
    if (document_first[i] != at && !goes_on) {
      return absl::InvalidArgumentError(absl::StrCat("document_first[", i, "]: ", document_first[i], ", want ", at,
                                                     at == 0 ? "" : absl::StrCat(" or ", document_first[i - 1])));
    }
  }
  for (size_t i = document_first.size(); i-- > 0;) {
    const auto at = static_cast<int32_t>(static_cast<int64_t>(i) % context);
    const bool is_last = at + 1 == context || i + 1 == document_first.size() || document_first[i + 1] == at + 1;
    ends[i] = is_last ? at + 1 : ends[i + 1];
  }
  return ends;
}

}  // namespace eps
