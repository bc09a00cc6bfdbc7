#ifndef EPS_GPU_WORKER_DEVICE_CPU_ELEMENTWISE_H_
#define EPS_GPU_WORKER_DEVICE_CPU_ELEMENTWISE_H_

#include <cstdint>

#include "gpu_worker/device/dropout_plan.h"
#include "gpu_worker/device/kernels.h"

namespace eps::worker::cpu {

// Elements [begin, end) of each kernel; begin is a multiple of 64. No element depends on where a
// tile starts.
void ActivationBackwardElems(const ActivationBackwardArgs& args, int64_t begin, int64_t end);
// scratch: a computing thread's. x may be y.
void DropoutElems(const DropoutPlan& dropout, const float* x, float* y, int64_t begin, int64_t end, float* scratch);
void WidenElems(const WidenArgs& args, int64_t begin, int64_t end);
void DequantizeElems(const DequantizeArgs& args, int64_t begin, int64_t end);
// Returns whether all were finite, looked at before rounding.
bool FinishLeafElems(const FinishLeafArgs& args, int64_t begin, int64_t end);
void AddGradientElems(const AddGradientArgs& args, int64_t begin, int64_t end);
void EmitGradientElems(const EmitGradientArgs& args, int64_t begin, int64_t end);

// Rows [begin, end) of y = dropout(wte[token] + wpe[position]).
void EmbeddingRows(const EmbeddingArgs& args, const DropoutPlan& dropout, int64_t begin, int64_t end, float* scratch);
// Columns [begin, end) of dwte and dwpe, all rows in order; dy has been through the dropout.
void EmbeddingBackwardColumns(const EmbeddingBackwardArgs& args, int64_t begin, int64_t end);

// Whether the processor has instructions that the kernels are compiled for.
bool VectorTargetSupported();
// The name of those that they run with, e.g. "AVX3". Only where some are supported.
const char* VectorTargetName();

}  // namespace eps::worker::cpu

#endif  // EPS_GPU_WORKER_DEVICE_CPU_ELEMENTWISE_H_
