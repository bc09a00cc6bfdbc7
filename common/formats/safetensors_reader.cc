#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/formats/mapped_file.h"
#include "common/formats/safetensors.h"
#include "common/formats/safetensors_header.h"
#include "common/numeric/bf16.h"
#include "common/numeric/fp16.h"

namespace eps {
namespace {

constexpr size_t kStagingElems = 16384;  // 32 KiB of 16 bits: on the stack, and in the nearest caches

class MappedSafetensors final : public SafetensorsReader {
 public:
  MappedSafetensors(std::unique_ptr<MappedFile> file, SafetensorsHeader header)
      : file_(std::move(file)), header_(std::move(header)) {
    for (size_t i = 0; i < header_.entries.size(); ++i) index_.emplace(header_.entries[i].name, i);
  }

  const std::vector<SafetensorsEntry>& entries() const override { return header_.entries; }
  const std::map<std::string, std::string>& metadata() const override { return header_.metadata; }

  const SafetensorsEntry* Find(const std::string& name) const override {
    const auto it = index_.find(name);
    return it == index_.end() ? nullptr : &header_.entries[it->second];
  }

  absl::Span<const std::byte> Data(const SafetensorsEntry& entry) const override {
    return file_->bytes().subspan(static_cast<size_t>(entry.offset_bytes), static_cast<size_t>(entry.num_bytes));
  }

  absl::Status ReadFloats(const SafetensorsEntry& entry, absl::Span<float> values) const override {
    EPS_ASSIGN_OR_RETURN(const int64_t num_elems, NumFloats(entry));
    if (num_elems != static_cast<int64_t>(values.size())) {
      return Fail(entry, absl::StrCat(num_elems, " elements, must be ", values.size()));
    }
    return ReadFloatsAt(entry, 0, values);
  }

  absl::Status ReadFloatsAt(const SafetensorsEntry& entry, int64_t first_elem,
                            absl::Span<float> values) const override {
    EPS_ASSIGN_OR_RETURN(const int64_t num_elems, NumFloats(entry));
    const auto count = static_cast<int64_t>(values.size());
    if (first_elem < 0 || count > num_elems || first_elem > num_elems - count) {
      return Fail(entry, absl::StrCat(num_elems, " elements, asked for ", count, " from ", first_elem));
    }
    const int64_t begin = entry.offset_bytes + first_elem * ElemBytes(entry);
    if (entry.dtype == "F16") return ReadConverted<Fp16>(begin, values);
    if (entry.dtype == "BF16") return ReadConverted<Bf16>(begin, values);
    return file_->ReadAt(begin, {reinterpret_cast<std::byte*>(values.data()), values.size() * sizeof(float)});
  }

  void Release(const SafetensorsEntry& entry) const override { file_->Release(entry.offset_bytes, entry.num_bytes); }

 private:
  // Elements of 16 bits, from byte `offset_bytes` of the file on.
  template <typename T>
  absl::Status ReadConverted(int64_t offset_bytes, absl::Span<float> values) const {
    std::array<T, kStagingElems> staging;
    while (!values.empty()) {
      const size_t count = std::min(values.size(), kStagingElems);
      EPS_RETURN_IF_ERROR(
          file_->ReadAt(offset_bytes, {reinterpret_cast<std::byte*>(staging.data()), count * sizeof(T)}));
      for (size_t i = 0; i < count; ++i) values[i] = ToFloat(staging[i]);
      offset_bytes += static_cast<int64_t>(count * sizeof(T));
      values.remove_prefix(count);
    }
    return absl::OkStatus();
  }

  absl::Status Fail(const SafetensorsEntry& entry, absl::string_view what) const {
    return absl::InvalidArgumentError(absl::StrCat(file_->path(), ": tensor ", ShowTensorName(entry.name), ": ", what));
  }
  // 0: not one of those that become fp32.
  static int64_t ElemBytes(const SafetensorsEntry& entry) {
    if (entry.dtype == "F32") return 4;
    return entry.dtype == "F16" || entry.dtype == "BF16" ? 2 : 0;
  }
  absl::StatusOr<int64_t> NumFloats(const SafetensorsEntry& entry) const {
    const int64_t elem_bytes = ElemBytes(entry);
    if (elem_bytes == 0) {
      return Fail(entry, absl::StrCat("dtype ", entry.dtype, ", must be F32, F16 or BF16"));
    }
    return entry.num_bytes / elem_bytes;
  }

  const std::unique_ptr<MappedFile> file_;
  const SafetensorsHeader header_;
  std::unordered_map<std::string, size_t> index_;  // fixed after construction
};

}  // namespace

absl::StatusOr<std::unique_ptr<SafetensorsReader>> SafetensorsReader::Open(const std::string& path) {
  EPS_ASSIGN_OR_RETURN(std::unique_ptr<MappedFile> file, MappedFile::Open(path));
  absl::StatusOr<SafetensorsHeader> header = ParseSafetensorsHeader(file->bytes());
  EPS_RETURN_IF_ERROR_WITH(header.status(), path);
  return std::make_unique<MappedSafetensors>(std::move(file), *std::move(header));
}

}  // namespace eps
