#ifndef EPS_COMMON_TOKENIZER_PIPELINE_TOKENIZER_H_
#define EPS_COMMON_TOKENIZER_PIPELINE_TOKENIZER_H_

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/tokenizer/added_tokens.h"
#include "common/tokenizer/decoder.h"
#include "common/tokenizer/normalizer.h"
#include "common/tokenizer/pattern.h"
#include "common/tokenizer/pre_tokenizer.h"
#include "common/tokenizer/scratch_pool.h"
#include "common/tokenizer/token_model.h"
#include "common/tokenizer/tokenizer.h"
#include "common/tokenizer/vocabulary.h"

namespace eps {

// The parts of a tokenizer.json, which a text goes through in this order: added tokens that are not normalized, then of
// what lies between them normalizer, added tokens that are, pre-tokenizer, model.
//
// Bytes that are not UTF-8 become U+FFFD first (utf8.h).
// Threads: safe; each call takes a scratch, which keeps pieces that came before, from those that no other has
class PipelineTokenizer : public Tokenizer {
 public:
  struct Parts {
    std::unique_ptr<Vocabulary> vocabulary;  // of the model and of added tokens
    std::vector<AddedToken> added;
    std::unique_ptr<Normalizer> normalizer;       // or none
    std::unique_ptr<PreTokenizer> pre_tokenizer;  // or none
    std::unique_ptr<TokenModel> model;
    std::unique_ptr<Decoder> decoder;  // none: tokens with spaces between them
    // What the post-processor puts in front of a text, "" nothing. nullopt: there is none that puts tokens anywhere.
    std::optional<std::string> put_in_front;
    std::string fingerprint;
  };
  explicit PipelineTokenizer(Parts parts);

  std::vector<int32_t> Encode(absl::string_view text, Specials specials) const override;
  std::string Decode(absl::Span<const int32_t> ids, bool skip_specials) const override;
  int64_t vocab() const override { return parts_.vocabulary->num_ids(); }
  std::optional<int32_t> TokenId(absl::string_view token) const override { return parts_.vocabulary->Find(token); }
  bool IsSpecial(int32_t id) const override;
  bool PutsInFront(absl::string_view token) const override;
  // By their spellings, not by what a normalizer makes of them.
  int64_t CountSpecials(absl::string_view text) const override { return specials_.CountIn(text); }
  const std::string& fingerprint() const override { return parts_.fingerprint; }

 private:
  struct Scratch {
    PatternScratch pattern;
    ModelScratch model;
    std::string normalized;
  };
  // What is looked for in the text as it is, and in the normalized one.
  struct Finders {
    AddedTokenFinder plain, normalized;
  };

  void AddTo(Finders& finders, const AddedToken& token) const;
  void EncodePart(Piece part, const Finders& finders, Scratch& scratch, std::vector<int32_t>& ids) const;
  void EncodeNormalized(Piece part, Scratch& scratch, std::vector<int32_t>& ids) const;

  const Parts parts_;
  Finders all_, without_specials_;
  AddedTokenFinder specials_;
  std::vector<uint8_t> kinds_;  // by id: kAdded, kSpecial
  ScratchPool<Scratch> scratches_;
};

}  // namespace eps

#endif  // EPS_COMMON_TOKENIZER_PIPELINE_TOKENIZER_H_
