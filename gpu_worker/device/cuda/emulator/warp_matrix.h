#ifndef EPS_GPU_WORKER_DEVICE_CUDA_EMULATOR_WARP_MATRIX_H_
#define EPS_GPU_WORKER_DEVICE_CUDA_EMULATOR_WARP_MATRIX_H_

#include <cstdint>

// Instructions of a whole warp on small matrices of 16-bit elements, two of which are in a register, the first in its
// low half. What each lane holds of a matrix is as PTX says; all lanes of the warp take part.
namespace eps::worker::cuda::emulator {

// ldmatrix.x4, .trans: four matrices of 8 by 8, whose rows lie at the 32 lanes' addresses, each at a multiple of 16
// bytes.
void LoadMatrices(const void* row, bool transposes, uint32_t (&matrices)[4]);

// mma.m16n8k16: c (16, 8) += a (16, 16) b (16, 8), in fp32, of elements that `to_float` knows.
void MultiplyAdd(const uint32_t (&a)[4], const uint32_t (&b)[2], float (*to_float)(uint16_t bits), float (&c)[4]);

}  // namespace eps::worker::cuda::emulator

#endif  // EPS_GPU_WORKER_DEVICE_CUDA_EMULATOR_WARP_MATRIX_H_
