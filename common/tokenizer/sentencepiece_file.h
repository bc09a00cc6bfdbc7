#ifndef EPS_COMMON_TOKENIZER_SENTENCEPIECE_FILE_H_
#define EPS_COMMON_TOKENIZER_SENTENCEPIECE_FILE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace eps {

// What a tokenizer.model of SentencePiece says, as far as it is needed to encode and decode. The file is a message of
// Protocol Buffers (ModelProto). It is read here, and not by SentencePiece's own library, because that brings its own
// copy of Protocol Buffers, which ends every program that has another one, as ours have.
struct SentencePieceFile {
  enum class Type { kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6 };
  enum class Model { kUnigram = 1, kBpe = 2 };

  struct Piece {
    std::string text;
    float score = 0;
    Type type = Type::kNormal;
  };

  std::vector<Piece> pieces;  // by id
  int32_t unk = 0;
  Model model = Model::kUnigram;
  bool byte_fallback = false;
  bool whitespace_as_suffix = false;
  std::string unk_surface = " \xE2\x81\x87 ";  // what an unknown piece is decoded to

  std::string charsmap;  // SentencePieceNormalizer's
  bool add_dummy_prefix = true;
  bool remove_extra_whitespaces = true;
  bool escape_whitespaces = true;
};

// Errors: INVALID_ARGUMENT naming the field or the offset, what was found, and what is supported
absl::StatusOr<SentencePieceFile> ReadSentencePieceFile(absl::string_view bytes);

}  // namespace eps

#endif  // EPS_COMMON_TOKENIZER_SENTENCEPIECE_FILE_H_
