#ifndef EPS_COMMON_FORMATS_DOCUMENT_INDEX_H_
#define EPS_COMMON_FORMATS_DOCUMENT_INDEX_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace eps {

// Where the documents of a token file begin, and which of its tokens are counted: NAME.bin.docs beside NAME.bin.
// Its bytes: docs/formats.md. Mapped; safe to read from several threads.
class DocumentIndex {
 public:
  // Errors: NOT_FOUND · INVALID_ARGUMENT naming the file, field, offset, the value and what is allowed
  static absl::StatusOr<std::unique_ptr<DocumentIndex>> Open(const std::string& path);
  virtual ~DocumentIndex() = default;

  virtual int64_t num_tokens() const = 0;  // of the token file
  virtual int token_bytes() const = 0;     // of the token file: 2 or 4
  virtual int64_t num_documents() const = 0;
  // Of the tokenizer that made the ids (Tokenizer::fingerprint).
  virtual const std::string& tokenizer_fingerprint() const = 0;

  // Index of a document's first token; strictly rising; of num_documents() it is num_tokens().
  virtual int64_t first_token(int64_t document) const = 0;
  // Whether the loss counts this token where it is the one to be predicted.
  virtual bool is_counted(int64_t token) const = 0;
  // Of the tokens in [begin, end). Cost: a step for 8 of them, or one for all where all are counted.
  virtual int64_t num_counted(int64_t begin, int64_t end) const = 0;
  // Whether a document longer than a sample may be cut into several: plain text may, a conversation may not.
  virtual bool may_be_cut() const = 0;
  // Of a document that is to be classified: its class, >= 0. nullopt: these documents have no classes.
  virtual std::optional<int32_t> label(int64_t document) const = 0;
  // Of a pair of sentences: the index, within the document, of the second part's first token; the document's length
  // where it has no second part.
  virtual int64_t second_part(int64_t document) const = 0;
  // What classes 0, 1, ... are called, as many as there are; empty: they are numbers alone.
  virtual const std::vector<std::string>& class_names() const = 0;
};

}  // namespace eps

#endif  // EPS_COMMON_FORMATS_DOCUMENT_INDEX_H_
