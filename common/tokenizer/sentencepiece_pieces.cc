#include "common/tokenizer/sentencepiece_pieces.h"

#include <utility>

#include "absl/strings/str_format.h"

namespace eps {

SentencePiecePieces::SentencePiecePieces(SentencePieceFile file) : file_(std::move(file)) {
  using Type = SentencePieceFile::Type;
  byte_ids_.fill(kNone);
  byte_of_.resize(file_.pieces.size(), kNone);
  for (int32_t id = 0; id < size(); ++id) {
    all_.emplace(piece(id).text, id);
    const Type type = piece(id).type;
    if (type == Type::kNormal || type == Type::kUserDefined || type == Type::kUnused)
      in_text_.emplace(piece(id).text, id);
  }
  for (int32_t byte = 0; byte < 256; ++byte) {
    const int32_t id = Find(absl::StrFormat("<0x%02X>", byte));
    if (id == kNone || piece(id).type != Type::kByte) continue;
    byte_ids_[static_cast<size_t>(byte)] = id;
    byte_of_[static_cast<size_t>(id)] = byte;
  }
}

int32_t SentencePiecePieces::FindInText(absl::string_view text) const {
  const auto it = in_text_.find(text);
  return it == in_text_.end() ? kNone : it->second;
}

int32_t SentencePiecePieces::Find(absl::string_view text) const {
  const auto it = all_.find(text);
  return it == all_.end() ? kNone : it->second;
}

void SentencePiecePieces::PutUnknown(absl::string_view text, std::vector<int32_t>& ids) const {
  if (!file_.byte_fallback) {
    if (ids.empty() || ids.back() != file_.unk) ids.push_back(file_.unk);
    return;
  }
  for (const char c : text) {
    const int32_t id = byte_ids_[static_cast<uint8_t>(c)];
    ids.push_back(id == kNone ? file_.unk : id);
  }
}

}  // namespace eps
