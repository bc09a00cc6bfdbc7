#include "eps_server/service/incoming_contributions.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/status_macros.h"
#include "common/schedule/chunk_range.h"
#include "common/tensor/dtype.h"

namespace eps::server {
namespace {

// A worker holds its gradients in host memory until they are taken: far fewer are ever under way.
constexpr size_t kMaxEntries = 65536;
// A worker stops sending a contribution when it learns that it is complete; this many may be ahead of that news.
constexpr size_t kMaxComplete = 1024;

absl::Status Wrong(absl::string_view field, absl::string_view found, absl::string_view wanted) {
  return absl::InvalidArgumentError(absl::StrCat("chunk: ", field, ": ", found, ", want ", wanted));
}

template <typename T>
absl::Status Expect(absl::string_view field, const T& found, const T& wanted) {
  return found == wanted ? absl::OkStatus() : Wrong(field, absl::StrCat(found), absl::StrCat(wanted));
}

// The header repeats what the offer said.
absl::Status CheckAgainstOffer(const ChunkHeader& header, const ContributionKey& key) {
  EPS_RETURN_IF_ERROR(Expect("step", header.step, key.step.value()));
  EPS_RETURN_IF_ERROR(Expect("blob", header.blob.value(), key.blob.value()));
  EPS_RETURN_IF_ERROR(Expect("use", int{header.use}, key.use));
  EPS_RETURN_IF_ERROR(Expect("node.first", header.node.first, key.node.first));
  EPS_RETURN_IF_ERROR(Expect("node.count", header.node.count, key.node.count));
  EPS_RETURN_IF_ERROR(Expect("dtype", DtypeName(header.dtype), DtypeName(key.dtype)));
  return Expect("nonfinite_vnode", int{header.nonfinite_vnode}, key.nonfinite_vnode);
}

}  // namespace

absl::Status IncomingContributions::Offer(uint32_t number, const ContributionKey& key) {
  if (entries_.count(number) > 0) {
    return absl::InvalidArgumentError(absl::StrCat("offer: contribution: ", number, " is under way already"));
  }
  if (entries_.size() >= kMaxEntries) {
    return absl::ResourceExhaustedError(absl::StrCat("offer: ", entries_.size(), " contributions are under way"));
  }
  entries_.emplace(number, Entry{.key = key, .next_chunk = key.chunks.first});
  return absl::OkStatus();
}

bool IncomingContributions::Admit(uint32_t number) {
  const auto it = entries_.find(number);
  if (it == entries_.end()) return false;
  it->second.state = State::kAdmitted;
  return true;
}

void IncomingContributions::Drop(uint32_t number) { entries_.erase(number); }

absl::StatusOr<ContributionKey> IncomingContributions::Find(uint32_t number) const {
  const auto it = entries_.find(number);
  if (it == entries_.end()) return Wrong("contribution", absl::StrCat(number), "one that was offered");
  return it->second.key;
}

absl::StatusOr<IncomingContributions::Place> IncomingContributions::Take(const ChunkHeader& header) {
  const auto it = entries_.find(header.contribution);
  if (it == entries_.end() || it->second.state == State::kOffered) {
    return Wrong("contribution", absl::StrCat(header.contribution), "one that was offered and admitted");
  }
  Entry& entry = it->second;
  EPS_RETURN_IF_ERROR(CheckAgainstOffer(header, entry.key));
  const BlobSpec& blob = model_.blob(entry.key.blob);
  if (!entry.key.chunks.Contains(header.chunk) || header.chunk > entry.next_chunk) {
    return Wrong("chunk", absl::StrCat(header.chunk),
                 absl::StrCat(entry.next_chunk, " (offered: ", DebugString(entry.key.chunks), ")"));
  }
  const int64_t num_bytes = blob.chunk_elems(header.chunk) * SizeOf(entry.key.dtype);
  if (header.kind != ChunkKind::kSparseGradient) {
    EPS_RETURN_IF_ERROR(Expect("payload_bytes", int64_t{header.payload_bytes}, num_bytes));
  } else if (header.payload_bytes > num_bytes) {
    return Wrong("payload_bytes", absl::StrCat(header.payload_bytes), absl::StrCat("at most ", num_bytes));
  }
  const bool repeated = header.chunk < entry.next_chunk;
  if (!repeated) ++entry.next_chunk;
  return Place{.key = entry.key,
               .wanted = !repeated && entry.state == State::kAdmitted,
               .last = entry.next_chunk == entry.key.chunks.end(),
               .num_bytes = num_bytes};
}

void IncomingContributions::Complete(uint32_t number) {
  const auto it = entries_.find(number);
  if (it == entries_.end() || it->second.state == State::kComplete) return;
  it->second.state = State::kComplete;
  complete_.push_back(number);
  if (complete_.size() > kMaxComplete) {
    entries_.erase(complete_.front());
    complete_.pop_front();
  }
}

std::vector<ContributionKey> IncomingContributions::Unfinished() const {
  std::vector<ContributionKey> keys;
  for (const auto& [number, entry] : entries_) {
    if (entry.state == State::kAdmitted) keys.push_back(entry.key);
  }
  return keys;
}

}  // namespace eps::server
