#include "common/formats/chunk_header.h"

#include <limits>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/little_endian.h"
#include "common/numeric/quantized.h"

namespace eps {
namespace {

constexpr uint32_t kMagic = 0x43535045;  // "EPSC" as little-endian bytes
constexpr uint32_t kMaxPayloadBytes = kChunkElems * 4;

// Offsets of the fields; the table is in the header file.
constexpr int kMagicAt = 0, kFormatAt = 4, kKindAt = 6, kDtypeAt = 7, kIncarnationAt = 8, kStepAt = 16, kBlobAt = 24,
              kUseAt = 28, kFirstAt = 32, kCountAt = 36, kChunkAt = 40, kPayloadAt = 44, kNonfiniteAt = 48,
              kContributionAt = 52, kVersionWaitAt = 56;

template <typename Found>
absl::Status Bad(absl::string_view field, int offset, Found found, absl::string_view wanted) {
  return absl::InvalidArgumentError(
      absl::StrCat("chunk header: ", field, " (offset ", offset, "): ", found, ", must be ", wanted));
}

absl::Status CheckPreamble(absl::Span<const std::byte> bytes) {
  if (const auto magic = LoadLittleEndian<uint32_t>(bytes, kMagicAt); magic != kMagic) {
    return Bad("magic", kMagicAt, absl::StrCat("0x", absl::Hex(magic, absl::kZeroPad8)), "0x43535045 (\"EPSC\")");
  }
  if (const auto format = LoadLittleEndian<uint16_t>(bytes, kFormatAt); format != kChunkFormat) {
    return Bad("format", kFormatAt, format, absl::StrCat(kChunkFormat));
  }
  if (const auto kind = LoadLittleEndian<uint8_t>(bytes, kKindAt); kind < 1 || kind > 5) {
    return Bad("kind", kKindAt, kind,
               "1 (weights), 2 (gradient), 3 (weights in MXINT8), 4 (weights in NF4) or 5 (sparse gradient)");
  }
  if (const auto dtype = LoadLittleEndian<uint8_t>(bytes, kDtypeAt); !IsDtype(dtype)) {
    return Bad("dtype", kDtypeAt, dtype, std::string(kDtypeValues));
  }
  return absl::OkStatus();
}

// In which weights of that kind are.
std::optional<QuantizedFormat> FormatOf(ChunkKind kind) {
  if (kind == ChunkKind::kMxInt8Weights) return QuantizedFormat::kMxInt8;
  if (kind == ChunkKind::kNf4Weights) return QuantizedFormat::kNf4;
  return std::nullopt;
}

// What only one of the kinds has.
absl::Status CheckOfKind(const ChunkHeader& header) {
  if (!IsGradient(header.kind)) {
    if (FormatOf(header.kind).has_value() && header.dtype != Dtype::kBf16) {
      return Bad("dtype", kDtypeAt, int{static_cast<uint8_t>(header.dtype)},
                 absl::StrCat("2 (BF16) for ", NameOf(header.kind)));
    }
    if (header.use != 0) return Bad("use", kUseAt, header.use, "0 for weights");
    if (header.node.first != 0) return Bad("node.first", kFirstAt, header.node.first, "0 for weights");
    if (header.node.count != 0) return Bad("node.count", kCountAt, header.node.count, "0 for weights");
    if (header.contribution != 0) return Bad("contribution", kContributionAt, header.contribution, "0 for weights");
    if (header.nonfinite_vnode != -1) {
      return Bad("nonfinite_vnode", kNonfiniteAt, header.nonfinite_vnode, "-1 for weights");
    }
    if (header.version_wait_micros < 0) {
      return Bad("version_wait_micros", kVersionWaitAt, header.version_wait_micros, "at least 0");
    }
    return absl::OkStatus();
  }
  if (header.version_wait_micros != 0) {
    return Bad("version_wait_micros", kVersionWaitAt, header.version_wait_micros, "0 for a gradient");
  }
  if (header.use < 0) return Bad("use", kUseAt, header.use, "at least 0");
  if (header.node.first < 0) return Bad("node.first", kFirstAt, header.node.first, "at least 0");
  if (header.node.count < 1) return Bad("node.count", kCountAt, header.node.count, "at least 1");
  // So that node.end() cannot overflow.
  if (header.node.first > std::numeric_limits<int32_t>::max() - header.node.count) {
    return Bad("node.count", kCountAt, header.node.count,
               absl::StrCat("small enough for node.first ", header.node.first));
  }
  // Not node.Contains: the end of a node that starts at the largest int overflows.
  const bool inside = header.nonfinite_vnode >= header.node.first && header.nonfinite_vnode < header.node.end();
  if (header.nonfinite_vnode != -1 && !inside) {
    return Bad("nonfinite_vnode", kNonfiniteAt, header.nonfinite_vnode,
               absl::StrCat("-1 or one of ", DebugString(header.node)));
  }
  return absl::OkStatus();
}

absl::Status CheckNumbers(const ChunkHeader& header) {
  if (header.step < 0) return Bad("step", kStepAt, header.step, "at least 0");
  if (header.blob.value() < 0) return Bad("blob", kBlobAt, header.blob.value(), "at least 0");
  if (header.chunk < 0) return Bad("chunk", kChunkAt, header.chunk, "at least 0");
  const auto bytes_of = [&, format = FormatOf(header.kind)](int64_t num_elems) {
    return format.has_value() ? QuantizedBytes(*format, num_elems) : num_elems * SizeOf(header.dtype);
  };
  // A quantized blob, and so each of its chunks, has a multiple of kTensorAlignElems.
  const auto unit_bytes_of_kind = [&]() -> int64_t {
    if (header.kind == ChunkKind::kSparseGradient) return 1;
    return bytes_of(FormatOf(header.kind).has_value() ? kTensorAlignElems : 1);
  };
  const int64_t unit_bytes = unit_bytes_of_kind();
  const int64_t most_bytes = bytes_of(kChunkElems);
  if (header.payload_bytes == 0 || header.payload_bytes > most_bytes || header.payload_bytes % unit_bytes != 0) {
    return Bad("payload_bytes", kPayloadAt, header.payload_bytes,
               absl::StrCat("a multiple of ", unit_bytes, " between ", unit_bytes, " and ", most_bytes));
  }
  return CheckOfKind(header);
}

}  // namespace

absl::string_view NameOf(ChunkKind kind) {
  switch (kind) {
    case ChunkKind::kWeights:
      return "weights";
    case ChunkKind::kGradient:
      return "gradient";
    case ChunkKind::kMxInt8Weights:
      return "weights in MXINT8";
    case ChunkKind::kNf4Weights:
      return "weights in NF4";
    case ChunkKind::kSparseGradient:
      return "sparse gradient";
  }
  return "";
}

ChunkKind PulledKind(const BlobSpec& blob) {
  if (!blob.quantized.has_value()) return ChunkKind::kWeights;
  switch (*blob.quantized) {
    case QuantizedFormat::kMxInt8:
      return ChunkKind::kMxInt8Weights;
    case QuantizedFormat::kNf4:
      return ChunkKind::kNf4Weights;
  }
  return ChunkKind::kWeights;
}

std::array<std::byte, kChunkHeaderBytes> EncodeChunkHeader(const ChunkHeader& header) {
  static_assert(kMaxPayloadBytes == 1 << 20);  // a message of the data plane is at most 1 MiB + 64 B
  std::array<std::byte, kChunkHeaderBytes> bytes{};
  const absl::Span<std::byte> fields = absl::MakeSpan(bytes);
  StoreLittleEndian(fields, kMagicAt, kMagic);
  StoreLittleEndian(fields, kFormatAt, kChunkFormat);
  StoreLittleEndian(fields, kKindAt, static_cast<uint8_t>(header.kind));
  StoreLittleEndian(fields, kDtypeAt, static_cast<uint8_t>(header.dtype));
  StoreLittleEndian(fields, kIncarnationAt, header.incarnation);
  StoreLittleEndian(fields, kStepAt, header.step);
  StoreLittleEndian(fields, kBlobAt, header.blob.value());
  StoreLittleEndian(fields, kUseAt, header.use);
  StoreLittleEndian(fields, kFirstAt, static_cast<int32_t>(header.node.first));
  StoreLittleEndian(fields, kCountAt, static_cast<int32_t>(header.node.count));
  StoreLittleEndian(fields, kChunkAt, header.chunk);
  StoreLittleEndian(fields, kPayloadAt, header.payload_bytes);
  StoreLittleEndian(fields, kNonfiniteAt, header.nonfinite_vnode);
  StoreLittleEndian(fields, kContributionAt, header.contribution);
  StoreLittleEndian(fields, kVersionWaitAt, header.version_wait_micros);
  return bytes;
}

absl::StatusOr<ChunkHeader> DecodeChunkHeader(absl::Span<const std::byte> bytes) {
  if (bytes.size() < kChunkHeaderBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("chunk header: ", bytes.size(), " bytes, must be at least ", kChunkHeaderBytes));
  }
  if (absl::Status status = CheckPreamble(bytes); !status.ok()) return status;
  ChunkHeader header;
  header.kind = static_cast<ChunkKind>(LoadLittleEndian<uint8_t>(bytes, kKindAt));
  header.dtype = static_cast<Dtype>(LoadLittleEndian<uint8_t>(bytes, kDtypeAt));
  header.incarnation = LoadLittleEndian<uint64_t>(bytes, kIncarnationAt);
  header.step = LoadLittleEndian<int64_t>(bytes, kStepAt);
  header.blob = BlobId(LoadLittleEndian<int32_t>(bytes, kBlobAt));
  header.use = LoadLittleEndian<int32_t>(bytes, kUseAt);
  header.node = {LoadLittleEndian<int32_t>(bytes, kFirstAt), LoadLittleEndian<int32_t>(bytes, kCountAt)};
  header.chunk = LoadLittleEndian<int32_t>(bytes, kChunkAt);
  header.payload_bytes = LoadLittleEndian<uint32_t>(bytes, kPayloadAt);
  header.nonfinite_vnode = LoadLittleEndian<int32_t>(bytes, kNonfiniteAt);
  header.contribution = LoadLittleEndian<uint32_t>(bytes, kContributionAt);
  header.version_wait_micros = LoadLittleEndian<int64_t>(bytes, kVersionWaitAt);
  if (absl::Status status = CheckNumbers(header); !status.ok()) return status;
  return header;
}

}  // namespace eps
