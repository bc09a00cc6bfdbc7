#ifndef EPS_COMMON_FORMATS_SAFETENSORS_H_
#define EPS_COMMON_FORMATS_SAFETENSORS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace eps {

// The safetensors format: 8 bytes little-endian header length N, N bytes of JSON, then the tensors' bytes.
// A reader here trusts no byte: a header is at most kMaxSafetensorsHeaderBytes, every tensor lies inside
// the file, tensors neither overlap nor leave gaps, and shape times dtype equals the bytes.
inline constexpr int64_t kMaxSafetensorsHeaderBytes = 100'000'000;

struct SafetensorsEntry {
  std::string name;
  std::string dtype;  // as written: "F32", "F16", "BF16", "I64", ...
  std::vector<int64_t> shape;
  int64_t offset_bytes = 0;  // from the start of the file
  int64_t num_bytes = 0;
};

// "(3, 4)", for messages.
std::string ShapeText(const std::vector<int64_t>& shape);

// A file opened for reading, memory-mapped. Entries by name. Safe to read from several threads.
class SafetensorsReader {
 public:
  // Errors: NOT_FOUND · INVALID_ARGUMENT naming file, tensor and byte offset
  static absl::StatusOr<std::unique_ptr<SafetensorsReader>> Open(const std::string& path);
  virtual ~SafetensorsReader() = default;

  virtual const std::vector<SafetensorsEntry>& entries() const = 0;
  virtual const std::map<std::string, std::string>& metadata() const = 0;
  // Null when there is no such tensor.
  virtual const SafetensorsEntry* Find(const std::string& name) const = 0;
  // The tensor's bytes, valid as long as the reader.
  virtual absl::Span<const std::byte> Data(const SafetensorsEntry& entry) const = 0;
  // Converts F32, F16 or BF16 to fp32. Errors: INVALID_ARGUMENT wrong dtype, or `values` of another length · the system's
  virtual absl::Status ReadFloats(const SafetensorsEntry& entry, absl::Span<float> values) const = 0;
  // As ReadFloats, of elements [first_elem, first_elem + values.size()) alone. Neither maps the file's pages.
  virtual absl::Status ReadFloatsAt(const SafetensorsEntry& entry, int64_t first_elem,
                                    absl::Span<float> values) const = 0;
  // What Data gave need not stay in this process's memory, where a model must not count twice. It can be read again at any
  // time.
  virtual void Release(const SafetensorsEntry& entry) const = 0;
};

// A file written at fixed places: the header first, made from the entries (dtype and shape; offsets are
// computed, in the order given), then each tensor, in any order, from any thread, whole or in parts.
class SafetensorsWriter {
 public:
  // Creates or truncates `path`.
  static absl::StatusOr<std::unique_ptr<SafetensorsWriter>> Create(const std::string& path,
                                                                   std::vector<SafetensorsEntry> entries,
                                                                   const std::map<std::string, std::string>& metadata);
  virtual ~SafetensorsWriter() = default;

  // Writes `bytes` of tensor `index` from byte `offset_bytes` of it on.
  // Errors: the system's, naming the file (RESOURCE_EXHAUSTED for a full disk)
  virtual absl::Status Write(size_t index, int64_t offset_bytes, absl::Span<const std::byte> bytes) = 0;
  // Lets the disk begin with what was written so far, which else waits in the system's memory for Finish. With `wait`,
  // until what the call before it let begin is there: so who writes much holds little memory, and slows nobody else who
  // writes. Errors: as above
  virtual absl::Status StartWriteBack(bool wait) = 0;
  // Syncs and closes. Errors: as above, and FAILED_PRECONDITION if a byte was never written.
  virtual absl::Status Finish() = 0;
};

}  // namespace eps

#endif  // EPS_COMMON_FORMATS_SAFETENSORS_H_
