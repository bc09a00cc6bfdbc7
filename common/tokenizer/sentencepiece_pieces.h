#ifndef EPS_COMMON_TOKENIZER_SENTENCEPIECE_PIECES_H_
#define EPS_COMMON_TOKENIZER_SENTENCEPIECE_PIECES_H_

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "common/tokenizer/sentencepiece_file.h"

namespace eps {

// The pieces of a SentencePiece model by id and by text, as both of its models need them.
//
// Threads: safe
class SentencePiecePieces {
 public:
  static constexpr int32_t kNone = -1;

  explicit SentencePiecePieces(SentencePieceFile file);

  const SentencePieceFile& file() const { return file_; }
  const SentencePieceFile::Piece& piece(int32_t id) const { return file_.pieces[static_cast<size_t>(id)]; }
  int32_t size() const { return static_cast<int32_t>(file_.pieces.size()); }
  bool IsUnused(int32_t id) const { return piece(id).type == SentencePieceFile::Type::kUnused; }

  // Of those that a text may become: normal, user-defined and unused ones. kNone: there is none.
  int32_t FindInText(absl::string_view text) const;
  // Of all.
  int32_t Find(absl::string_view text) const;
  // The byte of a byte piece, or kNone.
  int32_t ByteOf(int32_t id) const { return byte_of_[static_cast<size_t>(id)]; }

  // Appends what stands for text that is no piece: its bytes where the model falls back on them, else the unknown piece,
  // of which neighbours are one.
  void PutUnknown(absl::string_view text, std::vector<int32_t>& ids) const;

 private:
  const SentencePieceFile file_;
  absl::flat_hash_map<absl::string_view, int32_t> in_text_, all_;  // of file_'s texts
  std::array<int32_t, 256> byte_ids_;
  std::vector<int32_t> byte_of_;
};

}  // namespace eps

#endif  // EPS_COMMON_TOKENIZER_SENTENCEPIECE_PIECES_H_
