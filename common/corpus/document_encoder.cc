#include "common/corpus/document_encoder.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/shown_text.h"
#include "common/base/status_macros.h"
#include "common/base/utf8.h"
#include "common/corpus/line_reader.h"
#include "common/corpus/model_vocabulary.h"

namespace eps {
namespace {

void Append(std::vector<int32_t>& ids, const std::vector<int32_t>& more) {
  ids.insert(ids.end(), more.begin(), more.end());
}

// Where a line is, or a piece of text, which has no number.
std::string PlaceOf(const TextLine& line) {
  return line.number == 0 ? absl::StrCat("byte offset ", line.offset_bytes) : LinePlace(line);
}

// A tokenizer of bytes does; one of text replaces what is none.
bool TakesAnyBytes(const Tokenizer& tokenizer) {
  constexpr absl::string_view kNoText = "\xFF";
  const std::vector<int32_t> ids = tokenizer.Encode(kNoText, Tokenizer::Specials::kAsText);
  return tokenizer.Decode(ids, /*skip_specials=*/false) == kNoText;
}

}  // namespace

void EncodeNotes::Add(const EncodeNotes& more) {
  specials_as_text += more.specials_as_text;
  replaced_surrogates += more.replaced_surrogates;
  if (replaced_bytes == 0) first_replaced = more.first_replaced;
  replaced_bytes += more.replaced_bytes;
  skipped_lines += more.skipped_lines;
  for (const std::string& reason : more.skip_reasons) {
    if (skip_reasons.size() < kMaxReasons) skip_reasons.push_back(reason);
  }
}

absl::Status AppendTokens(absl::Span<const int32_t> ids, int token_bytes, std::string& bytes) {
  size_t at = bytes.size();
  bytes.resize(at + ids.size() * static_cast<size_t>(token_bytes));
  for (const int32_t id : ids) {
    if (id < 0 || (token_bytes == 2 && id > 0xFFFF)) {
      return absl::InternalError(absl::StrCat("the tokenizer gave id ", id, ", too large for ", token_bytes, " bytes"));
    }
    for (int i = 0; i < token_bytes; ++i) bytes[at++] = static_cast<char>(static_cast<uint32_t>(id) >> (8 * i) & 0xFF);
  }
  return absl::OkStatus();
}

DocumentEncoder::DocumentEncoder(const Options& options)
    : options_(options), takes_any_bytes_(TakesAnyBytes(*options.tokenizer)) {}

absl::StatusOr<EncodedBatch> DocumentEncoder::Encode(const CorpusBatch& batch) const {
  EncodedBatch out;
  out.units.reserve(batch.units.size());
  for (const CorpusUnit& unit : batch.units) {
    EPS_RETURN_IF_ERROR_WITH(EncodeUnit(batch, unit, out),
                             absl::StrCat("\"", options_.sources->files[batch.file].path, "\""));
  }
  return out;
}

absl::Status DocumentEncoder::EncodeUnit(const CorpusBatch& batch, const CorpusUnit& unit, EncodedBatch& out) const {
  const CorpusSource& source = options_.sources->files[batch.file];
  EncodedUnit encoded{.starts_document = unit.starts_document, .ends_document = unit.ends_document};
  std::vector<int32_t> ids;
  const TextLine line{.text = batch.text(unit), .number = unit.number, .offset_bytes = unit.offset_bytes};
  switch (source.format) {
    case CorpusFormat::kAuto:
    case CorpusFormat::kText:
      NoteReplaced(source, line, line.text, out.notes);
      ids = EncodeText(line.text, out.notes);
      break;
    case CorpusFormat::kJsonl:
    case CorpusFormat::kTsv: {
      const absl::Status status = !unit.refused.empty() ? absl::InvalidArgumentError(unit.refused)
                                  : source.format == CorpusFormat::kJsonl
                                      ? EncodeLine(source, line, encoded, ids, out.notes)
                                      : EncodeRow(source, line, encoded, ids, out.notes);
      if (options_.skips_bad_lines && absl::IsInvalidArgument(status)) {
        out.notes.Add(
            {.skipped_lines = 1, .skip_reasons = {absl::StrCat("\"", source.path, "\": ", status.message())}});
        return absl::OkStatus();
      }
      EPS_RETURN_IF_ERROR(status);
      break;
    }
  }
  // Of the whole run, and not of a line that could be skipped.
  if (options_.vocab > 0) {
    EPS_RETURN_IF_ERROR_WITH(CheckModelHas(ids, options_.vocab, *options_.tokenizer), PlaceOf(line));
  }
  encoded.num_tokens = static_cast<int64_t>(ids.size());
  EPS_RETURN_IF_ERROR(AppendTokens(ids, options_.token_bytes, out.tokens));
  out.units.push_back(std::move(encoded));
  return absl::OkStatus();
}

std::vector<int32_t> DocumentEncoder::EncodeText(absl::string_view text, EncodeNotes& notes) const {
  const bool as_text = options_.specials == Tokenizer::Specials::kAsText;
  if (as_text) notes.specials_as_text += options_.tokenizer->CountSpecials(text);
  return options_.tokenizer->Encode(text, options_.specials);
}

void DocumentEncoder::NoteReplaced(const CorpusSource& source, const TextLine& whole, absl::string_view part,
                                   EncodeNotes& notes) const {
  if (takes_any_bytes_ || IsWellFormed(part)) return;
  for (size_t at = 0; at < part.size();) {
    const Utf8Step step = FirstOf(part.substr(at));
    if (!step.is_well_formed && notes.replaced_bytes == 0) {
      TextLine place = whole;
      place.offset_bytes += part.data() + at - whole.text.data();
      notes.first_replaced = absl::StrCat("\"", source.path, "\": ", PlaceOf(place));
    }
    if (!step.is_well_formed) notes.replaced_bytes += static_cast<int64_t>(step.num_bytes);
    at += step.num_bytes;
  }
}

absl::Status DocumentEncoder::EncodeLine(const CorpusSource& source, const TextLine& line, EncodedUnit& unit,
                                         std::vector<int32_t>& ids, EncodeNotes& notes) const {
  EPS_ASSIGN_OR_RETURN(const JsonlRecord record, ParseJsonlRecord(line, source.kind));
  if (source.kind == JsonlKind::kText) {
    ids = EncodeText(record.text, notes);
  } else if (source.kind == JsonlKind::kPreferences) {
    EPS_RETURN_IF_ERROR(EncodePair(record, line, unit, ids, notes));
  } else {
    EPS_RETURN_IF_ERROR(EncodeMessages(record.messages, line, unit, ids, notes));
  }
  notes.replaced_surrogates += record.replaced_surrogates;
  return absl::OkStatus();
}

absl::Status DocumentEncoder::EncodeMessages(absl::Span<const ChatMessage> messages, const TextLine& line,
                                             EncodedUnit& unit, std::vector<int32_t>& ids, EncodeNotes& notes) const {
  if (messages.empty()) return absl::OkStatus();
  absl::StatusOr<EncodedConversation> conversation = options_.chat->Encode(messages, options_.specials);
  EPS_RETURN_IF_ERROR_WITH(conversation.status(), LinePlace(line));
  NoteSpecials(messages, notes);
  ids = std::move(conversation->ids);
  unit.all_counted = options_.count_all;
  unit.counted = std::move(conversation->answers);
  return absl::OkStatus();
}

absl::Status DocumentEncoder::EncodePair(const JsonlRecord& record, const TextLine& line, EncodedUnit& unit,
                                         std::vector<int32_t>& ids, EncodeNotes& notes) const {
  absl::StatusOr<EncodedConversation> chosen = EncodeAnswer(record.messages);
  EPS_RETURN_IF_ERROR_WITH(chosen.status(), absl::StrCat(LinePlace(line), ": chosen"));
  const absl::StatusOr<EncodedConversation> rejected = EncodeAnswer(record.rejected);
  EPS_RETURN_IF_ERROR_WITH(rejected.status(), absl::StrCat(LinePlace(line), ": rejected"));
  // White space around an answer, which some templates take off, may be all that the two differ in.
  if (rejected->ids == chosen->ids) {
    return absl::InvalidArgumentError(
        absl::StrCat(LinePlace(line), ": rejected: has the tokens that chosen has: such a pair teaches nothing"));
  }
  NoteSpecials(record.messages, notes);
  NoteSpecials(record.rejected, notes);
  ids = std::move(chosen->ids);
  if (Lacks(options_.last, ids.back())) ids.push_back(*options_.last);
  unit.second_part = static_cast<int64_t>(ids.size());
  if (Lacks(options_.first, rejected->ids.front())) ids.push_back(*options_.first);
  const auto begin = static_cast<int64_t>(ids.size());
  Append(ids, rejected->ids);
  // What is compared are the answers, whatever count_all says.
  unit.all_counted = false;
  unit.counted = std::move(chosen->answers);
  for (const TokenRange& range : rejected->answers) unit.counted.push_back({begin + range.begin, begin + range.end});
  return absl::OkStatus();
}

absl::StatusOr<EncodedConversation> DocumentEncoder::EncodeAnswer(absl::Span<const ChatMessage> messages) const {
  EPS_ASSIGN_OR_RETURN(EncodedConversation conversation, options_.chat->Encode(messages, options_.specials));
  if (!conversation.answers.empty()) return conversation;
  return absl::InvalidArgumentError("the answer is empty: it has no token that is counted, and nothing to compare");
}

void DocumentEncoder::NoteSpecials(absl::Span<const ChatMessage> messages, EncodeNotes& notes) const {
  if (options_.specials == Tokenizer::Specials::kAsTokens) return;
  for (const ChatMessage& message : messages) {
    notes.specials_as_text += options_.tokenizer->CountSpecials(message.content);
  }
}

bool DocumentEncoder::Lacks(std::optional<int32_t> mark, int32_t token) const {
  return mark && (options_.specials == Tokenizer::Specials::kAsText || token != *mark);
}

absl::Status DocumentEncoder::EncodeRow(const CorpusSource& source, const TextLine& line, EncodedUnit& unit,
                                        std::vector<int32_t>& ids, EncodeNotes& notes) const {
  EPS_ASSIGN_OR_RETURN(const TsvRow row, source.table->Row(line));
  unit.label = options_.sources->classes.ClassOf(row.label);
  if (!unit.label) {
    return absl::InvalidArgumentError(absl::StrCat(LinePlace(line), ": column ",
                                                   QuoteText(source.table->label_column()), ": ", QuoteText(row.label),
                                                   " was not there before: the file was changed while it was read"));
  }
  const Tokenizer& tokenizer = *options_.tokenizer;
  const absl::string_view second = row.second_text.value_or("");
  if (row.text.empty() && second.empty()) return absl::OkStatus();
  NoteReplaced(source, line, row.text, notes);
  if (row.second_text) NoteReplaced(source, line, second, notes);
  const bool is_bert = options_.cls && options_.sep;
  if (is_bert) ids.push_back(*options_.cls);
  // Without a token that parts them, the two are two lines.
  const bool is_pair = row.second_text.has_value();
  const bool needs_newline = is_pair && !is_bert;
  Append(ids, tokenizer.Encode(absl::StrCat(row.text, needs_newline ? "\n" : ""), Tokenizer::Specials::kAsText));
  if (is_bert) ids.push_back(*options_.sep);
  if (!is_pair) return absl::OkStatus();
  const auto begin = static_cast<int64_t>(ids.size());
  Append(ids, tokenizer.Encode(second, Tokenizer::Specials::kAsText));
  if (is_bert) ids.push_back(*options_.sep);
  // An empty second part is none, where nothing marks it.
  if (begin > 0 && begin < static_cast<int64_t>(ids.size())) unit.second_part = begin;
  return absl::OkStatus();
}

}  // namespace eps
