#ifndef EPS_COMMON_TOKENIZER_PROTO_READER_H_
#define EPS_COMMON_TOKENIZER_PROTO_READER_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace eps {

// Reads a message of Protocol Buffers field by field, without its .proto: for a format of somebody else's, of which few
// fields count.
//
// Lifetime: the bytes outlive it and what it gives
class ProtoReader {
 public:
  struct Field {
    int number = 0;
    enum Kind { kVarint, kFixed32, kFixed64, kBytes } kind = kVarint;
    uint64_t value = 0;       // of a varint or a fixed one
    absl::string_view bytes;  // of a string or a message
    size_t offset = 0;        // where `bytes` begins in the file
  };

  // `offset`: where `message` begins in the file, for messages.
  ProtoReader(absl::string_view message, size_t offset) : message_(message), offset_(offset) {}

  bool AtEnd() const { return at_ == message_.size(); }
  // Errors: INVALID_ARGUMENT naming the offset
  absl::StatusOr<Field> Next();

 private:
  absl::Status Refuse(absl::string_view what) const;
  absl::StatusOr<uint64_t> Varint();
  absl::StatusOr<uint64_t> Fixed(size_t num_bytes);

  const absl::string_view message_;
  const size_t offset_;
  size_t at_ = 0;
};

}  // namespace eps

#endif  // EPS_COMMON_TOKENIZER_PROTO_READER_H_
