#include "common/tokenizer/sentencepiece_tokenizer.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "absl/types/span.h"
#include "common/base/json_text.h"
#include "common/base/sha256.h"
#include "common/base/status_macros.h"
#include "common/tokenizer/added_tokens.h"
#include "common/tokenizer/json_node.h"
#include "common/tokenizer/scratch_pool.h"
#include "common/tokenizer/sentencepiece_bpe.h"
#include "common/tokenizer/sentencepiece_file.h"
#include "common/tokenizer/sentencepiece_normalizer.h"
#include "common/tokenizer/sentencepiece_pieces.h"
#include "common/tokenizer/sentencepiece_unigram.h"
#include "common/tokenizer/token_model.h"
#include "common/tokenizer/vocabulary.h"

namespace eps {
namespace {

using Type = SentencePieceFile::Type;
constexpr absl::string_view kMark = "\xE2\x96\x81";
constexpr int kMaxAddedDepth = 4;

std::unique_ptr<TokenModel> ModelOf(const SentencePiecePieces& pieces, const SentencePieceNormalizer& normalizer) {
  if (pieces.file().model == SentencePieceFile::Model::kBpe) {
    return std::make_unique<SentencePieceBpe>(pieces, normalizer);
  }
  return std::make_unique<SentencePieceUnigram>(pieces);
}

class SentencePieceTokenizer : public Tokenizer {
 public:
  // `added`: ids behind those of the file.
  SentencePieceTokenizer(SentencePieceFile file, SentencePieceNormalizer normalizer, Vocabulary added,
                         std::string fingerprint)
      : pieces_(std::move(file)),
        normalizer_(std::move(normalizer)),
        model_(ModelOf(pieces_, normalizer_)),
        added_(std::move(added)),
        fingerprint_(std::move(fingerprint)) {
    for (int32_t id = 0; id < pieces_.size(); ++id) {
      if (pieces_.piece(id).type != Type::kControl) continue;
      AddedToken token;
      token.id = id;
      control_.Add(token, pieces_.piece(id).text);
    }
    for (int32_t id = pieces_.size(); id < added_.num_ids(); ++id) {
      AddedToken token;
      token.id = id;
      control_.Add(token, added_.Spelling(id));
    }
  }

  std::vector<int32_t> Encode(absl::string_view text, Specials specials) const override {
    std::vector<int32_t> ids;
    std::unique_ptr<ModelScratch> scratch = scratches_.Take();
    const auto encode = [&](absl::string_view part) {
      const std::string normalized = normalizer_.Apply(part);
      if (!normalized.empty()) model_->Tokenize(normalized, *scratch, ids);
    };
    if (specials == Specials::kAsText) {
      encode(text);
    } else {
      control_.ForEachPart(text, [&](AddedTokenFinder::Part part) {
        if (part.id >= 0) {
          ids.push_back(part.id);
        } else {
          encode(part.text);
        }
      });
    }
    scratches_.GiveBack(std::move(scratch));
    return ids;
  }

  std::string Decode(absl::Span<const int32_t> ids, bool skip_specials) const override {
    std::string text;
    bool at_start = true;  // nothing but control pieces so far
    for (const int32_t id : ids) {
      if (id < 0 || id >= pieces_.size()) {
        if (!skip_specials) text += added_.Spelling(id);
        continue;
      }
      const SentencePieceFile::Piece& piece = pieces_.piece(id);
      if (piece.type == Type::kControl || (piece.type == Type::kUnknown && skip_specials)) {
        if (!skip_specials) text += piece.text;
        continue;
      }
      at_start = AppendPiece(id, at_start, text);
    }
    return text;
  }

  int64_t vocab() const override { return std::max(pieces_.size(), added_.num_ids()); }

  std::optional<int32_t> TokenId(absl::string_view token) const override {
    const int32_t id = pieces_.Find(token);
    return id == SentencePiecePieces::kNone ? added_.Find(token) : std::optional<int32_t>(id);
  }

  bool IsSpecial(int32_t id) const override {
    return added_.Has(id) || (id >= 0 && id < pieces_.size() && pieces_.piece(id).type == Type::kControl);
  }
  int64_t CountSpecials(absl::string_view text) const override { return control_.CountIn(text); }

  const std::string& fingerprint() const override { return fingerprint_; }

 private:
  // Returns whether the next one is at the start still: spaces that were put in front are taken away, all of them where
  // the model knows no extra ones.
  bool AppendPiece(int32_t id, bool at_start, std::string& text) const {
    const SentencePieceFile& file = pieces_.file();
    if (const int32_t byte = pieces_.ByteOf(id); byte != SentencePiecePieces::kNone) {
      text += static_cast<char>(byte);
      return false;
    }
    if (id == file.unk) {
      text += file.unk_surface;
      return false;
    }
    absl::string_view piece = pieces_.piece(id).text;
    bool took_space = false;
    if (at_start && (file.add_dummy_prefix || file.remove_extra_whitespaces)) {
      took_space = absl::ConsumePrefix(&piece, kMark);
    }
    text += absl::StrReplaceAll(piece, {{kMark, " "}});
    return at_start && piece.empty() && (!took_space || file.remove_extra_whitespaces);
  }

  const SentencePiecePieces pieces_;
  const SentencePieceNormalizer normalizer_;
  const std::unique_ptr<TokenModel> model_;  // of both
  const Vocabulary added_;
  AddedTokenFinder control_;  // and added ones
  const std::string fingerprint_;
  ScratchPool<ModelScratch> scratches_;
};

// Those that are not the file's: what repeats a piece has its id.
absl::StatusOr<Vocabulary> AddedTokensOf(absl::string_view added, const SentencePieceFile& file) {
  Vocabulary tokens;
  if (added.empty()) return tokens;
  EPS_ASSIGN_OR_RETURN(const nlohmann::json document, ParseJson(added, kMaxAddedDepth));
  if (!document.is_object()) return JsonNode(document).Bad("an object of tokens and their ids");
  const auto num_pieces = static_cast<int64_t>(file.pieces.size());
  for (const auto& [spelling, value] : document.items()) {
    EPS_ASSIGN_OR_RETURN(const JsonNode node, JsonNode(document).Get(spelling));
    EPS_ASSIGN_OR_RETURN(const int64_t id, node.Integer(0, Vocabulary::kMaxId));
    if (id >= num_pieces) {
      EPS_RETURN_IF_ERROR(tokens.Add(spelling, static_cast<int32_t>(id)));
    } else if (file.pieces[static_cast<size_t>(id)].text != spelling) {
      return node.Bad(absl::StrCat("an id from ", num_pieces, " on: below, they are other tokens of the model's"));
    }
  }
  return tokens;
}

std::string FingerprintOf(absl::string_view text) {
  return Sha256Hex(absl::MakeConstSpan(reinterpret_cast<const std::byte*>(text.data()), text.size()));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> TokenizerFromSentencePiece(absl::string_view bytes,
                                                                      absl::string_view added) {
  EPS_ASSIGN_OR_RETURN(SentencePieceFile file, ReadSentencePieceFile(bytes));
  EPS_ASSIGN_OR_RETURN(SentencePieceNormalizer normalizer, SentencePieceNormalizer::Create(file));
  absl::StatusOr<Vocabulary> tokens = AddedTokensOf(added, file);
  EPS_RETURN_IF_ERROR_WITH(tokens.status(), "added_tokens.json");
  std::string fingerprint = FingerprintOf(added.empty() ? bytes : absl::StrCat(bytes, added));
  return std::make_unique<SentencePieceTokenizer>(std::move(file), std::move(normalizer), *std::move(tokens),
                                                  std::move(fingerprint));
}

}  // namespace eps
