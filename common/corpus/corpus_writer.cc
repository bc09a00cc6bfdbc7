#include "common/corpus/corpus_writer.h"

#include <unistd.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace eps {
namespace {

constexpr size_t kBufferBytes = 1 << 20;

}  // namespace

absl::StatusOr<std::unique_ptr<CorpusWriter>> CorpusWriter::Create(const Options& options) {
  EPS_ASSIGN_OR_RETURN(std::unique_ptr<PendingFile> file, PendingFile::Create(options.path));
  EPS_ASSIGN_OR_RETURN(std::unique_ptr<DocumentIndexWriter> index,
                       DocumentIndexWriter::Create(DocumentIndexPath(options.path), options.index));
  return std::unique_ptr<CorpusWriter>(new CorpusWriter(options, std::move(file), std::move(index)));
}

absl::Status CorpusWriter::Add(const EncodedBatch& batch) {
  absl::string_view rest = batch.tokens;
  for (const EncodedUnit& unit : batch.units) {
    const auto num_bytes = static_cast<size_t>(unit.num_tokens * options_.index.token_bytes);
    EPS_RETURN_IF_ERROR(AddUnit(unit, rest.substr(0, num_bytes)));
    rest.remove_prefix(num_bytes);
  }
  return absl::OkStatus();
}

absl::Status CorpusWriter::AddUnit(const EncodedUnit& unit, absl::string_view tokens) {
  if (unit.starts_document) document_ = {.label = unit.label};
  if (unit.num_tokens > 0) {
    // Only documents of text come in several units, and all of those is counted: what is left out was not begun.
    if (!unit.all_counted && unit.counted.empty()) {
      ++counts_.uncounted_documents;
      return absl::OkStatus();
    }
    if (document_.num_tokens == 0 && !IsOwnEnd(tokens, 0, options_.first_token)) {
      EPS_RETURN_IF_ERROR(AppendToken(options_.first_token));
    }
    const int64_t begin = document_.num_tokens;
    document_.all_counted = unit.all_counted;
    for (const TokenRange& range : unit.counted) document_.counted.push_back({begin + range.begin, begin + range.end});
    if (unit.second_part) document_.second_part = begin + *unit.second_part;
    document_.num_tokens += unit.num_tokens;
    document_.ends_itself = IsOwnEnd(tokens, unit.num_tokens - 1, options_.last_token);
    EPS_RETURN_IF_ERROR(Append(tokens));
  }
  return unit.ends_document ? EndDocument() : absl::OkStatus();
}

absl::Status CorpusWriter::EndDocument() {
  if (document_.num_tokens == 0) {
    ++counts_.empty_documents;
    return absl::OkStatus();
  }
  if (!document_.ends_itself) EPS_RETURN_IF_ERROR(AppendToken(options_.last_token));
  if (document_.all_counted) document_.counted = {{0, document_.num_tokens}};
  ++counts_.documents;
  counts_.tokens += document_.num_tokens;
  counts_.longest_document = std::max(counts_.longest_document, document_.num_tokens);
  for (const TokenRange& range : document_.counted) counts_.counted_tokens += range.end - range.begin;
  return index_->Add({.num_tokens = document_.num_tokens,
                      .counted = document_.counted,
                      .label = document_.label,
                      .second_part = document_.second_part});
}

bool CorpusWriter::IsOwnEnd(absl::string_view tokens, int64_t index, std::optional<int32_t> id) const {
  if (!options_.keeps_own_ends || !id) return false;
  const auto token_bytes = static_cast<size_t>(options_.index.token_bytes);
  std::string bytes;
  return AppendTokens({*id}, options_.index.token_bytes, bytes).ok() &&
         tokens.substr(static_cast<size_t>(index) * token_bytes, token_bytes) == bytes;
}

absl::Status CorpusWriter::AppendToken(std::optional<int32_t> id) {
  if (!id) return absl::OkStatus();
  ++document_.num_tokens;
  std::string bytes;
  EPS_RETURN_IF_ERROR(AppendTokens({*id}, options_.index.token_bytes, bytes));
  return Append(bytes);
}

absl::Status CorpusWriter::Append(absl::string_view tokens) {
  absl::StrAppend(&buffer_, tokens);
  return buffer_.size() < kBufferBytes ? absl::OkStatus() : Flush();
}

absl::Status CorpusWriter::Flush() {
  EPS_RETURN_IF_ERROR(file_->Append(buffer_));
  buffer_.clear();
  return absl::OkStatus();
}

absl::Status CorpusWriter::Finish() {
  if (counts_.documents == 0) {
    // Of conversations alone: all of a text is counted.
    const absl::string_view remedy =
        counts_.uncounted_documents > 0
            ? "; of a conversation the assistant's answers are: --count all (data { count: ALL }) counts all of it"
            : "; a document is a text, a line of JSONL, or a row of a table behind the first line";
    return absl::InvalidArgumentError(absl::StrCat("there is no document to write: ", counts_.empty_documents,
                                                   " were empty, ", counts_.uncounted_documents,
                                                   " without a token that is counted", remedy));
  }
  EPS_RETURN_IF_ERROR(Flush());
  // What may fail first; then the index, so that a token file is never without its own.
  EPS_RETURN_IF_ERROR(file_->Sync());
  EPS_RETURN_IF_ERROR(index_->Finish());
  const absl::Status published = file_->Publish();
  if (!published.ok()) unlink(DocumentIndexPath(options_.path).c_str());
  return published;
}

}  // namespace eps
