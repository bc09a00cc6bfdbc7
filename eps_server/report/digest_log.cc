#include "eps_server/report/digest_log.h"

#include <fcntl.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/numeric/bit_digest.h"
#include "nlohmann/json.hpp"

namespace eps::server {
namespace {

std::string Hex(uint64_t digest) { return absl::StrCat(absl::Hex(digest, absl::kZeroPad16)); }

}  // namespace

absl::StatusOr<std::unique_ptr<DigestLog>> DigestLog::Open(const std::string& path, const ModelSpec* model,
                                                           const Store* store) {
  EPS_ASSIGN_OR_RETURN(FileDescriptor file, OpenFile(path, O_WRONLY | O_CREAT | O_TRUNC));
  return std::unique_ptr<DigestLog>(new DigestLog(path, std::move(file), model, store));
}

DigestLog::DigestLog(std::string path, FileDescriptor file, const ModelSpec* model, const Store* store)
    : path_(std::move(path)), file_(std::move(file)), model_(*model), store_(*store) {
  size_t index = 0;
  for (const BlobSpec& blob : model_.blobs) {
    std::vector<std::vector<Part>>& chunks = parts_.emplace_back(static_cast<size_t>(blob.num_chunks()));
    for (const TensorSpec& tensor : blob.tensors) {
      first_part_.push_back(index);
      const int64_t end = tensor.offset_elems + tensor.num_elems();
      for (int64_t at = tensor.offset_elems; at < end;) {
        const int64_t chunk = at / kChunkElems, chunk_begin = chunk * kChunkElems;
        const int64_t stop = std::min(end, chunk_begin + kChunkElems);
        chunks[static_cast<size_t>(chunk)].push_back({at - chunk_begin, stop - chunk_begin, index++});
        at = stop;
      }
    }
  }
  first_part_.push_back(index);
}

DigestLog::StepDigests& DigestLog::Of(StepId step) {
  MutexLock lock(mu_);
  std::unique_ptr<StepDigests>& digests = steps_[step];
  if (digests == nullptr) {
    digests = std::make_unique<StepDigests>();
    digests->gradients.resize(first_part_.back());
    digests->masters.resize(first_part_.back());
  }
  return *digests;
}

void DigestLog::Digest(absl::Span<const float> chunk_values, const std::vector<Part>& parts,
                       std::vector<uint64_t>& digests) const {
  for (const Part& part : parts) {
    digests[part.index] =
        DigestBits(chunk_values.subspan(static_cast<size_t>(part.begin), static_cast<size_t>(part.end - part.begin)));
  }
}

void DigestLog::OnSummed(StepId step, BlobId blob, int64_t chunk, absl::Span<const float> sum) {
  Digest(sum, parts_[static_cast<size_t>(blob.value())][static_cast<size_t>(chunk)], Of(step).gradients);
}

void DigestLog::OnUpdated(StepId step, BlobId blob, int64_t chunk) {
  std::vector<float> master(static_cast<size_t>(model_.blob(blob).chunk_elems(chunk)));
  const absl::Status read = store_.ReadMaster(blob, NextVersion(step), chunk * kChunkElems, absl::MakeSpan(master));
  if (!read.ok()) {
    MutexLock lock(mu_);
    status_.Update(read);
    return;
  }
  Digest(master, parts_[static_cast<size_t>(blob.value())][static_cast<size_t>(chunk)], Of(step).masters);
}

std::string DigestLog::Line(const StepReport& report, const StepDigests& digests) const {
  const auto of_tensor = [&](const std::vector<uint64_t>& parts, size_t tensor) {
    const size_t first = first_part_[tensor];
    return Hex(DigestOfDigests(absl::MakeConstSpan(parts).subspan(first, first_part_[tensor + 1] - first)));
  };
  nlohmann::ordered_json line;
  line["step"] = report.step.value();
  line["loss"] = report.loss;  // not a number: null
  line["skipped"] = report.skipped;
  line["seconds"] = report.seconds;
  line["tokens"] = report.tokens;
  nlohmann::ordered_json& tensors = line["tensors"] = nlohmann::ordered_json::array();
  size_t index = 0;
  for (const BlobSpec& blob : model_.blobs) {
    for (const TensorSpec& tensor : blob.tensors) {
      tensors.push_back({{"name", tensor.name},
                         {"gradient", of_tensor(digests.gradients, index)},
                         {"master", of_tensor(digests.masters, index)}});
      ++index;
    }
  }
  return line.dump() + "\n";
}

void DigestLog::OnCommit(const StepReport& report) {
  for (const BlobSpec& blob : model_.blobs) {
    for (int64_t chunk = 0; blob.frozen && chunk < blob.num_chunks(); ++chunk) OnUpdated(report.step, blob.id, chunk);
  }
  const std::string line = Line(report, Of(report.step));
  MutexLock lock(mu_);
  steps_.erase(report.step);
  if (!status_.ok()) return;
  status_ = WriteAt(file_, path_, num_bytes_, line);
  num_bytes_ += static_cast<int64_t>(line.size());
  if (!status_.ok()) LogError("digests_not_written", {{"error", status_.ToString()}});
}

absl::Status DigestLog::status() const {
  MutexLock lock(mu_);
  return status_;
}

}  // namespace eps::server
