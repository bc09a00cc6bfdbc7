#include "common/samples/sample_source.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "common/base/long_work.h"
#include "common/base/status_macros.h"
#include "common/formats/document_index.h"
#include "common/formats/document_index_writer.h"
#include "common/formats/token_file.h"
#include "common/samples/classified_samples.h"
#include "common/samples/document_packing.h"
#include "common/samples/preference_samples.h"
#include "common/samples/token_masking.h"

namespace eps {
namespace {

int TokenBytes(const DataConfig& data) { return data.tokenizer == TokenForm::kBytes ? 1 : data.token_bytes; }

// How far behind a token its label lies.
int LabelDistance(const RunConfig& run) { return run.objective() == Objective::kNextToken ? 1 : 0; }

absl::Status CheckAllIds(const TokenFile& file, const DataConfig& data, int64_t vocab, LongWork* work) {
  const int token_bytes = TokenBytes(data);
  if (vocab >= int64_t{1} << (8 * token_bytes)) return absl::OkStatus();  // none can be too large
  if (work != nullptr) work->Begin(CheckingIdsOf(data), file.num_tokens() * token_bytes);
  constexpr int64_t kBlockTokens = 1 << 16;
  std::vector<int32_t> ids(kBlockTokens);
  for (int64_t first = 0; first < file.num_tokens(); first += kBlockTokens) {
    const int64_t count = std::min(kBlockTokens, file.num_tokens() - first);
    EPS_RETURN_IF_ERROR(file.Read(first, vocab, absl::MakeSpan(ids.data(), static_cast<size_t>(count))));
    EPS_RETURN_IF_ERROR(AddTo(work, count * token_bytes));
  }
  return absl::OkStatus();
}

// Sample i is the context tokens from token i * context, wherever documents end, and as many that are their labels.
class JoinedSamples : public SampleSource {
 public:
  static absl::StatusOr<std::unique_ptr<SampleSource>> Open(const RunConfig& run, std::unique_ptr<TokenFile> file) {
    const int distance = LabelDistance(run);
    const int64_t num_samples = (file->num_tokens() - distance) / run.model.context;
    if (num_samples < 1) {
      return absl::InvalidArgumentError(absl::StrCat(
          run.data.path_field, ": ", run.data.users_path(), " has ", file->num_tokens(), " tokens; one sample needs ",
          run.model.context + distance, " (model.context", distance > 0 ? " + 1)" : ")"));
    }
    return std::unique_ptr<SampleSource>(new JoinedSamples(run, std::move(file), num_samples));
  }

  int64_t num_samples() const override { return num_samples_; }
  absl::Status Append(int64_t sample, int64_t, VnodeBatch& batch) const override {
    std::vector<int32_t> tokens(static_cast<size_t>(context_ + label_distance_));
    EPS_RETURN_IF_ERROR(file_->Read(sample * context_, vocab_, absl::MakeSpan(tokens)));
    batch.tokens.insert(batch.tokens.end(), tokens.begin(), tokens.begin() + context_);
    batch.labels.insert(batch.labels.end(), tokens.begin() + label_distance_, tokens.end());
    return absl::OkStatus();
  }
  absl::Status CheckIds(LongWork* work) const override { return CheckAllIds(*file_, data_, vocab_, work); }
  std::vector<std::string> files() const override { return {data_.path}; }

 private:
  JoinedSamples(const RunConfig& run, std::unique_ptr<TokenFile> file, int64_t num_samples)
      : data_(run.data),
        context_(run.model.context),
        vocab_(run.model.vocab),
        label_distance_(LabelDistance(run)),
        file_(std::move(file)),
        num_samples_(num_samples) {}

  const DataConfig data_;
  const int64_t context_, vocab_;
  const int label_distance_;
  const std::unique_ptr<TokenFile> file_;
  const int64_t num_samples_;
};

// What to do about a token file and an index that do not belong together. Those of a run were never the user's to make.
std::string MakeAnew(const DataConfig& data) {
  if (data.made_from.empty()) return "make both anew with `eps tokenize`";
  return absl::StrCat("remove both, and the next start makes them anew from ", data.made_from);
}

// The index of the file's documents. Errors: INVALID_ARGUMENT there is none, or it is of other tokens
absl::StatusOr<std::unique_ptr<DocumentIndex>> OpenIndex(const DataConfig& data, const TokenFile& file) {
  const std::string index_path = DocumentIndexPath(data.path);
  absl::StatusOr<std::unique_ptr<DocumentIndex>> index = DocumentIndex::Open(index_path);
  if (absl::IsNotFound(index.status())) {
    return absl::InvalidArgumentError(absl::StrCat("data.documents: ", data.path, " has no index of them beside it (",
                                                   index_path, "); `eps tokenize` writes both"));
  }
  if (absl::IsInvalidArgument(index.status()) && !data.made_from.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(data.field, ".documents: ", index.status().message(), "; ", MakeAnew(data)));
  }
  EPS_RETURN_IF_ERROR_WITH(index.status(), absl::StrCat(data.field, ".documents"));
  if ((*index)->token_bytes() != TokenBytes(data)) {
    return absl::InvalidArgumentError(absl::StrCat(data.field, ".token_bytes: ", TokenBytes(data), ", but ", index_path,
                                                   " is of ids of ", (*index)->token_bytes(), " bytes"));
  }
  if ((*index)->num_tokens() != file.num_tokens()) {
    return absl::InvalidArgumentError(absl::StrCat(data.field, ".documents: ", index_path, " is of ",
                                                   (*index)->num_tokens(), " tokens, but ", data.path, " has ",
                                                   file.num_tokens(), "; ", MakeAnew(data)));
  }
  return index;
}

// Documents that are seen alone, then padding, which is a document too.
class DocumentSamples : public SampleSource {
 public:
  static absl::StatusOr<std::unique_ptr<SampleSource>> Open(const RunConfig& run, std::unique_ptr<TokenFile> file) {
    EPS_ASSIGN_OR_RETURN(std::unique_ptr<DocumentIndex> index, OpenIndex(run.data, *file));
    EPS_RETURN_IF_ERROR(CheckNoPairs(run.data, *index));
    const int distance = LabelDistance(run);
    DocumentPacking::Options options = {.context = run.model.context,
                                        .may_be_cut = index->may_be_cut(),
                                        .packs = run.data.documents == DocumentMode::kPacked};
    if (!run.data.keeps_uncounted) {
      options.is_wanted = [&](const DocumentPiece& piece) { return CountLabels(*index, piece, distance) > 0; };
    }
    DocumentPacking packing(RowsOf(*index, distance), options);
    EPS_RETURN_IF_ERROR(CheckThereAreSamples(run, *index, packing));
    return std::unique_ptr<SampleSource>(
        new DocumentSamples(run, std::move(file), std::move(index), std::move(packing)));
  }

  int64_t num_samples() const override { return packing_.num_samples(); }
  absl::Status Append(int64_t sample, int64_t, VnodeBatch& batch) const override {
    int32_t row = 0;
    for (const DocumentPiece& piece : packing_.pieces(sample)) {
      EPS_RETURN_IF_ERROR(AppendPiece(piece, row, batch));
      row += static_cast<int32_t>(piece.num_rows);
    }
    const auto padding = static_cast<size_t>(context_ - row);
    batch.tokens.insert(batch.tokens.end(), padding, kPaddingToken);
    batch.labels.insert(batch.labels.end(), padding, kNotCounted);
    batch.document_first.insert(batch.document_first.end(), padding, row);
    batch.num_padding += context_ - row;
    return absl::OkStatus();
  }
  absl::Status CheckIds(LongWork* work) const override { return CheckAllIds(*file_, data_, vocab_, work); }
  std::vector<std::string> files() const override { return {data_.path, DocumentIndexPath(data_.path)}; }
  std::optional<DocumentFigures> CountDocuments() const override {
    DocumentFigures figures = {.documents = index_->num_documents(),
                               .tokens = index_->num_tokens(),
                               .ended_early = packing_.num_documents_ended_early(),
                               .tokens_left_out = packing_.num_rows_left_out(),
                               .left_out = packing_.num_documents_unwanted()};
    for (int64_t sample = 0; sample < packing_.num_samples(); ++sample) {
      for (const DocumentPiece& piece : packing_.pieces(sample)) {
        figures.counted_tokens += CountLabels(*index_, piece, label_distance_);
      }
    }
    return figures;
  }

 private:
  // Pairs of answers would be read as one text; those of a classifier have classes.
  static absl::Status CheckNoPairs(const DataConfig& data, const DocumentIndex& index) {
    if (index.second_part(0) == index.first_token(1) || index.label(0).has_value()) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(data.path_field, ": ", data.users_path(),
                                                   " has pairs of a chosen and a rejected answer, of which a run with "
                                                   "`preferences` learns"));
  }

  // How many of a piece's labels are counted.
  static int64_t CountLabels(const DocumentIndex& index, const DocumentPiece& piece, int label_distance) {
    const int64_t first = index.first_token(piece.document) + piece.first_row + label_distance;
    return index.num_counted(first, first + piece.num_rows);
  }

  static absl::Status CheckThereAreSamples(const RunConfig& run, const DocumentIndex& index,
                                           const DocumentPacking& packing) {
    if (packing.num_samples() > 0) return absl::OkStatus();
    const std::string none = absl::StrCat(run.data.field, ".documents: none of the ", index.num_documents(),
                                          " documents of ", run.data.users_path());
    if (packing.num_documents_unwanted() == 0) {
      return absl::InvalidArgumentError(absl::StrCat(none, " has two tokens, one to predict the other from"));
    }
    return absl::InvalidArgumentError(
        absl::StrCat(none, " has a token that is counted in its first ", run.model.context, " (model.context); ",
                     packing.num_documents_ended_early(),
                     " are longer than that: take a larger model.context, or count all of their tokens"));
  }

  DocumentSamples(const RunConfig& run, std::unique_ptr<TokenFile> file, std::unique_ptr<DocumentIndex> index,
                  DocumentPacking packing)
      : data_(run.data),
        context_(run.model.context),
        vocab_(run.model.vocab),
        label_distance_(LabelDistance(run)),
        file_(std::move(file)),
        index_(std::move(index)),
        packing_(std::move(packing)) {}

  static std::vector<int64_t> RowsOf(const DocumentIndex& index, int label_distance) {
    std::vector<int64_t> rows(static_cast<size_t>(index.num_documents()));
    for (int64_t d = 0; d < index.num_documents(); ++d) {
      rows[static_cast<size_t>(d)] = index.first_token(d + 1) - index.first_token(d) - label_distance;
    }
    return rows;
  }

  // row: where the piece begins in its sample.
  absl::Status AppendPiece(const DocumentPiece& piece, int32_t row, VnodeBatch& batch) const {
    const int64_t first = index_->first_token(piece.document) + piece.first_row;
    std::vector<int32_t> tokens(static_cast<size_t>(piece.num_rows + label_distance_));
    EPS_RETURN_IF_ERROR(file_->Read(first, vocab_, absl::MakeSpan(tokens)));
    batch.tokens.insert(batch.tokens.end(), tokens.begin(), tokens.begin() + piece.num_rows);
    for (int64_t i = label_distance_; i < piece.num_rows + label_distance_; ++i) {
      batch.labels.push_back(index_->is_counted(first + i) ? tokens[static_cast<size_t>(i)] : kNotCounted);
    }
    batch.document_first.insert(batch.document_first.end(), static_cast<size_t>(piece.num_rows), row);
    return absl::OkStatus();
  }

  const DataConfig data_;
  const int64_t context_, vocab_;
  const int label_distance_;
  const std::unique_ptr<TokenFile> file_;
  const std::unique_ptr<DocumentIndex> index_;
  const DocumentPacking packing_;
};

// Samples whose labels are their own tokens, masked anew at each place.
class MaskedSamples : public SampleSource {
 public:
  MaskedSamples(const RunConfig& run, std::unique_ptr<SampleSource> samples)
      : run_(run), samples_(std::move(samples)) {}

  int64_t num_samples() const override { return samples_->num_samples(); }
  absl::Status Append(int64_t sample, int64_t place, VnodeBatch& batch) const override {
    EPS_RETURN_IF_ERROR(samples_->Append(sample, place, batch));
    const auto context = static_cast<size_t>(run_.model.context);
    MaskTokens(run_.data.mask, run_.model.vocab, run_.data.seed, place, absl::MakeSpan(batch.tokens).last(context),
               absl::MakeSpan(batch.labels).last(context));
    return absl::OkStatus();
  }
  absl::Status CheckIds(LongWork* work) const override { return samples_->CheckIds(work); }
  std::vector<std::string> files() const override { return samples_->files(); }
  std::optional<DocumentFigures> CountDocuments() const override { return samples_->CountDocuments(); }

 private:
  const RunConfig run_;
  const std::unique_ptr<SampleSource> samples_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<SampleSource>> SampleSource::Open(const RunConfig& run) {
  absl::StatusOr<std::unique_ptr<TokenFile>> file = TokenFile::Open(run.data.path, TokenBytes(run.data));
  EPS_RETURN_IF_ERROR_WITH(file.status(), run.data.path_field);
  if (run.objective() == Objective::kClasses) {
    EPS_ASSIGN_OR_RETURN(std::unique_ptr<DocumentIndex> index, OpenIndex(run.data, **file));
    return MakeClassifiedSamples(run, *std::move(file), std::move(index));
  }
  if (run.objective() == Objective::kPreferences) {
    EPS_ASSIGN_OR_RETURN(std::unique_ptr<DocumentIndex> index, OpenIndex(run.data, **file));
    return MakePreferenceSamples(run, *std::move(file), std::move(index));
  }
  absl::StatusOr<std::unique_ptr<SampleSource>> source = run.data.has_documents()
                                                             ? DocumentSamples::Open(run, *std::move(file))
                                                             : JoinedSamples::Open(run, *std::move(file));
  if (!source.ok() || run.objective() != Objective::kMaskedTokens) return source;
  return std::unique_ptr<SampleSource>(std::make_unique<MaskedSamples>(run, *std::move(source)));
}

}  // namespace eps
