#include "common/samples/preference_samples.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "common/base/long_work.h"
#include "common/base/status_macros.h"
#include "common/formats/document_index_writer.h"

namespace eps {
namespace {

class PreferenceSamples : public SampleSource {
 public:
  PreferenceSamples(const RunConfig& run, std::unique_ptr<TokenFile> file, std::unique_ptr<DocumentIndex> index)
      : data_(run.data),
        context_(run.model.context),
        vocab_(run.model.vocab),
        file_(std::move(file)),
        index_(std::move(index)) {}

  // Before all else. Errors: MakePreferenceSamples'
  absl::Status FindPairs() {
    for (int64_t d = 0; d < index_->num_documents(); ++d) {
      // Pairs of texts that are to be classified have a second part, too.
      const bool is_pair = index_->second_part(d) < index_->first_token(d + 1) - index_->first_token(d);
      if (!is_pair || index_->label(d).has_value()) {
        return absl::InvalidArgumentError(
            absl::StrCat(data_.path_field, ": ", data_.DocumentName(d), " is no pair of answers, which `preferences` ",
                         "wants; `eps tokenize` writes them of JSONL with \"chosen\" and \"rejected\""));
      }
      const std::array<Sequence, 2> pair = PairOf(d);
      if (CountLabels(pair[0]) == 0 || CountLabels(pair[1]) == 0) continue;
      EPS_ASSIGN_OR_RETURN(const bool are_equal, AreEqual(pair));
      if (are_equal) continue;
      pairs_.push_back(d);
      Count(pair, figures_);
    }
    figures_.documents = index_->num_documents();
    figures_.tokens = index_->num_tokens();
    figures_.left_out = index_->num_documents() - num_samples();
    if (num_samples() > 0) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(
        data_.path_field, ": of none of the ", index_->num_documents(), " pairs of ", data_.users_path(),
        " both answers have a token in the first ", context_, " (model.context), and differ there: take a larger one"));
  }

  int64_t num_samples() const override { return static_cast<int64_t>(pairs_.size()); }

  absl::Status Append(int64_t sample, int64_t, VnodeBatch& batch) const override {
    for (const Sequence& sequence : PairOf(pairs_[static_cast<size_t>(sample)])) {
      EPS_RETURN_IF_ERROR(AppendSequence(sequence, batch));
    }
    ++batch.num_pairs;
    return absl::OkStatus();
  }

  absl::Status CheckIds(LongWork* work) const override {
    if (work != nullptr) work->Begin(CheckingIdsOf(data_), index_->num_tokens() * index_->token_bytes());
    std::vector<int32_t> ids;
    for (int64_t d = 0; d < index_->num_documents(); ++d) {
      const int64_t first = index_->first_token(d), num_tokens = index_->first_token(d + 1) - first;
      ids.resize(static_cast<size_t>(num_tokens));
      EPS_RETURN_IF_ERROR(file_->Read(first, vocab_, absl::MakeSpan(ids)));
      EPS_RETURN_IF_ERROR(AddTo(work, num_tokens * index_->token_bytes()));
    }
    return absl::OkStatus();
  }
  std::vector<std::string> files() const override { return {data_.path, DocumentIndexPath(data_.path)}; }
  std::optional<DocumentFigures> CountDocuments() const override { return figures_; }

 private:
  // What stands in a sample of one part of a document: tokens [first, first + rows), and behind each its label.
  struct Sequence {
    int64_t first = 0, rows = 0;
    int64_t rows_left_out = 0;
  };

  Sequence SequenceOf(int64_t first, int64_t num_tokens) const {
    const int64_t rows = num_tokens - 1;
    return {.first = first, .rows = std::min(rows, context_), .rows_left_out = std::max<int64_t>(0, rows - context_)};
  }
  std::array<Sequence, 2> PairOf(int64_t document) const {
    const int64_t begin = index_->first_token(document), second = begin + index_->second_part(document);
    return {SequenceOf(begin, second - begin), SequenceOf(second, index_->first_token(document + 1) - second)};
  }
  int64_t CountLabels(const Sequence& sequence) const {
    return index_->num_counted(sequence.first + 1, sequence.first + 1 + sequence.rows);
  }
  // Whether what stands in a sample is the same of both. As a whole no pair's answers are (DocumentEncoder), so that only
  // what was cut is read, and that from the end, where answers lie and nearly all differ at once.
  absl::StatusOr<bool> AreEqual(const std::array<Sequence, 2>& pair) const {
    if (pair[0].rows != pair[1].rows || pair[0].rows_left_out + pair[1].rows_left_out == 0) return false;
    constexpr int64_t kPiece = 64;
    for (int64_t end = pair[0].rows + 1; end > 0; end -= kPiece) {
      const int64_t begin = std::max<int64_t>(0, end - kPiece);
      EPS_ASSIGN_OR_RETURN(const std::vector<int32_t> chosen, Read(pair[0].first + begin, end - begin));
      EPS_ASSIGN_OR_RETURN(const std::vector<int32_t> rejected, Read(pair[1].first + begin, end - begin));
      if (chosen != rejected) return false;
    }
    return true;
  }
  absl::StatusOr<std::vector<int32_t>> Read(int64_t first, int64_t num_tokens) const {
    std::vector<int32_t> tokens(static_cast<size_t>(num_tokens));
    EPS_RETURN_IF_ERROR(file_->Read(first, vocab_, absl::MakeSpan(tokens)));
    return tokens;
  }
  void Count(const std::array<Sequence, 2>& pair, DocumentFigures& figures) const {
    bool ended_early = false;
    for (const Sequence& sequence : pair) {
      figures.counted_tokens += CountLabels(sequence);
      figures.tokens_left_out += sequence.rows_left_out;
      ended_early = ended_early || sequence.rows_left_out > 0;
    }
    figures.ended_early += ended_early ? 1 : 0;
  }

  absl::Status AppendSequence(const Sequence& sequence, VnodeBatch& batch) const {
    EPS_ASSIGN_OR_RETURN(const std::vector<int32_t> tokens, Read(sequence.first, sequence.rows + 1));
    batch.tokens.insert(batch.tokens.end(), tokens.begin(), tokens.end() - 1);
    for (int64_t row = 0; row < sequence.rows; ++row) {
      const bool is_counted = index_->is_counted(sequence.first + 1 + row);
      batch.labels.push_back(is_counted ? tokens[static_cast<size_t>(row + 1)] : kNotCounted);
    }
    const auto padding = static_cast<size_t>(context_ - sequence.rows);
    batch.tokens.insert(batch.tokens.end(), padding, kPaddingToken);
    batch.labels.insert(batch.labels.end(), padding, kNotCounted);
    batch.document_first.insert(batch.document_first.end(), static_cast<size_t>(sequence.rows), 0);
    batch.document_first.insert(batch.document_first.end(), padding, static_cast<int32_t>(sequence.rows));
    batch.num_padding += static_cast<int64_t>(padding);
    return absl::OkStatus();
  }

  const DataConfig data_;
  const int64_t context_, vocab_;
  const std::unique_ptr<TokenFile> file_;
  const std::unique_ptr<DocumentIndex> index_;
  std::vector<int64_t> pairs_;  // documents that are not left out
  DocumentFigures figures_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<SampleSource>> MakePreferenceSamples(const RunConfig& run,
                                                                    std::unique_ptr<TokenFile> file,
                                                                    std::unique_ptr<DocumentIndex> index) {
  auto samples = std::make_unique<PreferenceSamples>(run, std::move(file), std::move(index));
  EPS_RETURN_IF_ERROR(samples->FindPairs());
  return std::unique_ptr<SampleSource>(std::move(samples));
}

}  // namespace eps
