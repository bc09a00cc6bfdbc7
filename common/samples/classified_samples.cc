#include "common/samples/classified_samples.h"

#include <algorithm>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "common/base/long_work.h"
#include "common/base/status_macros.h"
#include "common/formats/document_index_writer.h"
#include "common/samples/class_names.h"
#include "common/samples/place_of_class.h"

namespace eps {
namespace {

// How many tokens of a pair's texts fit into `context`; the second may have none.
struct Kept {
  int64_t first, second;
};
Kept FitPair(int64_t first, int64_t second, int64_t context) {
  if (first + second <= context) return {first, second};
  const int64_t half = context / 2;
  if (second <= half) return {context - second, second};
  if (first <= context - half) return {first, context - first};
  return {context - half, half};
}

class ClassifiedSamples : public SampleSource {
 public:
  ClassifiedSamples(const RunConfig& run, std::unique_ptr<TokenFile> file, std::unique_ptr<DocumentIndex> index)
      : data_(run.data),
        context_(run.model.context),
        vocab_(run.model.vocab),
        file_(std::move(file)),
        index_(std::move(index)) {}

  // Before all else. Errors: MakeClassifiedSamples'
  absl::Status NumberClasses(const ModelConfig& model) {
    EPS_ASSIGN_OR_RETURN(numbers_, NumbersOfClasses(*index_, model.class_names, data_));
    return CheckDocuments(model);
  }

  int64_t num_samples() const override { return index_->num_documents(); }

  absl::Status Append(int64_t sample, int64_t, VnodeBatch& batch) const override {
    const int64_t begin = index_->first_token(sample), length = num_tokens(sample);
    const int64_t second_part = std::min(index_->second_part(sample), length);
    const Kept kept = FitPair(second_part, length - second_part, context_);
    EPS_RETURN_IF_ERROR(AppendText(begin, second_part, kept.first, batch));
    EPS_RETURN_IF_ERROR(AppendText(begin + second_part, length - second_part, kept.second, batch));
    const int64_t rows = kept.first + kept.second;
    const auto padding = static_cast<size_t>(context_ - rows);
    batch.tokens.insert(batch.tokens.end(), padding, kPaddingToken);
    batch.types.insert(batch.types.end(), static_cast<size_t>(kept.first), 0);
    batch.types.insert(batch.types.end(), static_cast<size_t>(kept.second), 1);
    batch.types.insert(batch.types.end(), padding, 0);
    batch.document_first.insert(batch.document_first.end(), static_cast<size_t>(rows), 0);
    batch.document_first.insert(batch.document_first.end(), padding, static_cast<int32_t>(rows));
    batch.num_padding += static_cast<int64_t>(padding);
    batch.labels.push_back(Label(sample).value_or(kNotCounted));
    return absl::OkStatus();
  }

  absl::Status CheckIds(LongWork* work) const override {
    if (work != nullptr) work->Begin(CheckingIdsOf(data_), index_->num_tokens() * index_->token_bytes());
    std::vector<int32_t> ids;
    for (int64_t d = 0; d < index_->num_documents(); ++d) {
      ids.resize(static_cast<size_t>(num_tokens(d)));
      EPS_RETURN_IF_ERROR(file_->Read(index_->first_token(d), vocab_, absl::MakeSpan(ids)));
      EPS_RETURN_IF_ERROR(AddTo(work, num_tokens(d) * index_->token_bytes()));
    }
    return absl::OkStatus();
  }
  std::vector<std::string> files() const override { return {data_.path, DocumentIndexPath(data_.path)}; }

 private:
  absl::Status CheckDocuments(const ModelConfig& model) const {
    for (int64_t d = 0; d < index_->num_documents(); ++d) {
      const std::optional<int32_t> label = Label(d);
      if (!label.has_value()) {
        return absl::InvalidArgumentError(
            absl::StrCat(data_.path_field, ": the documents of ", data_.users_path(),
                         " have no classes; `eps tokenize` writes them of a table (.tsv)"));
      }
      if (*label >= model.num_classes) {
        return absl::InvalidArgumentError(absl::StrCat("model.classes: ", model.num_classes, ", but ",
                                                       PlaceOfClass(data_, *index_, *index_->label(d)), " is of class ",
                                                       *label, " (from 0)"));
      }
      if (model.num_types < 2 && index_->second_part(d) < num_tokens(d)) {
        return absl::InvalidArgumentError(absl::StrCat("model.types: ", model.num_types, ", but ",
                                                       data_.DocumentName(d), " is a pair of texts, of two types"));
      }
    }
    return absl::OkStatus();
  }

  // As the model numbers it.
  std::optional<int32_t> Label(int64_t document) const {
    const std::optional<int32_t> label = index_->label(document);
    return label && !numbers_.empty() ? numbers_.at(*label) : label;
  }
  int64_t num_tokens(int64_t document) const {
    return index_->first_token(document + 1) - index_->first_token(document);
  }
  // The first `kept` of a text's tokens, but the last of them is the text's last.
  absl::Status AppendText(int64_t first, int64_t length, int64_t kept, VnodeBatch& batch) const {
    if (kept == 0) return absl::OkStatus();
    std::vector<int32_t> tokens(static_cast<size_t>(kept));
    EPS_RETURN_IF_ERROR(file_->Read(first, vocab_, absl::MakeSpan(tokens)));
    EPS_RETURN_IF_ERROR(file_->Read(first + length - 1, vocab_, absl::MakeSpan(tokens).last(1)));
    batch.tokens.insert(batch.tokens.end(), tokens.begin(), tokens.end());
    return absl::OkStatus();
  }

  const DataConfig data_;
  const int64_t context_, vocab_;
  const std::unique_ptr<TokenFile> file_;
  const std::unique_ptr<DocumentIndex> index_;
  std::unordered_map<int32_t, int32_t> numbers_;  // NumbersOfClasses'
};

}  // namespace

absl::StatusOr<std::unique_ptr<SampleSource>> MakeClassifiedSamples(const RunConfig& run,
                                                                    std::unique_ptr<TokenFile> file,
                                                                    std::unique_ptr<DocumentIndex> index) {
  auto samples = std::make_unique<ClassifiedSamples>(run, std::move(file), std::move(index));
  EPS_RETURN_IF_ERROR(samples->NumberClasses(run.model));
  return std::unique_ptr<SampleSource>(std::move(samples));
}

}  // namespace eps
