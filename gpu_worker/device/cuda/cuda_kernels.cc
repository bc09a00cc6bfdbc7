#include "gpu_worker/device/cuda/cuda_kernels.h"

#include <cstdint>

#include "common/base/status_macros.h"
#include "common/tensor/dtype.h"
#include "gpu_worker/device/cuda/attention.h"
#include "gpu_worker/device/cuda/device_dropout.h"
#include "gpu_worker/device/cuda/elementwise.h"
#include "gpu_worker/device/cuda/embedding.h"
#include "gpu_worker/device/cuda/experts.h"
#include "gpu_worker/device/cuda/layer_norm.h"
#include "gpu_worker/device/cuda/matmul_problem.h"
#include "gpu_worker/device/cuda/preferences.h"
#include "gpu_worker/device/cuda/reduction.h"
#include "gpu_worker/device/cuda/rms_norm.h"
#include "gpu_worker/device/cuda/rotary.h"
#include "gpu_worker/device/cuda/sdpa_problem.h"
#include "gpu_worker/device/cuda/softmax.h"
#include "gpu_worker/device/cuda/swiglu.h"
#include "gpu_worker/device/dropout_plan.h"
#include "gpu_worker/device/kernels.h"

namespace eps::worker::cuda {
namespace {

// The same for both directions, so that both take the same route.
template <typename Args>
SdpaProblem ProblemOf(Dtype act, const Args& args) {
  return {.B = args.B,
          .T = args.T,
          .H = args.H,
          .kv_heads = args.kv_heads,
          .D = args.D,
          .act = act,
          .scale = args.scale,
          .causal = args.causal,
          .window = args.window < args.T ? args.window : 0,  // one of T bounds nothing
          .dropout = args.dropout.rate,
          .documents = args.documents.first != nullptr};
}

}  // namespace

DeviceDropout CudaKernels::PutDropout(const Dropout& dropout) {
  const DropoutPlan plan = PlanDropout(dropout);
  if (!plan.on) return {};
  return {.on = true,
          .key = queue_.DropoutKey(plan.key),
          .drop_up_to = plan.drop_up_to,
          .keep_scale = plan.keep_scale,
          .first_element = plan.first_element};
}

void CudaKernels::MatMul(const MatMulArgs& args) {
  using Epilogue = MatMulArgs::Epilogue;
  EPS_CHECK(!(args.accumulate && args.epilogue == Epilogue::kResidual && args.residual == args.c));
  MatMulProblem problem = {.M = args.M,
                           .N = args.N,
                           .K = args.K,
                           .a = args.a,
                           .lda = args.lda,
                           .trans_a = args.trans_a,
                           .b = args.b,
                           .ldb = args.ldb,
                           .trans_b = args.trans_b,
                           .c = args.c,
                           .ldc = args.ldc,
                           .scale = static_cast<float>(args.scale),
                           .addend = args.accumulate ? args.c : nullptr,
                           .bias = args.bias,
                           .operand_dtype = act_,
                           .result_dtype = args.c_is_gradient ? Dtype::kF32 : act_,
                           .tf32 = tf32_};
  // The library adds one array: the residual, where it is the only one, and nothing of the sum is dropped before.
  const bool adds_residual = args.epilogue == Epilogue::kResidual && args.dropout.rate == 0 && !args.accumulate;
  if (adds_residual) problem.addend = args.residual;
  queue_.MatMul(problem);
  const EpilogueArgs rest = {.M = args.M,
                             .N = args.N,
                             .ld = args.ldc,
                             .x = args.c,
                             .y = args.c,
                             .residual = args.residual,
                             .dropout = PutDropout(args.dropout)};
  if (args.epilogue == Epilogue::kResidual && !adds_residual) cuda::AddResidual(queue_, act_, rest);
  if (args.epilogue == Epilogue::kActivation) {
    // Of c as it is stored, by the function that ActivationBackward has: both give the same bits, which an epilogue of
    // the library, computed before c is rounded, would not.
    EpilogueArgs of_c = rest;
    of_c.y = args.activated;
    cuda::Activate(queue_, act_, args.activation, of_c);
  }
}

void CudaKernels::Embedding(const EmbeddingArgs& args) {
  cuda::Embedding(queue_, act_, args, PutDropout(args.dropout));
}
void CudaKernels::EmbeddingBackward(const EmbeddingBackwardArgs& args) {
  cuda::EmbeddingBackward(queue_, act_, args, PutDropout(args.dropout));
}

void CudaKernels::LayerNorm(const LayerNormArgs& args) {
  EPS_CHECK(args.C <= kMaxLayerNormColumns);
  cuda::LayerNorm(queue_, act_, args);
}
void CudaKernels::LayerNormApply(const LayerNormApplyArgs& args) { cuda::LayerNormApply(queue_, act_, args); }
void CudaKernels::LayerNormBackward(const LayerNormBackwardArgs& args) { cuda::LayerNormBackward(queue_, act_, args); }

void CudaKernels::RmsNorm(const RmsNormArgs& args) {
  EPS_CHECK(args.C <= kMaxRmsNormColumns);
  cuda::RmsNorm(queue_, act_, args);
}
void CudaKernels::RmsNormApply(const RmsNormApplyArgs& args) { cuda::RmsNormApply(queue_, act_, args); }
void CudaKernels::RmsNormBackward(const RmsNormBackwardArgs& args) { cuda::RmsNormBackward(queue_, act_, args); }

void CudaKernels::Attention(const AttentionArgs& args) {
  const SdpaProblem problem = ProblemOf(act_, args);
  if (queue_.TakesAttention(problem)) {
    queue_.Attention(problem, {.qkv = args.qkv,
                               .o = args.o,
                               .lse = args.lse,
                               .documents = args.documents,
                               .dropout = PutDropout(args.dropout)});
    return;
  }
  EPS_CHECK(CheckSdpaProblem(problem).ok() && args.D <= kMaxPlainAttentionHeadDim);
  PlainAttention(queue_, act_, args, PutDropout(args.dropout));
}
void CudaKernels::AttentionBackward(const AttentionBackwardArgs& args) {
  const SdpaProblem problem = ProblemOf(act_, args);
  if (queue_.TakesAttention(problem)) {
    queue_.AttentionBackward(problem, {.qkv = args.qkv,
                                       .o = const_cast<void*>(args.o),
                                       .lse = const_cast<float*>(args.lse),
                                       .documents = args.documents,
                                       .dropout = PutDropout(args.dropout),
                                       .d_o = args.d_o,
                                       .dqkv = args.dqkv,
                                       .delta = static_cast<float*>(args.scratch)});
    return;
  }
  EPS_CHECK(CheckSdpaProblem(problem).ok() && args.D <= kMaxPlainAttentionHeadDim);
  PlainAttentionBackward(queue_, act_, args, PutDropout(args.dropout));
}

void CudaKernels::ActivationBackward(const ActivationBackwardArgs& args) {
  cuda::ActivationBackward(queue_, act_, args);
}
void CudaKernels::Swiglu(const SwigluArgs& args) { cuda::Swiglu(queue_, act_, args); }
void CudaKernels::SwigluBackward(const SwigluBackwardArgs& args) { cuda::SwigluBackward(queue_, act_, args); }
void CudaKernels::Route(const RouteArgs& args) {
  EPS_CHECK(args.K <= args.E && args.E <= kMaxExperts);
  cuda::Route(queue_, act_, args);
}
void CudaKernels::RouteBackward(const RouteBackwardArgs& args) { cuda::RouteBackward(queue_, act_, args); }
void CudaKernels::GatherRows(const GatherRowsArgs& args) { cuda::GatherRows(queue_, act_, args); }
void CudaKernels::SumRows(const SumRowsArgs& args) { cuda::SumRows(queue_, act_, args); }
void CudaKernels::ExpertMatMul(const ExpertMatMulArgs& args) { cuda::ExpertMatMul(queue_, act_, args); }
void CudaKernels::ExpertGradient(const ExpertGradientArgs& args) { cuda::ExpertGradient(queue_, act_, args); }
void CudaKernels::Rotary(const RotaryArgs& args) { cuda::Rotary(queue_, act_, args); }
void CudaKernels::ApplyDropout(const DropoutArgs& args) {
  cuda::ApplyDropout(queue_, act_, args.n, args.x, PutDropout(args.dropout), args.y);
}
void CudaKernels::ColumnSum(const ColumnSumArgs& args) { cuda::ColumnSum(queue_, act_, args); }
void CudaKernels::SoftmaxChunk(const SoftmaxChunkArgs& args) { cuda::SoftmaxChunk(queue_, act_, args); }
void CudaKernels::SoftmaxChunkBackward(const SoftmaxChunkBackwardArgs& args) {
  cuda::SoftmaxChunkBackward(queue_, act_, args);
}
void CudaKernels::Loss(const LossArgs& args) { cuda::Loss(queue_, args); }
void CudaKernels::ScoreSequences(const ScoreSequencesArgs& args) { cuda::ScoreSequences(queue_, args); }
void CudaKernels::PreferenceLoss(const PreferenceLossArgs& args) { cuda::PreferenceLoss(queue_, args); }
void CudaKernels::Widen(const WidenArgs& args) { cuda::Widen(queue_, act_, args); }
void CudaKernels::Dequantize(const DequantizeArgs& args) { cuda::Dequantize(queue_, act_, args); }
void CudaKernels::FinishLeaf(const FinishLeafArgs& args) { cuda::FinishLeaf(queue_, args); }
void CudaKernels::AddGradient(const AddGradientArgs& args) { cuda::AddGradient(queue_, args); }
void CudaKernels::EmitGradient(const EmitGradientArgs& args) { cuda::EmitGradient(queue_, args); }
void CudaKernels::FillZero(const FillZeroArgs& args) { cuda::FillZero(queue_, args); }

}  // namespace eps::worker::cuda
