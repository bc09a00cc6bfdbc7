#include "common/corpus/corpus_sources.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/shown_text.h"
#include "common/base/status_macros.h"
#include "common/corpus/data_form.h"

namespace eps {
namespace {

// Large enough that handing it over costs nothing, small enough that a stop is soon felt.
constexpr size_t kBatchBytes = 1 << 18;

std::string Quoted(const std::string& path) { return absl::StrCat("\"", path, "\""); }

bool IsBlank(absl::string_view text) { return absl::StripAsciiWhitespace(text).empty(); }

// By the file's name, unless what it begins with says that it is something else.
absl::StatusOr<CorpusFormat> FindFormat(const std::string& path) {
  DataForm form = DataFormOfName(path);
  if (form == DataForm::kTokenIds) form = DataForm::kText;  // ids are what comes out: it is text with an unusual name
  EPS_ASSIGN_OR_RETURN(const std::string beginning, ReadBeginning(path));
  absl::Status looks_right = CheckBeginning(form, beginning);
  if (looks_right.ok()) looks_right = CheckCharacters(beginning);
  if (!looks_right.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(Quoted(path), " ", looks_right.message(), "; --format text takes it as it is"));
  }
  return form == DataForm::kJsonl   ? CorpusFormat::kJsonl
         : form == DataForm::kTable ? CorpusFormat::kTsv
                                    : CorpusFormat::kText;
}

const char* ContentName(CorpusContent content) {
  switch (content) {
    case CorpusContent::kText:
      return "text";
    case CorpusContent::kConversations:
      return "conversations";
    case CorpusContent::kClassified:
      return "texts with classes";
    case CorpusContent::kPreferences:
      return "pairs of answers";
  }
  return "?";
}

// False for a file without a line that is more than white space.
absl::StatusOr<bool> InspectJsonl(CorpusSource& source, bool skips_bad_lines, std::optional<bool> pairs) {
  EPS_ASSIGN_OR_RETURN(const std::unique_ptr<LineReader> reader, LineReader::Open(source.path));
  source.num_bytes = reader->file_bytes();
  for (TextLine line;;) {
    const absl::StatusOr<bool> found = reader->Next(line);
    if (skips_bad_lines && absl::IsInvalidArgument(found.status())) continue;
    EPS_RETURN_IF_ERROR(found.status());
    if (!*found) return false;
    if (IsBlank(line.text)) continue;
    const absl::StatusOr<JsonlKind> kind = FindJsonlKind(line, pairs);
    if (skips_bad_lines && absl::IsInvalidArgument(kind.status())) continue;
    EPS_ASSIGN_OR_RETURN(source.kind, kind);
    return true;
  }
}

// The label of each row; of rows that cannot be taken, which the encoder counts, none.
absl::Status InspectTsv(CorpusSource& source, const TsvColumns& columns, const std::atomic<bool>& stop,
                        bool skips_bad_lines, LabelClasses& classes) {
  EPS_ASSIGN_OR_RETURN(const std::unique_ptr<LineReader> reader, LineReader::Open(source.path));
  source.num_bytes = reader->file_bytes();
  for (TextLine line;;) {
    if (stop.load(std::memory_order_relaxed)) return absl::CancelledError("stopped");
    const absl::StatusOr<bool> found = reader->Next(line);
    if (source.table && skips_bad_lines && absl::IsInvalidArgument(found.status())) continue;
    EPS_RETURN_IF_ERROR(found.status());
    if (!*found) break;
    if (!source.table) {
      EPS_ASSIGN_OR_RETURN(source.table, TsvTable::FromFirstLine(line, columns));
      if (columns.has_header) continue;
    }
    if (IsBlank(line.text)) continue;
    const absl::StatusOr<TsvRow> row = source.table->Row(line);
    if (skips_bad_lines && absl::IsInvalidArgument(row.status())) continue;
    EPS_RETURN_IF_ERROR(row.status());
    EPS_RETURN_IF_ERROR(classes.Add(row->label, absl::StrCat(Quoted(source.path), ": ", LinePlace(line), ": column ",
                                                             QuoteText(source.table->label_column()))));
  }
  if (source.table) return absl::OkStatus();
  return absl::InvalidArgumentError("is empty, must begin with the names of its columns");
}

CorpusContent ContentOf(JsonlKind kind) {
  switch (kind) {
    case JsonlKind::kText:
      return CorpusContent::kText;
    case JsonlKind::kPreferences:
      return CorpusContent::kPreferences;
    case JsonlKind::kMessages:
    case JsonlKind::kInstruction:
    case JsonlKind::kPrompt:
      return CorpusContent::kConversations;
  }
  return CorpusContent::kText;
}

// What the documents of a file are; nullopt when it has none.
absl::StatusOr<std::optional<CorpusContent>> Inspect(CorpusSource& source, const TsvColumns& columns,
                                                     const std::atomic<bool>& stop, bool skips_bad_lines,
                                                     std::optional<bool> pairs, LabelClasses& classes) {
  if (source.format == CorpusFormat::kTsv) {
    EPS_RETURN_IF_ERROR(InspectTsv(source, columns, stop, skips_bad_lines, classes));
    return CorpusContent::kClassified;
  }
  if (source.format == CorpusFormat::kText) {
    EPS_ASSIGN_OR_RETURN(const std::unique_ptr<SequentialFile> file, SequentialFile::Open(source.path));
    source.num_bytes = file->num_bytes();
    return CorpusContent::kText;
  }
  EPS_ASSIGN_OR_RETURN(const bool found, InspectJsonl(source, skips_bad_lines, pairs));
  if (!found) return std::optional<CorpusContent>();
  return ContentOf(source.kind);
}

// An error of a file says which; LabelClasses and the system say so themselves.
absl::Status InFile(const absl::Status& status, const std::string& path) {
  if (status.ok() || absl::StartsWith(status.message(), Quoted(path)) || !absl::IsInvalidArgument(status))
    return status;
  return Annotate(status, Quoted(path));
}

}  // namespace

absl::StatusOr<CorpusSources> InspectSources(const std::vector<std::string>& paths, CorpusFormat format,
                                             const TsvColumns& columns, const std::atomic<bool>& stop,
                                             bool skips_bad_lines, std::optional<bool> pairs) {
  CorpusSources sources;
  const CorpusSource* first = nullptr;  // with documents
  sources.files.reserve(paths.size());
  for (const std::string& path : paths) {
    CorpusSource& source = sources.files.emplace_back();
    source.path = path;
    source.format = format;
    if (format == CorpusFormat::kAuto) {
      EPS_ASSIGN_OR_RETURN(source.format, FindFormat(path));
    }
    const absl::StatusOr<std::optional<CorpusContent>> content =
        Inspect(source, columns, stop, skips_bad_lines, pairs, sources.classes);
    EPS_RETURN_IF_ERROR(InFile(content.status(), path));
    sources.num_bytes += source.num_bytes;
    if (!content->has_value()) continue;
    if (first == nullptr) {
      first = &source;
      sources.content = **content;
    } else if (**content != sources.content) {
      return absl::InvalidArgumentError(absl::StrCat(Quoted(path), " holds ", ContentName(**content), ", ",
                                                     Quoted(first->path), " ", ContentName(sources.content),
                                                     ": they cannot go into one token file"));
    }
  }
  if (sources.content == CorpusContent::kClassified) EPS_RETURN_IF_ERROR(sources.classes.Finish());
  return sources;
}

absl::StatusOr<bool> CorpusReader::Next(CorpusBatch& batch) {
  for (; file_ < sources_.files.size(); ++file_, lines_.reset(), pieces_.reset()) {
    const std::string& path = sources_.files[file_].path;
    EPS_RETURN_IF_ERROR(InFile(OpenFile(), path));
    batch = {.file = file_};
    const absl::StatusOr<bool> found = lines_ != nullptr ? NextLines(batch) : NextPieces(batch);
    EPS_RETURN_IF_ERROR(InFile(found.status(), path));
    if (*found) return true;
  }
  return false;
}

absl::Status CorpusReader::OpenFile() {
  if (lines_ != nullptr || pieces_ != nullptr) return absl::OkStatus();
  const CorpusSource& source = sources_.files[file_];
  taken_bytes_ = 0;
  if (source.format == CorpusFormat::kText) {
    EPS_ASSIGN_OR_RETURN(pieces_, TextPieceReader::Open(source.path, separator_));
    return absl::OkStatus();
  }
  EPS_ASSIGN_OR_RETURN(lines_, LineReader::Open(source.path));
  TextLine header;
  const bool has_header = source.table && source.table->has_header();
  return has_header ? lines_->Next(header).status() : absl::OkStatus();
}

absl::StatusOr<bool> CorpusReader::NextLines(CorpusBatch& batch) {
  for (TextLine line; batch.bytes.size() < kBatchBytes;) {
    const absl::StatusOr<bool> found = lines_->Next(line);
    if (absl::IsInvalidArgument(found.status())) {  // who encodes ends it, or leaves the line out
      const absl::string_view why = found.status().message();
      batch.units.push_back({.begin = batch.bytes.size(), .refused = std::string(why.data(), why.size())});
      continue;
    }
    EPS_RETURN_IF_ERROR(found.status());
    if (!*found) break;
    if (IsBlank(line.text)) continue;
    batch.units.push_back({.begin = batch.bytes.size(),
                           .num_bytes = line.text.size(),
                           .number = line.number,
                           .offset_bytes = line.offset_bytes});
    absl::StrAppend(&batch.bytes, line.text);
  }
  batch.source_bytes = lines_->offset_bytes() - std::exchange(taken_bytes_, lines_->offset_bytes());
  return !batch.units.empty();
}

absl::StatusOr<bool> CorpusReader::NextPieces(CorpusBatch& batch) {
  for (TextPiece piece; batch.bytes.size() < kBatchBytes;) {
    EPS_ASSIGN_OR_RETURN(const bool found, pieces_->Next(piece));
    if (!found) break;
    batch.units.push_back({.begin = batch.bytes.size(),
                           .num_bytes = piece.text.size(),
                           .offset_bytes = piece.offset_bytes,
                           .starts_document = piece.starts_document,
                           .ends_document = piece.ends_document});
    absl::StrAppend(&batch.bytes, piece.text);
  }
  batch.source_bytes = pieces_->offset_bytes() - std::exchange(taken_bytes_, pieces_->offset_bytes());
  return !batch.units.empty();
}

}  // namespace eps
