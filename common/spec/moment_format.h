#ifndef EPS_COMMON_SPEC_MOMENT_FORMAT_H_
#define EPS_COMMON_SPEC_MOMENT_FORMAT_H_

#include <cstdint>

#include "absl/strings/string_view.h"
#include "common/numeric/fp8_block.h"
#include "common/tensor/dtype.h"

namespace eps {

// How optimizer moments lie in the daemon's memory.
enum class MomentFormat {
  kFp32,
  kBf16,
  kFp8,  // common/numeric/fp8_block.h
};

constexpr absl::string_view MomentFormatName(MomentFormat format) {
  return format == MomentFormat::kFp32 ? "fp32" : format == MomentFormat::kBf16 ? "bf16" : "fp8";
}

// Of so many elements, of fp8 whole blocks.
constexpr int64_t MomentBytes(MomentFormat format, int64_t num_elems) {
  if (format == MomentFormat::kFp8) return num_elems / kFp8BlockElems * kFp8BlockBytes;
  return num_elems * (format == MomentFormat::kFp32 ? 4 : 2);
}

// In which they are written to checkpoints, exactly: one that every reader of safetensors knows.
constexpr Dtype MomentFileDtype(MomentFormat format) {
  return format == MomentFormat::kFp32 ? Dtype::kF32 : Dtype::kBf16;
}

}  // namespace eps

#endif  // EPS_COMMON_SPEC_MOMENT_FORMAT_H_
