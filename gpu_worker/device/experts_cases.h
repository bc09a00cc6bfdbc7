#ifndef EPS_GPU_WORKER_DEVICE_EXPERTS_CASES_H_
#define EPS_GPU_WORKER_DEVICE_EXPERTS_CASES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "gpu_worker/device/conformance_cases.h"
#include "gpu_worker/device/conformance_memory.h"
#include "gpu_worker/device/kernels.h"
#include "gpu_worker/device/reference_experts.h"

// As conformance_cases.h, of a mixture of experts.
namespace eps::worker::conformance {

struct RouteCase {
  int64_t M, E, K;
  bool normalizes = true;
  double balance = 0;
  double range = 3;  // of logits; 0: all are equal

  std::string Name() const {
    return "route " + std::to_string(M) + " of " + std::to_string(E) + "/" + std::to_string(K) +
           (normalizes ? " normalized" : "") + " balance " + std::to_string(balance) + " range " +
           std::to_string(range);
  }
};
Array MakeLogits(const RouteCase& t);
Array MakeWeightGradients(const RouteCase& t);
// The arrays of a Routing on the device.
Routing AllocRouting(ConformanceMemory& memory, int64_t M, int64_t E, int64_t K);
reference::Routed GetRouting(ConformanceMemory& memory, const Routing& routing, int64_t M, int64_t E, int64_t K);
struct RouteOutputs {
  reference::Routed routed;
  Array dlogits;
};
RouteOutputs RunRoute(ConformanceMemory& memory, const RouteCase& t, const Array& logits, const KernelSizes& sizes);

struct ExpertProductCase {
  std::vector<int64_t> rows;  // of each expert
  int64_t N, K;               // of a gradient K is M
  bool trans_b = false, accumulate = false;
  int64_t ld_extra = 0;      // leading dimensions beyond the least; of a gradient's c none
  int64_t stride_extra = 0;  // between matrices

  std::string Name() const {
    std::string name = "experts " + std::to_string(N) + "x" + std::to_string(K) + (trans_b ? " Tb" : "") +
                       (accumulate ? " acc" : "") + " ld+" + std::to_string(ld_extra) + " stride+" +
                       std::to_string(stride_extra) + " rows";
    for (const int64_t n : rows) name += " " + std::to_string(n);
    return name;
  }
  int64_t E() const { return static_cast<int64_t>(rows.size()); }
  std::vector<int32_t> first_row() const;
  int64_t R() const { return first_row().back(); }
};
struct ExpertProductInputs {
  Array a, b, c;
};
// a (R, K), b E of (K, N), c (R, N)
ExpertProductInputs MakeExpertMatMulInputs(const ExpertProductCase& t);
Array RunExpertMatMul(ConformanceMemory& memory, const ExpertProductCase& t);
// a (R, K), b (R, N), c E of (K, N)
ExpertProductInputs MakeExpertGradientInputs(const ExpertProductCase& t);
Array RunExpertGradient(ConformanceMemory& memory, const ExpertProductCase& t);

struct RowsCase {
  int64_t M, E, K, C;
  bool residual = false;
  bool in_place = false;  // y is residual
};
struct RowsOutputs {
  reference::Routed routed;
  Array gathered, summed;  // (R, C), (M, C): of the gathered rows
};
Array MakeRows(const RowsCase& t);  // (M, C)
RowsOutputs RunRows(ConformanceMemory& memory, const RowsCase& t, const KernelSizes& sizes);

}  // namespace eps::worker::conformance

#endif  // EPS_GPU_WORKER_DEVICE_EXPERTS_CASES_H_
