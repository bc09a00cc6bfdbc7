#include "eps_server/aggregation/admission_window.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"

namespace eps::server {

AdmissionWindow::AdmissionWindow(const Options& options)
    : model_(*options.model), pool_(*options.pool), window_bytes_(options.window_bytes) {
  // A few times every vnode of every use, in parts of one chunk.
  int64_t parts = 0;
  for (const BlobSpec& blob : model_.blobs) {
    if (!blob.frozen) parts += static_cast<int64_t>(blob.uses.size()) * blob.num_chunks();
  }
  max_waiting_ = std::min<int64_t>(1 << 20, 1024 + int64_t{4} * options.virtual_nodes * parts);
}

std::vector<AdmissionWindow::Answered> AdmissionWindow::BeginStep() {
  open_.clear();
  reserved_bytes_ = 0;
  return AnswerAll(Verdict::kNotWanted);
}

absl::Status AdmissionWindow::CheckLine() const {
  if (num_waiting() < max_waiting_) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(waiting_.size(), " offers wait for the window already"));
}

void AdmissionWindow::Wait(const ContributionKey& key, Answer answer) {
  const Place place = {-LayerOf(key).value(), key.blob, key.node.first, key.node.count, next_offer_++};
  waiting_.emplace(place, Waiting{key, std::move(answer)});
}

std::vector<AdmissionWindow::Answered> AdmissionWindow::Admit(const StepCoverage& coverage, bool finished_blob_waits) {
  std::vector<Answered> answered;
  while (!waiting_.empty()) {
    const auto first = waiting_.begin();
    const ContributionKey& key = first->second.key;
    const bool wanted = !coverage.Covers(key);
    if (wanted && !Reserve(key, coverage, finished_blob_waits)) break;
    answered.push_back({std::move(first->second.answer), wanted ? Verdict::kAdmitted : Verdict::kNotWanted});
    waiting_.erase(first);
  }
  return answered;
}

bool AdmissionWindow::Reserve(const ContributionKey& key, const StepCoverage& coverage, bool finished_blob_waits) {
  const auto found = open_.find(OpenKeyOf(key));
  if (found != open_.end()) {  // who comes first with a chunk fills the one reservation
    ++found->second.senders;
    return true;
  }
  Open open;
  open.senders = 1;
  for (int64_t chunk = key.chunks.first; chunk < key.chunks.end(); ++chunk) {
    open.reserved.push_back(!coverage.Covers(key, chunk));
    if (open.reserved.back()) open.reserved_bytes += CostBytes(key, chunk);
  }
  // A finished blob that still waits for its update needs no contribution to go on, so waiting for it cannot starve
  // anybody, and bounds the window.
  const std::optional<LayerId> next = coverage.next_layer();
  const bool goes_first = next.has_value() && !finished_blob_waits && LayerOf(key) >= *next;
  if (used_bytes() + open.reserved_bytes > window_bytes_ && !goes_first) return false;
  reserved_bytes_ += open.reserved_bytes;
  open_.emplace(OpenKeyOf(key), std::move(open));
  return true;
}

void AdmissionWindow::GiveBack(const ContributionKey& key, int64_t chunk) {
  const auto found = open_.find(OpenKeyOf(key));
  if (found == open_.end()) return;
  const size_t place = static_cast<size_t>(chunk - key.chunks.first);
  if (!found->second.reserved[place]) return;
  const int64_t num_bytes = CostBytes(key, chunk);
  found->second.reserved[place] = false;
  found->second.reserved_bytes -= num_bytes;
  reserved_bytes_ -= num_bytes;
}

void AdmissionWindow::Close(const ContributionKey& key) {
  if (const auto found = open_.find(OpenKeyOf(key)); found != open_.end()) Erase(found);
}

bool AdmissionWindow::Abandon(const ContributionKey& key) {
  const auto found = open_.find(OpenKeyOf(key));
  if (found == open_.end() || --found->second.senders > 0) return false;
  Erase(found);
  return true;
}

std::vector<AdmissionWindow::Answered> AdmissionWindow::Refuse(const absl::Status& reason) { return AnswerAll(reason); }

int64_t AdmissionWindow::CostBytes(const ContributionKey& key, int64_t chunk) const {
  return ChunkPool::CostBytes(model_.blob(key.blob).chunk_elems(chunk) * SizeOf(key.dtype));
}

void AdmissionWindow::Erase(OpenMap::iterator open) {
  reserved_bytes_ -= open->second.reserved_bytes;
  open_.erase(open);
}

std::vector<AdmissionWindow::Answered> AdmissionWindow::AnswerAll(const absl::StatusOr<Verdict>& verdict) {
  std::vector<Answered> answered;
  for (auto& [place, waiting] : waiting_) answered.push_back({std::move(waiting.answer), verdict});
  waiting_.clear();
  return answered;
}

}  // namespace eps::server
