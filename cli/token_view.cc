#include "cli/token_view.h"

#include <algorithm>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/types/span.h"
#include "cli/progress.h"
#include "common/base/byte_size.h"
#include "common/base/status_macros.h"

namespace eps::cli {
namespace {

constexpr int64_t kAnyId = int64_t{1} << 31;  // the vocabulary of who has no tokenizer
constexpr size_t kMaxClassesShown = 20;

std::string Rate(double megabytes_per_second) { return absl::StrFormat("%.1f MB/s", megabytes_per_second); }

// Lines with room in front, and nothing that a terminal takes for a command.
std::string Indented(const std::string& text) {
  std::string shown;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    absl::StrAppend(&shown, "    ", Printable(std::string(line)), "\n");
  }
  return shown;
}

std::string ShowIds(absl::Span<const int32_t> ids, const DocumentIndex& index, int64_t first) {
  std::string shown;
  for (size_t i = 0; i < ids.size(); ++i) {
    absl::StrAppend(&shown, i > 0 ? " " : "", index.is_counted(first + static_cast<int64_t>(i)) ? "+" : "", ids[i]);
  }
  return shown;
}

// Special tokens in braces: what a text spells like one has none.
std::string DecodeMarked(absl::Span<const int32_t> ids, const Tokenizer& tokenizer) {
  std::string text;
  for (size_t begin = 0, end; begin < ids.size(); begin = end) {
    const bool is_special = tokenizer.IsSpecial(ids[begin]);
    for (end = begin + 1; !is_special && end < ids.size() && !tokenizer.IsSpecial(ids[end]); ++end) {
    }
    const std::string part = tokenizer.Decode(ids.subspan(begin, end - begin), /*skip_specials=*/false);
    absl::StrAppend(&text, is_special ? "{" : "", part, is_special ? "}" : "");
  }
  return text;
}

std::string ShowText(absl::Span<const int32_t> ids, const DocumentIndex& index, int64_t first,
                     const Tokenizer& tokenizer) {
  const auto counted = [&](size_t i) { return index.is_counted(first + static_cast<int64_t>(i)); };
  std::string shown;
  for (size_t begin = 0, end; begin < ids.size(); begin = end) {
    for (end = begin + 1; end < ids.size() && counted(end) == counted(begin); ++end) {
    }
    const std::string text = DecodeMarked(ids.subspan(begin, end - begin), tokenizer);
    absl::StrAppend(&shown, counted(begin) ? "{+" : "", text, counted(begin) ? "+}" : "");
  }
  return shown;
}

// Some lines, or none.
std::string SummaryOfNotes(const EncodeNotes& notes) {
  std::string text;
  if (notes.specials_as_text > 0) {
    absl::StrAppend(
        &text, notes.specials_as_text,
        " special tokens spelled in text were read as text; --special-tokens as-tokens makes them tokens\n");
  }
  if (notes.replaced_surrogates > 0) {
    absl::StrAppend(&text, notes.replaced_surrogates, " halves of surrogate pairs became U+FFFD\n");
  }
  if (notes.replaced_bytes > 0) {
    absl::StrAppend(&text, notes.replaced_bytes, " bytes that are not UTF-8 became U+FFFD, the first at ",
                    Printable(notes.first_replaced), "; ", kToUtf8, "\n");
  }
  if (notes.skipped_lines > 0) {
    absl::StrAppend(&text, "skipped: ", notes.skipped_lines, " bad lines, of which the first are\n");
    for (const std::string& reason : notes.skip_reasons) absl::StrAppend(&text, "    ", Printable(reason), "\n");
  }
  return text;
}

// "1 document", "2 documents".
std::string Counted(int64_t count, absl::string_view what) {
  return absl::StrCat(count, " ", what, count == 1 ? "" : "s");
}

}  // namespace

std::string TokenizeProgressLine(const TokenizeProgress& progress, int width) {
  const int64_t done = progress.bytes_done, total = progress.bytes_total;
  const double rate = progress.seconds > 0 ? static_cast<double>(done) / progress.seconds : 0;
  const double eta = rate > 0 ? static_cast<double>(total - done) / rate : -1;
  const std::string share = absl::StrFormat("%3d%%", total > 0 ? 100 * done / total : 100);
  const std::string bytes = absl::StrCat("  ", FormatByteSize(done), " of ", FormatByteSize(total));
  const std::string counts =
      absl::StrCat("  ", Counted(progress.documents, "document"), "  ", Counted(progress.tokens, "token"));
  const std::string time = absl::StrCat("  ", Rate(rate / 1e6), "  eta ", FormatEta(eta));
  for (const std::string& longest :
       {absl::StrCat(ProgressBar(done, total), " ", share, bytes, counts, time),
        absl::StrCat(share, bytes, counts, time), absl::StrCat(share, counts, time), absl::StrCat(share, time)}) {
    if (static_cast<int>(longest.size()) <= width) return longest;
  }
  return share.substr(0, static_cast<size_t>(std::max(0, width)));
}

std::string TokenizeSummary(const TokenizeReport& report, const std::string& out) {
  const CorpusCounts& counts = report.counts;
  std::string text = absl::StrCat(Printable(out), ": ", Counted(counts.documents, "document"), ", ",
                                  Counted(counts.tokens, "token"), " of ", report.token_bytes, " bytes, ");
  absl::StrAppend(&text, counts.counted_tokens == counts.tokens
                             ? "all counted"
                             : absl::StrCat(counts.counted_tokens, " of them counted"));
  absl::StrAppend(&text, "; the longest document has ", counts.longest_document, "\n");
  absl::StrAppend(&text, FormatByteSize(report.source_bytes), " in ", FormatSeconds(report.seconds), ", ",
                  Rate(report.megabytes_per_second()), "\n");
  if (!report.chat_template.empty()) {
    absl::StrAppend(&text, "template: ", report.chat_template, ", ", Printable(report.chat_template_reason), "\n");
  }
  if (report.num_classes > 0) {
    absl::StrAppend(&text, "classes: ", report.num_classes);
    for (size_t i = 0; i < std::min(report.class_names.size(), kMaxClassesShown); ++i) {
      absl::StrAppend(&text, i == 0 ? ": " : ", ", i, " ", Printable(report.class_names[i]));
    }
    absl::StrAppend(&text, report.class_names.size() > kMaxClassesShown ? ", ...\n" : "\n");
  }
  if (counts.empty_documents + counts.uncounted_documents > 0) {
    absl::StrAppend(&text, "left out: ", Counted(counts.empty_documents, "empty document"), ", ",
                    counts.uncounted_documents, " without a token that is counted\n");
  }
  return absl::StrCat(text, SummaryOfNotes(report.notes));
}

std::string ShowTokenFile(const DocumentIndex& index, const std::string& path) {
  return absl::StrCat(Printable(path), ": ", Counted(index.num_documents(), "document"), ", ",
                      Counted(index.num_tokens(), "token"), " of ", index.token_bytes(), " bytes, documents ",
                      index.may_be_cut() ? "may" : "may not", " be cut, tokenizer ", index.tokenizer_fingerprint(),
                      "\n");
}

absl::StatusOr<std::string> ShowDocument(const TokenFile& file, const DocumentIndex& index, int64_t document,
                                         const Tokenizer* tokenizer, int64_t max_tokens) {
  if (tokenizer != nullptr && tokenizer->fingerprint() != index.tokenizer_fingerprint()) {
    return absl::InvalidArgumentError(absl::StrCat("tokenizer: its fingerprint is ", tokenizer->fingerprint(),
                                                   ", the ids were made with ", index.tokenizer_fingerprint()));
  }
  const int64_t first = index.first_token(document), length = index.first_token(document + 1) - first;
  int64_t counted = 0;
  for (int64_t token = first; token < first + length; ++token) counted += index.is_counted(token) ? 1 : 0;
  std::string text =
      absl::StrCat("document ", document, ": ", length, " tokens from ", first, " on, ", counted, " counted");
  if (const std::optional<int32_t> label = index.label(document)) absl::StrAppend(&text, ", class ", *label);
  const int64_t part = index.second_part(document);
  if (part < length) absl::StrAppend(&text, ", second part from its token ", part, " on");
  std::vector<int32_t> ids(static_cast<size_t>(std::min(length, max_tokens)));
  EPS_RETURN_IF_ERROR(file.Read(first, tokenizer != nullptr ? tokenizer->vocab() : kAnyId, absl::MakeSpan(ids)));
  absl::StrAppend(
      &text, "\n",
      Indented(tokenizer != nullptr ? ShowText(ids, index, first, *tokenizer) : ShowIds(ids, index, first)));
  if (length > max_tokens) absl::StrAppend(&text, "    ... and ", length - max_tokens, " tokens more\n");
  return text;
}

}  // namespace eps::cli
