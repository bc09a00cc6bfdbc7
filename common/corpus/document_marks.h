#ifndef EPS_COMMON_CORPUS_DOCUMENT_MARKS_H_
#define EPS_COMMON_CORPUS_DOCUMENT_MARKS_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "common/corpus/chat_template.h"
#include "common/corpus/corpus_sources.h"
#include "common/tokenizer/tokenizer.h"
#include "common/tokenizer/tokenizer_settings.h"

namespace eps {

// As TokenizeOptions has them.
struct DocumentMarkOptions {
  std::string chat_template = "auto";
  TokenizerSettings settings;
  std::optional<std::string> bos;
  std::optional<std::string> eos;
};

// The tokens around and between the parts of documents: the same in training and when a model is asked.
struct DocumentMarks {
  std::optional<int32_t> first;
  std::optional<int32_t> last;
  // Of texts with classes of a BERT, which then have neither `first` nor `last`: [CLS] a [SEP] b [SEP].
  std::optional<int32_t> cls;
  std::optional<int32_t> sep;
  std::optional<ChatTemplate> chat;  // of conversations, also those of pairs of answers
  std::string chat_reason;           // ChatTemplateChoice's
};

// The tokenizer must outlive the result.
// A spelling of the settings is looked up only where it is used: an option goes before it.
// Errors: INVALID_ARGUMENT naming the option, and the token that there is none of · ChooseChatTemplate's
absl::StatusOr<DocumentMarks> ChooseDocumentMarks(const DocumentMarkOptions& options, CorpusContent content,
                                                  const Tokenizer& tokenizer);

}  // namespace eps

#endif  // EPS_COMMON_CORPUS_DOCUMENT_MARKS_H_
