#ifndef EPS_COMMON_CORPUS_DOCUMENT_ENCODER_H_
#define EPS_COMMON_CORPUS_DOCUMENT_ENCODER_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/corpus/chat_template.h"
#include "common/corpus/corpus_sources.h"
#include "common/corpus/jsonl.h"
#include "common/formats/document_index_writer.h"
#include "common/tokenizer/tokenizer.h"

namespace eps {

// The tokens of a unit: those of a document but the ones at its ends that every document has.
struct EncodedUnit {
  int64_t num_tokens = 0;
  bool starts_document = true;
  bool ends_document = true;
  bool all_counted = true;
  std::vector<TokenRange> counted;  // where not all are
  std::optional<int32_t> label;
  std::optional<int64_t> second_part;
};

// What a user may want to know of what was read.
struct EncodeNotes {
  static constexpr size_t kMaxReasons = 3;

  int64_t specials_as_text = 0;     // spellings of special tokens, in texts and contents, that were read as text
  int64_t replaced_surrogates = 0;  // that became U+FFFD
  int64_t replaced_bytes = 0;       // of plain text and tables, no UTF-8, that became U+FFFD
  std::string first_replaced;       // the first one's file and place
  int64_t skipped_lines = 0;
  std::vector<std::string> skip_reasons;  // of the first ones: file, line and what is wrong

  // `more`: of what stands behind in the sources.
  void Add(const EncodeNotes& more);
};

struct EncodedBatch {
  std::string tokens;  // as they are in the token file
  std::vector<EncodedUnit> units;
  EncodeNotes notes;
};

// Units of text to tokens.
//
// Threads: safe; fixed after construction. What it is given must outlive it.
class DocumentEncoder {
 public:
  struct Options {
    const CorpusSources* sources = nullptr;
    const Tokenizer* tokenizer = nullptr;
    const ChatTemplate* chat = nullptr;                           // of conversations
    bool count_all = false;                                       // of conversations that are no pairs of answers
    Tokenizer::Specials specials = Tokenizer::Specials::kAsText;  // of texts and conversations
    bool skips_bad_lines = false;                                 // of JSONL and TSV
    int token_bytes = 2;
    int64_t vocab = 0;  // of the model that the tokens are for; 0: of none that is known
    // Where the tokenizer has them, [CLS] and [SEP]: texts with classes are then BERT's, [CLS] a [SEP] b [SEP].
    std::optional<int32_t> cls;
    std::optional<int32_t> sep;
    // What every document begins and ends with, for between the parts of a pair of answers: each part is what it would
    // be as a document of its own.
    std::optional<int32_t> first;
    std::optional<int32_t> last;
  };
  explicit DocumentEncoder(const Options& options);

  // Errors: INVALID_ARGUMENT naming file, line and offset, also of a token that the model has not · INTERNAL an id that is
  //         too large for its bytes
  absl::StatusOr<EncodedBatch> Encode(const CorpusBatch& batch) const;

 private:
  absl::Status EncodeUnit(const CorpusBatch& batch, const CorpusUnit& unit, EncodedBatch& out) const;
  std::vector<int32_t> EncodeText(absl::string_view text, EncodeNotes& notes) const;
  // Leaves `unit`, `ids` and `notes` alone when it fails.
  absl::Status EncodeLine(const CorpusSource& source, const TextLine& line, EncodedUnit& unit,
                          std::vector<int32_t>& ids, EncodeNotes& notes) const;
  absl::Status EncodeRow(const CorpusSource& source, const TextLine& line, EncodedUnit& unit, std::vector<int32_t>& ids,
                         EncodeNotes& notes) const;
  // Counts the bytes of `part`, which lies in `whole`, that are no UTF-8 and that the tokenizer will replace.
  void NoteReplaced(const CorpusSource& source, const TextLine& whole, absl::string_view part,
                    EncodeNotes& notes) const;
  absl::Status EncodeMessages(absl::Span<const ChatMessage> messages, const TextLine& line, EncodedUnit& unit,
                              std::vector<int32_t>& ids, EncodeNotes& notes) const;
  // The tokens of the chosen conversation, then those of the rejected one.
  absl::Status EncodePair(const JsonlRecord& record, const TextLine& line, EncodedUnit& unit, std::vector<int32_t>& ids,
                          EncodeNotes& notes) const;
  absl::StatusOr<EncodedConversation> EncodeAnswer(absl::Span<const ChatMessage> messages) const;
  void NoteSpecials(absl::Span<const ChatMessage> messages, EncodeNotes& notes) const;
  // Whether `mark` is to be put beside `token`, at which a document begins or ends: CorpusWriter's keeps_own_ends.
  bool Lacks(std::optional<int32_t> mark, int32_t token) const;

  const Options options_;
  const bool takes_any_bytes_;  // the tokenizer, as it has a token for each
};

// Appends ids as the token file has them. Errors: INTERNAL an id that does not fit
absl::Status AppendTokens(absl::Span<const int32_t> ids, int token_bytes, std::string& bytes);

}  // namespace eps

#endif  // EPS_COMMON_CORPUS_DOCUMENT_ENCODER_H_
