#include "eps_server/data/step_data.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "common/base/status_macros.h"

namespace eps::server {
namespace {

int TokenBytes(const DataConfig& data) { return data.tokenizer == TokenForm::kBytes ? 1 : data.token_bytes; }

absl::Status CheckIds(const TokenFile& file, int64_t vocab) {
  constexpr int64_t kBlockTokens = 1 << 16;
  std::vector<int32_t> ids(kBlockTokens);
  for (int64_t first = 0; first < file.num_tokens(); first += kBlockTokens) {
    const int64_t count = std::min(kBlockTokens, file.num_tokens() - first);
    EPS_RETURN_IF_ERROR(file.Read(first, vocab, absl::MakeSpan(ids.data(), static_cast<size_t>(count))));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<StepData>> StepData::Create(const RunConfig& run) {
  EPS_ASSIGN_OR_RETURN(std::unique_ptr<TokenFile> file, TokenFile::Open(run.data.path, TokenBytes(run.data)));
  const int64_t num_samples = NumSamples(file->num_tokens(), run.model.context);
  if (num_samples < 1) {
    return absl::InvalidArgumentError(absl::StrCat("data.path: ", run.data.path, " has ", file->num_tokens(),
                                                   " tokens; one sample needs ", run.model.context + 1,
                                                   " (model.context + 1)"));
  }
  // A byte is below any vocabulary of 256 or more.
  if (run.data.tokenizer != TokenForm::kBytes || run.model.vocab < 256) {
    EPS_RETURN_IF_ERROR(CheckIds(*file, run.model.vocab));
  }
  return std::unique_ptr<StepData>(new StepData(run, std::move(file), num_samples));
}

StepData::StepData(const RunConfig& run, std::unique_ptr<TokenFile> file, int64_t num_samples)
    : batch_(run.batch),
      context_(run.model.context),
      vocab_(run.model.vocab),
      file_(std::move(file)),
      num_samples_(num_samples),
      order_(num_samples, run.data.order == DataOrder::kShuffled, run.data.seed) {}

absl::StatusOr<std::vector<VnodeBatch>> StepData::Read(StepId step) const {
  const int64_t per_vnode = batch_.sequences_per_vnode();
  const int64_t vnode_tokens = per_vnode * context_;
  std::vector<int32_t> sample(static_cast<size_t>(context_ + 1));
  std::vector<VnodeBatch> batches(static_cast<size_t>(batch_.virtual_nodes));
  int64_t place = step.value() * batch_.sequences_per_step();
  for (int v = 0; v < batch_.virtual_nodes; ++v) {
    VnodeBatch& batch = batches[v];
    batch.vnode = v;
    batch.tokens.reserve(static_cast<size_t>(vnode_tokens));
    batch.labels.reserve(static_cast<size_t>(vnode_tokens));
    for (int64_t i = 0; i < per_vnode; ++i, ++place) {
      EPS_RETURN_IF_ERROR_WITH(file_->Read(order_.SampleAt(place) * context_, vocab_, absl::MakeSpan(sample)),
                               absl::StrCat("step ", step.value(), ", vnode ", v));
      batch.tokens.insert(batch.tokens.end(), sample.begin(), sample.end() - 1);
      batch.labels.insert(batch.labels.end(), sample.begin() + 1, sample.end());
    }
  }
  return batches;
}

int64_t CountedTokens(const VnodeBatch& batch) {
  constexpr int32_t kNotCounted = -100;
  return static_cast<int64_t>(batch.labels.size()) - std::count(batch.labels.begin(), batch.labels.end(), kNotCounted);
}

}  // namespace eps::server
