#include "common/formats/tensor_file_writer.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/formats/safetensors.h"
#include "common/numeric/bf16.h"
#include "common/numeric/fp16.h"

namespace eps {
namespace {

// Let go to the disk at a time: so that a model does not gather in the system's memory before it is synced.
constexpr int64_t kWriteBackBytes = int64_t{32} << 20;

// nullopt, or the first value that is not finite, or that `dtype` has no finite number for.
std::optional<size_t> Encode(absl::Span<const float> values, const std::string& dtype, std::vector<std::byte>& bytes) {
  bytes.resize(values.size() * static_cast<size_t>(TensorElemBytes(dtype)));
  const bool is_wide = dtype == "F32", is_bf16 = dtype == "BF16";
  const uint16_t infinity = is_bf16 ? 0x7F80u : 0x7C00u;
  for (size_t i = 0; i < values.size(); ++i) {
    if (!std::isfinite(values[i])) return i;
    if (is_wide) continue;
    const uint16_t half = is_bf16 ? ToBf16TiesToEven(values[i]).bits : ToFp16(values[i]).bits;
    if ((half & 0x7FFFu) == infinity) return i;
    std::memcpy(&bytes[i * 2], &half, 2);
  }
  if (is_wide) std::memcpy(bytes.data(), values.data(), bytes.size());
  return std::nullopt;
}

absl::Status Unwritable(const TensorSpec& tensor, int64_t elem, float value, const std::string& dtype) {
  const std::string where = absl::StrCat(tensor.name, ", element ", elem, ": ", value);
  // Every program that loads it would give no number for whatever it is asked.
  if (!std::isfinite(value)) return absl::InvalidArgumentError(absl::StrCat(where, ", must be finite"));
  return absl::InvalidArgumentError(absl::StrCat(where, " is too large for ", dtype, ", whose largest number is ",
                                                 dtype == "F16" ? "65504; take BF16 or F32" : "3.3895e38; take F32"));
}

absl::Status WriteTensor(SafetensorsWriter& writer, size_t index, const TensorSpec& tensor, const std::string& dtype,
                         const ReadTensorPart& read, int64_t& waiting_bytes) {
  const int64_t num_elems = tensor.num_elems();
  std::vector<float> buffer(static_cast<size_t>(std::min(kChunkElems, num_elems)));
  std::vector<std::byte> bytes;
  for (int64_t first = 0; first < num_elems; first += kChunkElems) {
    const auto values =
        absl::MakeSpan(buffer).subspan(0, static_cast<size_t>(std::min(kChunkElems, num_elems - first)));
    EPS_RETURN_IF_ERROR(read(tensor, first, values));
    if (const std::optional<size_t> wrong = Encode(values, dtype, bytes)) {
      return Unwritable(tensor, first + static_cast<int64_t>(*wrong), values[*wrong], dtype);
    }
    EPS_RETURN_IF_ERROR(writer.Write(index, first * TensorElemBytes(dtype), bytes));
    waiting_bytes += static_cast<int64_t>(bytes.size());
    if (waiting_bytes < kWriteBackBytes) continue;
    waiting_bytes = 0;
    EPS_RETURN_IF_ERROR(writer.StartWriteBack(/*wait=*/true));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckTensorDtype(const std::string& dtype) {
  if (dtype == "F32" || dtype == "F16" || dtype == "BF16") return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("dtype ", dtype, " is not one of F32, F16, BF16"));
}

int64_t TensorElemBytes(const std::string& dtype) { return dtype == "F32" ? 4 : 2; }

absl::Status WriteTensorFile(const std::string& path, const std::vector<NamedTensor>& tensors, const std::string& dtype,
                             const ReadTensorPart& read, const std::map<std::string, std::string>& more) {
  std::vector<SafetensorsEntry> entries;
  for (const NamedTensor& named : tensors) {
    entries.push_back({.name = named.name, .dtype = dtype, .shape = named.tensor->shape});
  }
  std::map<std::string, std::string> metadata = {{"format", "pt"}};  // which some readers ask for
  metadata.insert(more.begin(), more.end());
  EPS_ASSIGN_OR_RETURN(const std::unique_ptr<SafetensorsWriter> writer,
                       SafetensorsWriter::Create(path, std::move(entries), metadata));
  int64_t waiting_bytes = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    EPS_RETURN_IF_ERROR(WriteTensor(*writer, i, *tensors[i].tensor, dtype, read, waiting_bytes));
  }
  return writer->Finish();
}

}  // namespace eps
