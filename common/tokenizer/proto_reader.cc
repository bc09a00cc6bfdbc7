#include "common/tokenizer/proto_reader.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace eps {

absl::Status ProtoReader::Refuse(absl::string_view what) const {
  return absl::InvalidArgumentError(absl::StrCat("byte ", offset_ + at_, ": ", what));
}

absl::StatusOr<uint64_t> ProtoReader::Varint() {
  constexpr int kBits = 64;
  uint64_t value = 0;
  for (int shift = 0; shift < kBits; shift += 7) {
    if (AtEnd()) return Refuse("the file ends within a number");
    const auto byte = static_cast<uint8_t>(message_[at_++]);
    value |= uint64_t{byte & 0x7Fu} << shift;
    if (byte < 0x80) return value;
  }
  return Refuse("a number of more than 64 bits");
}

absl::StatusOr<uint64_t> ProtoReader::Fixed(size_t num_bytes) {
  if (message_.size() - at_ < num_bytes) return Refuse("the file ends within a number");
  uint64_t value = 0;
  for (size_t i = 0; i < num_bytes; ++i) value |= uint64_t{static_cast<uint8_t>(message_[at_ + i])} << (8 * i);
  at_ += num_bytes;
  return value;
}

absl::StatusOr<ProtoReader::Field> ProtoReader::Next() {
  EPS_ASSIGN_OR_RETURN(const uint64_t tag, Varint());
  if (tag >> 3 == 0 || tag >> 32 != 0) return Refuse("not a field of a message: this is no SentencePiece model");
  Field field;
  field.number = static_cast<int>(tag >> 3);
  switch (tag & 7) {
    case 0: {
      EPS_ASSIGN_OR_RETURN(field.value, Varint());
      return field;
    }
    case 1: {
      field.kind = Field::kFixed64;
      EPS_ASSIGN_OR_RETURN(field.value, Fixed(8));
      return field;
    }
    case 2: {
      field.kind = Field::kBytes;
      EPS_ASSIGN_OR_RETURN(const uint64_t num_bytes, Varint());
      if (num_bytes > message_.size() - at_)
        return Refuse(absl::StrCat("a field of ", num_bytes, " bytes is cut short"));
      field.offset = offset_ + at_;
      field.bytes = message_.substr(at_, num_bytes);
      at_ += num_bytes;
      return field;
    }
    case 5: {
      field.kind = Field::kFixed32;
      EPS_ASSIGN_OR_RETURN(field.value, Fixed(4));
      return field;
    }
    default:
      return Refuse(absl::StrCat("a field of wire type ", tag & 7, ": this is no SentencePiece model"));
  }
}

}  // namespace eps
