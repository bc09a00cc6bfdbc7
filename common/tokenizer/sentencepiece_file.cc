#include "common/tokenizer/sentencepiece_file.h"

#include <bit>
#include <cmath>
#include <optional>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/base/utf8.h"
#include "common/tokenizer/proto_reader.h"

namespace eps {
namespace {

using Field = ProtoReader::Field;

absl::Status Bad(absl::string_view field, absl::string_view found, absl::string_view wanted) {
  return absl::InvalidArgumentError(absl::StrCat(field, ": ", found, ", must be ", wanted));
}

// `take(field)` for each field of a message. A known number of another kind is left to `take`, which looks at the kind.
template <typename Take>
absl::Status ForEachField(absl::string_view message, size_t offset, Take take) {
  ProtoReader reader(message, offset);
  while (!reader.AtEnd()) {
    EPS_ASSIGN_OR_RETURN(const Field field, reader.Next());
    EPS_RETURN_IF_ERROR(take(field));
  }
  return absl::OkStatus();
}

absl::StatusOr<SentencePieceFile::Piece> ReadPiece(const Field& message, size_t index) {
  SentencePieceFile::Piece piece;
  EPS_RETURN_IF_ERROR(ForEachField(message.bytes, message.offset, [&](const Field& field) {
    if (field.number == 1 && field.kind == Field::kBytes) piece.text = std::string(field.bytes);
    if (field.number == 2 && field.kind == Field::kFixed32) {
      piece.score = std::bit_cast<float>(static_cast<uint32_t>(field.value));
    }
    if (field.number == 3 && field.kind == Field::kVarint) {
      if (field.value < 1 || field.value > 6) {
        return Bad(absl::StrCat("pieces[", index, "].type"), absl::StrCat(field.value), "1 to 6");
      }
      piece.type = static_cast<SentencePieceFile::Type>(field.value);
    }
    return absl::OkStatus();
  }));
  std::string copy;
  if (piece.text.empty() || WellFormed(piece.text, copy).data() != piece.text.data()) {
    return Bad(absl::StrCat("pieces[", index, "].piece"),
               absl::StrCat("\"", absl::CHexEscape(piece.text.substr(0, 80)), "\""), "UTF-8 and not empty");
  }
  if (!std::isfinite(piece.score)) return Bad(absl::StrCat("pieces[", index, "].score"), "not finite", "a number");
  return piece;
}

absl::Status ReadTrainerSpec(const Field& message, SentencePieceFile& file) {
  return ForEachField(message.bytes, message.offset, [&](const Field& field) {
    if (field.kind == Field::kBytes && field.number == 44) file.unk_surface = std::string(field.bytes);
    if (field.kind != Field::kVarint) return absl::OkStatus();
    if (field.number == 3) {
      if (field.value != 1 && field.value != 2) {
        return Bad("trainer_spec.model_type", absl::StrCat(field.value), "1 (unigram) or 2 (BPE)");
      }
      file.model = static_cast<SentencePieceFile::Model>(field.value);
    }
    if (field.number == 24) file.whitespace_as_suffix = field.value != 0;
    if (field.number == 35) file.byte_fallback = field.value != 0;
    return absl::OkStatus();
  });
}

absl::Status ReadNormalizerSpec(const Field& message, SentencePieceFile& file) {
  return ForEachField(message.bytes, message.offset, [&](const Field& field) {
    if (field.number == 2 && field.kind == Field::kBytes) file.charsmap = std::string(field.bytes);
    if (field.kind != Field::kVarint) return absl::OkStatus();
    if (field.number == 3) file.add_dummy_prefix = field.value != 0;
    if (field.number == 4) file.remove_extra_whitespaces = field.value != 0;
    if (field.number == 5) file.escape_whitespaces = field.value != 0;
    return absl::OkStatus();
  });
}

// A text that is changed again after decoding.
absl::Status CheckDenormalizerSpec(const Field& message) {
  return ForEachField(message.bytes, message.offset, [&](const Field& field) {
    if (field.number == 2 && !field.bytes.empty()) {
      return Bad("denormalizer_spec.precompiled_charsmap", absl::StrCat(field.bytes.size(), " bytes"),
                 "empty: it is not supported");
    }
    return absl::OkStatus();
  });
}

absl::Status CheckPieces(SentencePieceFile& file) {
  absl::flat_hash_set<absl::string_view> texts;
  std::optional<int32_t> unk;
  int num_bytes = 0;
  for (size_t i = 0; i < file.pieces.size(); ++i) {
    const SentencePieceFile::Piece& piece = file.pieces[i];
    if (!texts.insert(piece.text).second) {
      return Bad(absl::StrCat("pieces[", i, "].piece"), absl::StrCat("\"", absl::CHexEscape(piece.text), "\" again"),
                 "new");
    }
    num_bytes += piece.type == SentencePieceFile::Type::kByte;
    if (piece.type != SentencePieceFile::Type::kUnknown) continue;
    if (unk) return Bad(absl::StrCat("pieces[", i, "].type"), "a second unknown piece", "the only one");
    unk = static_cast<int32_t>(i);
  }
  if (!unk) return absl::InvalidArgumentError("pieces: none is the unknown one (type 2)");
  file.unk = *unk;
  if (file.byte_fallback && num_bytes != 256) return Bad("pieces", absl::StrCat(num_bytes, " bytes"), "256 of them");
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<SentencePieceFile> ReadSentencePieceFile(absl::string_view bytes) {
  SentencePieceFile file;
  EPS_RETURN_IF_ERROR(ForEachField(bytes, 0, [&](const Field& field) -> absl::Status {
    if (field.kind != Field::kBytes) return absl::OkStatus();
    switch (field.number) {
      case 1: {
        EPS_ASSIGN_OR_RETURN(SentencePieceFile::Piece piece, ReadPiece(field, file.pieces.size()));
        file.pieces.push_back(std::move(piece));
        return absl::OkStatus();
      }
      case 2:
        return ReadTrainerSpec(field, file);
      case 3:
        return ReadNormalizerSpec(field, file);
      case 5:
        return CheckDenormalizerSpec(field);
      default:
        return absl::OkStatus();
    }
  }));
  EPS_RETURN_IF_ERROR(CheckPieces(file));
  return file;
}

}  // namespace eps
