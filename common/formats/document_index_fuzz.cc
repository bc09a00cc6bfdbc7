#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/formats/document_index_bytes.h"

// Documents of an index that is taken follow each other without a gap, none is empty, and what is said of each is in
// its range.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
  const auto bytes = absl::MakeConstSpan(reinterpret_cast<const std::byte*>(data), num_bytes);
  const absl::StatusOr<eps::DocumentIndexBytes> index = eps::DocumentIndexBytes::Parse(bytes);
  if (!index.ok()) return 0;
  if (index->num_documents() < 1 || index->fingerprint_hex().size() != 64) abort();
  const std::vector<std::string> names = index->class_names();
  if (index->first_token(0) != 0 || index->first_token(index->num_documents()) != index->num_tokens()) abort();
  for (int64_t document = 0; document < index->num_documents(); ++document) {
    const int64_t length = index->first_token(document + 1) - index->first_token(document);
    if (length < 1 || index->second_part(document) < 1 || index->second_part(document) > length) abort();
    if (index->label(document).value_or(0) < 0) abort();
    if (!names.empty() && static_cast<size_t>(*index->label(document)) >= names.size()) abort();
  }
  // The bitmap is as long as the tokens; a file without one may claim more of them than can be asked for here.
  int64_t counted = 0;
  for (int64_t token = 0; token < index->num_tokens() && token < 4096; ++token) counted += index->is_counted(token);
  if (counted != index->num_counted(0, std::min<int64_t>(index->num_tokens(), 4096))) abort();
  counted += index->is_counted(index->num_tokens() - 1);
  if ((index->flags() & eps::kHasCounted) == 0 && counted == 0) abort();
  return 0;
}
