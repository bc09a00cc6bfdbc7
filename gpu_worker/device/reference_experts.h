#ifndef EPS_GPU_WORKER_DEVICE_REFERENCE_EXPERTS_H_
#define EPS_GPU_WORKER_DEVICE_REFERENCE_EXPERTS_H_

#include <cstdint>
#include <vector>

#include "gpu_worker/device/reference_kernels.h"

// As reference_kernels.h: what a mixture of experts means (Routing of kernels.h). K experts of E for each of M tokens.
namespace eps::worker::reference {

struct Routed {
  std::vector<int32_t> first_row, token, expert, row;
  Array weight;  // (R)
};
Routed Route(const Array& logits, int64_t M, int64_t E, int64_t K, bool normalizes);

// What RouteBackward is the gradient of, the choice of experts being `routed`'s: the sum over routed rows of dweight times
// weight, and the balance of the probabilities with the shares of `routed`.
double RoutedLoss(const Array& logits, const Routed& routed, int64_t M, int64_t E, int64_t K, bool normalizes,
                  const Array& dweight, double balance);
Array RouteBackward(const Array& logits, const Routed& routed, int64_t M, int64_t E, int64_t K, bool normalizes,
                    const Array& dweight, double balance);

// (R, N): each routed row of a (R, K) times its expert's matrix of b, E of (K, N), or (N, K) if trans_b.
Array ExpertMatMul(const Array& a, const std::vector<int32_t>& first_row, const Array& b, bool trans_b, int64_t N,
                   int64_t K);
// E of (M, N): a^T b over an expert's rows of a (R, M) and b (R, N).
Array ExpertGradient(const Array& a, const std::vector<int32_t>& first_row, const Array& b, int64_t M, int64_t N);

}  // namespace eps::worker::reference

#endif  // EPS_GPU_WORKER_DEVICE_REFERENCE_EXPERTS_H_
