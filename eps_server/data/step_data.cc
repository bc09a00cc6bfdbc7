#include "eps_server/data/step_data.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "common/base/status_macros.h"
#include "common/numeric/philox.h"
#include "eps_server/data/document_log.h"

namespace eps::server {
namespace {

std::vector<double> WeightsOf(const RunConfig& run) {
  std::vector<double> weights;
  for (const DataSource& source : run.all_sources()) weights.push_back(source.weight);
  return weights;
}

std::string PathsOf(const RunConfig& run) {
  std::string paths;
  for (const DataSource& source : run.all_sources()) {
    absl::StrAppend(&paths, paths.empty() ? "" : ", ", source.data.users_path());
  }
  return paths;
}

// A single source has the run's own, several each another.
uint64_t SeedOf(const RunConfig& run, size_t index) {
  return run.sources.empty() ? run.data.seed : Mix64(run.data.seed + Mix64(index + 1));
}

}  // namespace

absl::Status SampleRange::Append(int64_t index, int64_t place, VnodeBatch& batch) const {
  EPS_RETURN_IF_ERROR(source->Append(first + index, place, batch));
  if (has_documents)
    batch.document_first.resize(batch.tokens.size());  // of a source without: 0, its sample's beginning
  return absl::OkStatus();
}

absl::StatusOr<StepData::Source> StepData::Open(const RunConfig& run, size_t index, LongWork* work) {
  RunConfig one = run;
  one.data = run.all_sources()[index].data;
  one.data.seed = run.data.seed;
  EPS_ASSIGN_OR_RETURN(const std::shared_ptr<const SampleSource> source, SampleSource::Open(one));
  EPS_RETURN_IF_ERROR(source->CheckIds(work));
  const std::optional<DocumentFigures> figures = source->CountDocuments();
  LogDocuments(one.data.path, run.model.context, *source, figures);
  const int64_t held_out = run.evaluation.HeldOut(source->num_samples());
  if (run.evaluation.held_out > 0 && held_out == 0) {
    return absl::InvalidArgumentError(absl::StrCat("evaluation.held_out: ", run.evaluation.held_out, ", but ",
                                                   one.data.users_path(),
                                                   " has one sample; it takes two, one to train on"));
  }
  const int64_t trained = source->num_samples() - held_out;
  const bool has_documents = run.data.has_documents();
  return Source{.trained = {source, 0, trained, has_documents},
                .held_out = {source, trained, held_out, has_documents},
                .order = SampleOrder(trained, run.data.order == DataOrder::kShuffled, SeedOf(run, index)),
                .counts_nothing = figures.has_value() && figures->counted_tokens == 0};
}

absl::StatusOr<std::unique_ptr<StepData>> StepData::Create(const RunConfig& run, LongWork* work) {
  std::vector<Source> sources;
  for (size_t i = 0; i < run.all_sources().size(); ++i) {
    EPS_ASSIGN_OR_RETURN(Source source, Open(run, i, work));
    sources.push_back(std::move(source));
  }
  // Of documents without a counted token that are kept: no loss would have a value, and the weights would but decay.
  if (std::all_of(sources.begin(), sources.end(), [](const Source& source) { return source.counts_nothing; })) {
    return absl::InvalidArgumentError(
        absl::StrCat("data.uncounted: KEPT, but no token of ", PathsOf(run), " is counted in its document's first ",
                     run.model.context, " (model.context): take a larger model.context, or count all of their tokens"));
  }
  return std::unique_ptr<StepData>(new StepData(run, std::move(sources)));
}

StepData::StepData(const RunConfig& run, std::vector<Source> sources)
    : batch_(run.batch),
      sequences_per_sample_(run.sequences_per_sample()),
      sources_(std::move(sources)),
      mix_(WeightsOf(run), run.data.order == DataOrder::kShuffled, run.data.seed) {}

absl::StatusOr<std::vector<VnodeBatch>> StepData::Read(StepId step) const {
  std::vector<VnodeBatch> batches(static_cast<size_t>(batch_.virtual_nodes));
  const int64_t num_samples = batch_.sequences_per_step() / sequences_per_sample_;
  const int64_t first = step.value() * num_samples;  // of the run's samples
  const std::vector<SourcePick> picks = mix_.Picks(first, num_samples);
  for (int64_t i = 0; i < num_samples; ++i) {
    const auto v = static_cast<int>(i * sequences_per_sample_ / batch_.sequences_per_vnode());
    batches[v].vnode = v;
    const SourcePick& pick = picks[static_cast<size_t>(i)];
    const Source& source = sources_[static_cast<size_t>(pick.source)];
    EPS_RETURN_IF_ERROR_WITH(source.trained.Append(source.order.SampleAt(pick.nth), first + i, batches[v]),
                             absl::StrCat("step ", step.value(), ", vnode ", v));
  }
  return batches;
}

int64_t StepData::num_samples() const {
  int64_t num_samples = 0;
  for (const Source& source : sources_) num_samples += source.trained.count;
  return num_samples;
}

std::vector<SampleRange> StepData::held_out() const {
  std::vector<SampleRange> ranges;
  for (const Source& source : sources_) ranges.push_back(source.held_out);
  return ranges;
}

std::vector<std::string> StepData::files() const {
  std::vector<std::string> files;
  for (const Source& source : sources_) {
    for (std::string& file : source.trained.source->files()) files.push_back(std::move(file));
  }
  return files;
}

int64_t CountedTokens(const VnodeBatch& batch) {
  if (batch.num_pairs > 0) return batch.num_pairs;
  return static_cast<int64_t>(batch.labels.size()) - std::count(batch.labels.begin(), batch.labels.end(), kNotCounted);
}

}  // namespace eps::server
