#include "gpu_worker/device/cuda/sdpa_problem.h"

#include <cmath>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/tensor/dtype.h"

namespace eps::worker::cuda {
namespace {

constexpr int64_t kHeadDimStep = 8;
constexpr int kDatacenterBlackwell = 10;

// What backward takes; forward takes as much or more. Of Ampere, Ada and Blackwell; of Hopper.
int64_t MaxHeadDim(int sm_major) { return sm_major == 9 ? 256 : 128; }

// `num_elems` further on.
const void* Skip(const void* array, int64_t num_elems, Dtype dtype) {
  return array == nullptr ? nullptr : static_cast<const char*>(array) + num_elems * SizeOf(dtype);
}
void* Skip(void* array, int64_t num_elems, Dtype dtype) {
  return array == nullptr ? nullptr : static_cast<char*>(array) + num_elems * SizeOf(dtype);
}
template <typename T>
T* Skip(T* array, int64_t num_elems) {
  return array == nullptr ? nullptr : array + num_elems;
}

// Of `whole` units, each of which has `elems` of 32 bits: the largest divisor for which a workspace in proportion is at most
// `most_bytes`, else the least.
int64_t LargestPart(int64_t whole, int64_t elems, int64_t workspace_bytes, int64_t most_bytes) {
  constexpr int64_t kElemsOf16Bytes = 4;
  if (workspace_bytes <= most_bytes) return whole;
  const int64_t of_each = (workspace_bytes + whole - 1) / whole;
  int64_t least = whole;
  for (int64_t units = whole; units > 0; --units) {
    if (whole % units != 0) continue;
    if (units < whole && units * elems % kElemsOf16Bytes != 0) continue;
    least = units;
    if (of_each * units <= most_bytes) break;
  }
  return least;
}

}  // namespace

absl::Status CheckSdpaProblem(const SdpaProblem& p) {
  if (p.B <= 0 || p.T <= 0 || p.H <= 0 || p.kv_heads <= 0 || p.D <= 0) {
    return absl::InvalidArgumentError(absl::StrCat("attention: B ", p.B, ", T ", p.T, ", H ", p.H, ", kv_heads ",
                                                   p.kv_heads, ", D ", p.D, ": each must be positive"));
  }
  if (p.H % p.kv_heads != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("attention: H ", p.H, " is not a multiple of kv_heads ", p.kv_heads));
  }
  if (p.heads_of_array() < p.H || p.heads_of_array() * p.kv_heads != p.kv_heads_of_array() * p.H) {
    return absl::InvalidArgumentError(absl::StrCat("attention: H ", p.H, " and kv_heads ", p.kv_heads,
                                                   " are no part of array_H ", p.array_H, " and array_kv_heads ",
                                                   p.array_kv_heads));
  }
  if (p.B > 1 && p.heads_of_array() != p.H) {
    return absl::InvalidArgumentError(
        absl::StrCat("attention: H ", p.H, " are some of array_H ", p.array_H, ", of B ", p.B, " sequences"));
  }
  if (p.window < 0 || (p.window > 0 && !p.causal)) {
    return absl::InvalidArgumentError(
        absl::StrCat("attention: window ", p.window, " is negative, or of attention that is not causal"));
  }
  if (!std::isfinite(p.scale)) return absl::InvalidArgumentError("attention: scale is not finite");
  if (!(p.dropout >= 0 && p.dropout < 1)) {
    return absl::InvalidArgumentError(absl::StrCat("attention: dropout ", p.dropout, " is not in [0, 1)"));
  }
  return absl::OkStatus();
}

absl::Status CheckFusedAttention(const SdpaProblem& p, int sm_major) {
  EPS_RETURN_IF_ERROR(CheckSdpaProblem(p));
  // Its kernels are tensor cores' of 16 bits.
  if (SizeOf(p.act) != 2) return absl::UnimplementedError(absl::StrCat("act ", DtypeName(p.act), " has not 16 bits"));
  if (p.dropout > 0 && sm_major == kDatacenterBlackwell) {
    return absl::UnimplementedError("dropout is not for the library's deterministic backward of sm_10x");
  }
  if (p.D % kHeadDimStep != 0 || p.D > MaxHeadDim(sm_major)) {
    return absl::UnimplementedError(absl::StrCat("D ", p.D, " is not a multiple of ", kHeadDimStep, " up to ",
                                                 MaxHeadDim(sm_major), ", as sm_", sm_major, "x wants it"));
  }
  if (p.T == 1) return absl::UnimplementedError("T 1: backward is not for a single position");
  return absl::OkStatus();
}

SdpaProblem CutSmaller(const SdpaProblem& p, int64_t workspace_bytes, int64_t most_of_several, int64_t most_of_one) {
  SdpaProblem cut = p;
  cut.B = LargestPart(p.B, p.H * p.T, workspace_bytes, most_of_several);
  if (cut.B < p.B) return cut;
  // Some heads of each sequence would have rows' sums with gaps between them.
  if (p.B > 1) return p;
  cut.kv_heads = LargestPart(p.kv_heads, p.sharers() * p.T, workspace_bytes, most_of_one);
  if (cut.kv_heads == p.kv_heads) return p;
  cut.H = cut.kv_heads * p.sharers();
  cut.array_H = p.heads_of_array();
  cut.array_kv_heads = p.kv_heads_of_array();
  return cut;
}

std::vector<SdpaPart> PartsOf(const SdpaProblem& p, const SdpaProblem& part, const SdpaArrays& arrays) {
  const int64_t heads = p.heads_of_array();
  std::vector<SdpaPart> parts;
  for (int64_t sequence = 0; sequence < p.B; sequence += part.B) {
    const int64_t qkv = sequence * p.T * (heads + 2 * p.kv_heads_of_array()) * p.D;
    const int64_t o = sequence * p.T * heads * p.D;
    const int64_t rows = sequence * heads * p.T;
    SdpaArrays from = arrays;
    from.qkv = Skip(arrays.qkv, qkv, p.act);
    from.o = Skip(arrays.o, o, p.act);
    from.lse = Skip(arrays.lse, rows);
    from.documents = {.first = Skip(arrays.documents.first, sequence * p.T),
                      .end = Skip(arrays.documents.end, sequence * p.T)};
    from.d_o = Skip(arrays.d_o, o, p.act);
    from.dqkv = Skip(arrays.dqkv, qkv, p.act);
    from.delta = Skip(arrays.delta, rows);
    for (int64_t kv_head = 0; kv_head < p.kv_heads; kv_head += part.kv_heads) {
      from.dropout.first_element = arrays.dropout.first_element + (rows + kv_head * p.sharers() * p.T) * p.T;
      parts.push_back({.arrays = from, .first_kv_head = kv_head});
    }
  }
  return parts;
}

}  // namespace eps::worker::cuda
