#ifndef EPS_COMMON_CORPUS_TOKENIZE_CORPUS_H_
#define EPS_COMMON_CORPUS_TOKENIZE_CORPUS_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/corpus/corpus_sources.h"
#include "common/corpus/corpus_writer.h"
#include "common/corpus/document_encoder.h"
#include "common/corpus/tsv.h"
#include "common/tokenizer/tokenizer.h"
#include "common/tokenizer/tokenizer_settings.h"

namespace eps {

struct TokenizeOptions {
  std::vector<std::string> sources;
  std::string out;  // the token file; its document index lies beside it. Must not be there
  CorpusFormat format = CorpusFormat::kAuto;
  std::optional<std::string> separator;  // of text: the line between two documents; nullopt: a file is one
  TsvColumns columns;                    // of TSV
  std::string chat_template = "auto";    // of conversations: ChooseChatTemplate's name
  TokenizerSettings settings;            // of the tokenizer's folder: its template, and the tokens of bos and eos
  bool count_all = false;     // of conversations: all tokens, not the assistant's answers alone; not of pairs
  std::optional<bool> pairs;  // whether documents must be pairs of answers, or must not be; nullopt: as they are
  // Of texts and conversations: what spellings of special tokens in them are. As tokens, they may be what begins and ends
  // a document: it gets no second one then.
  Tokenizer::Specials specials = Tokenizer::Specials::kAsText;
  bool skips_bad_lines = false;  // of JSONL and TSV: lines that cannot be taken are left out, and counted
  // The token that begins and ends a document, by its spelling; "": none. nullopt: of a conversation, what its template
  // says; of text, what settings say, else <|begin_of_text|>, <s> or [CLS], and <|endoftext|>, <|end_of_text|>, </s> or
  // [SEP], where one is a special token of the tokenizer, which puts the first there; of texts with classes that too, or,
  // where it has [CLS] and [SEP], these.
  std::optional<std::string> bos;
  std::optional<std::string> eos;
  int token_bytes = 0;  // 2 or 4; 0: 2 where the vocabulary is at most 65536
  int64_t vocab = 0;    // of the model that the tokens are for, which must have each of them; 0: of none that is known
  int threads = 1;      // that encode, beside the caller's, which reads and writes
};

struct TokenizeProgress {
  int64_t bytes_done = 0;  // of the sources
  int64_t bytes_total = 0;
  int64_t documents = 0;
  int64_t tokens = 0;
  double seconds = 0;
};

// What makes UTF-8 of text that is none, for who says EncodeNotes::replaced_bytes.
inline constexpr absl::string_view kToUtf8 = "of text in Latin-1, `iconv -f ISO-8859-1 -t UTF-8` makes UTF-8";

struct TokenizeReport {
  CorpusCounts counts;
  int64_t source_bytes = 0;
  int token_bytes = 0;
  double seconds = 0;
  EncodeNotes notes;
  std::string chat_template;             // of conversations: which one was taken
  std::string chat_template_reason;      // ChatTemplateChoice's
  bool has_pairs = false;                // documents are pairs of a chosen and a rejected answer
  int32_t num_classes = 0;               // of texts with classes
  std::vector<std::string> class_names;  // of class 0, 1, ...; empty where labels are numbers

  double megabytes_per_second() const { return seconds > 0 ? static_cast<double>(source_bytes) / 1e6 / seconds : 0; }
};

// Writes the documents of text, JSONL or TSV as token ids, in their order. The bytes depend on the sources, the tokenizer
// and the options, but not on `threads`.
//
// Memory:  some MiB a thread, or some times the longest line, whatever the sources' length; and what the tokenizer takes
// Threads: starts options.threads and joins them; `progress` (may be null) is called on the caller's thread, several
//          times a second
// Errors:  INVALID_ARGUMENT naming the option, or file, line, byte offset and key or column; of several the first in
//          the sources' order · ALREADY_EXISTS `out` is there · CANCELLED `stop` became true · UNAVAILABLE no threads,
//          no room on the disk · file errors. After one, nothing is left at `out` or beside it
absl::StatusOr<TokenizeReport> TokenizeCorpus(const TokenizeOptions& options, const Tokenizer& tokenizer,
                                              const std::function<void(const TokenizeProgress&)>& progress,
                                              const std::atomic<bool>& stop);

}  // namespace eps

#endif  // EPS_COMMON_CORPUS_TOKENIZE_CORPUS_H_
