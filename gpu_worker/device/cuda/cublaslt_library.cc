#include "gpu_worker/device/cuda/cublaslt_library.h"

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/tensor/dtype.h"
#include "cublasLt.h"
#include "gpu_worker/device/cuda/cuda_kernel_sizes.h"
#include "gpu_worker/device/cuda/loaded_library.h"
#include "gpu_worker/device/cuda/lt_matmul.h"
#include "gpu_worker/device/cuda/matmul_problem.h"

namespace eps::worker::cuda {

// The functions that are used, by their own names.
struct CublasLtLibrary::Api {
  LoadedLibrary library;
#define EPS_LT_FUNCTION(name) decltype(&::name) name = nullptr
  EPS_LT_FUNCTION(cublasLtCreate);
  EPS_LT_FUNCTION(cublasLtDestroy);
  EPS_LT_FUNCTION(cublasLtGetVersion);
  EPS_LT_FUNCTION(cublasLtGetStatusString);
  EPS_LT_FUNCTION(cublasLtMatmul);
  EPS_LT_FUNCTION(cublasLtMatmulDescCreate);
  EPS_LT_FUNCTION(cublasLtMatmulDescDestroy);
  EPS_LT_FUNCTION(cublasLtMatmulDescSetAttribute);
  EPS_LT_FUNCTION(cublasLtMatrixLayoutCreate);
  EPS_LT_FUNCTION(cublasLtMatrixLayoutDestroy);
  EPS_LT_FUNCTION(cublasLtMatmulPreferenceCreate);
  EPS_LT_FUNCTION(cublasLtMatmulPreferenceDestroy);
  EPS_LT_FUNCTION(cublasLtMatmulPreferenceSetAttribute);
  EPS_LT_FUNCTION(cublasLtMatmulAlgoGetHeuristic);
#undef EPS_LT_FUNCTION

  absl::Status Find() {
#define EPS_LT_FIND(name) EPS_RETURN_IF_ERROR(library.Find(#name, &name))
    EPS_LT_FIND(cublasLtCreate);
    EPS_LT_FIND(cublasLtDestroy);
    EPS_LT_FIND(cublasLtGetVersion);
    EPS_LT_FIND(cublasLtGetStatusString);
    EPS_LT_FIND(cublasLtMatmul);
    EPS_LT_FIND(cublasLtMatmulDescCreate);
    EPS_LT_FIND(cublasLtMatmulDescDestroy);
    EPS_LT_FIND(cublasLtMatmulDescSetAttribute);
    EPS_LT_FIND(cublasLtMatrixLayoutCreate);
    EPS_LT_FIND(cublasLtMatrixLayoutDestroy);
    EPS_LT_FIND(cublasLtMatmulPreferenceCreate);
    EPS_LT_FIND(cublasLtMatmulPreferenceDestroy);
    EPS_LT_FIND(cublasLtMatmulPreferenceSetAttribute);
    EPS_LT_FIND(cublasLtMatmulAlgoGetHeuristic);
#undef EPS_LT_FIND
    return absl::OkStatus();
  }

  absl::Status Check(cublasStatus_t status, const char* call) const {
    if (status == CUBLAS_STATUS_SUCCESS) return absl::OkStatus();
    return absl::InternalError(absl::StrCat(call, ": ", cublasLtGetStatusString(status)));
  }
};

// What a product of a shape is called with; only addresses are missing.
struct CublasLtLibrary::Prepared {
  explicit Prepared(const Api* api) : api(*api) {}
  ~Prepared() {
    for (const cublasLtMatrixLayout_t layout : {a, b, d}) {
      if (layout != nullptr) api.cublasLtMatrixLayoutDestroy(layout);
    }
    if (operation != nullptr) api.cublasLtMatmulDescDestroy(operation);
  }

  const Api& api;
  cublasLtMatmulDesc_t operation = nullptr;
  cublasLtMatrixLayout_t a = nullptr, b = nullptr, d = nullptr;
  cublasLtMatmulAlgo_t algorithm = {};
};

namespace {

cudaDataType_t TypeOf(Dtype dtype) { return dtype == Dtype::kF32 ? CUDA_R_32F : CUDA_R_16BF; }

}  // namespace

absl::StatusOr<std::unique_ptr<CublasLtLibrary>> CublasLtLibrary::Load(void* workspace) {
  auto api = std::make_unique<Api>();
  EPS_ASSIGN_OR_RETURN(api->library, LoadedLibrary::Open(absl::StrCat("libcublasLt.so.", CUBLAS_VER_MAJOR)));
  EPS_RETURN_IF_ERROR(api->Find());
  std::unique_ptr<CublasLtLibrary> library(new CublasLtLibrary(std::move(api), workspace));
  EPS_RETURN_IF_ERROR(library->api_->Check(library->api_->cublasLtCreate(&library->handle_), "cublasLtCreate"));
  return library;
}

CublasLtLibrary::CublasLtLibrary(std::unique_ptr<Api> api, void* workspace)
    : api_(std::move(api)), workspace_(workspace) {}

CublasLtLibrary::~CublasLtLibrary() {
  prepared_.clear();
  if (handle_ != nullptr) api_->cublasLtDestroy(handle_);
}

std::string CublasLtLibrary::version() const { return absl::StrCat("cublaslt-", api_->cublasLtGetVersion()); }

absl::StatusOr<const CublasLtLibrary::Prepared*> CublasLtLibrary::Prepare(const LtShape& shape) {
  std::unique_ptr<Prepared>& found = prepared_[shape];
  if (found != nullptr) return found.get();

  auto made = std::make_unique<Prepared>(api_.get());
  const auto check = [this](cublasStatus_t status, const char* call) { return api_->Check(status, call); };
  // fp32 sums, and no tf32: fp32 operands are multiplied as such.
  EPS_RETURN_IF_ERROR(check(api_->cublasLtMatmulDescCreate(&made->operation, CUBLAS_COMPUTE_32F, CUDA_R_32F),
                            "cublasLtMatmulDescCreate"));
  const auto set = [&](cublasLtMatmulDescAttributes_t attribute, const auto& value) {
    return check(api_->cublasLtMatmulDescSetAttribute(made->operation, attribute, &value, sizeof(value)),
                 "cublasLtMatmulDescSetAttribute");
  };
  const cublasOperation_t op_a = shape.trans_a ? CUBLAS_OP_T : CUBLAS_OP_N;
  const cublasOperation_t op_b = shape.trans_b ? CUBLAS_OP_T : CUBLAS_OP_N;
  const cublasLtEpilogue_t epilogue = shape.has_bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
  const int32_t bias_type = TypeOf(shape.a.dtype);
  EPS_RETURN_IF_ERROR(set(CUBLASLT_MATMUL_DESC_TRANSA, op_a));
  EPS_RETURN_IF_ERROR(set(CUBLASLT_MATMUL_DESC_TRANSB, op_b));
  EPS_RETURN_IF_ERROR(set(CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue));
  if (shape.has_bias) {
    // The heuristic takes the alignment of a bias from its address: one with no more than it will have.
    const void* bias = reinterpret_cast<const void*>(static_cast<uintptr_t>(shape.alignment_bytes));
    EPS_RETURN_IF_ERROR(set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, bias_type));
    EPS_RETURN_IF_ERROR(set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias));
  }

  const auto layout = [&](cublasLtMatrixLayout_t* to, const LtMatrix& matrix) {
    return check(api_->cublasLtMatrixLayoutCreate(to, TypeOf(matrix.dtype), static_cast<uint64_t>(matrix.rows),
                                                  static_cast<uint64_t>(matrix.columns), matrix.ld),
                 "cublasLtMatrixLayoutCreate");
  };
  EPS_RETURN_IF_ERROR(layout(&made->a, shape.a));
  EPS_RETURN_IF_ERROR(layout(&made->b, shape.b));
  EPS_RETURN_IF_ERROR(layout(&made->d, shape.d));

  cublasLtMatmulPreference_t preference = nullptr;
  EPS_RETURN_IF_ERROR(check(api_->cublasLtMatmulPreferenceCreate(&preference), "cublasLtMatmulPreferenceCreate"));
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
    return check(api_->cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof(value)),
                 "cublasLtMatmulPreferenceSetAttribute");
  };
  cublasLtMatmulHeuristicResult_t result = {};
  int num_results = 0;
  const auto choose = [&] {
    const uint64_t workspace_bytes = kMatMulWorkspaceBytes;
    const uint32_t alignment = static_cast<uint32_t>(shape.alignment_bytes);
    // Sums that are split stay fp32 until the last: rounded once.
    const uint32_t reduction = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    EPS_RETURN_IF_ERROR(prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, reduction));
    EPS_RETURN_IF_ERROR(prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace_bytes));
    for (const auto attribute :
         {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
          CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
      EPS_RETURN_IF_ERROR(prefer(attribute, alignment));
    }
    return check(api_->cublasLtMatmulAlgoGetHeuristic(handle_, made->operation, made->a, made->b, made->d, made->d,
                                                      preference, 1, &result, &num_results),
                 "cublasLtMatmulAlgoGetHeuristic");
  };
  const absl::Status chosen = choose();
  api_->cublasLtMatmulPreferenceDestroy(preference);
  EPS_RETURN_IF_ERROR(chosen);
  if (num_results == 0)
    return absl::UnimplementedError("cublasLtMatmulAlgoGetHeuristic: no algorithm for this product");
  made->algorithm = result.algo;
  found = std::move(made);
  return found.get();
}

absl::Status CublasLtLibrary::MatMul(cudaStream_t stream, const MatMulProblem& problem) {
  const LtShape shape = LtShapeOf(problem);
  EPS_ASSIGN_OR_RETURN(const Prepared* prepared, Prepare(shape));
  if (shape.has_bias) {
    EPS_RETURN_IF_ERROR(
        api_->Check(api_->cublasLtMatmulDescSetAttribute(prepared->operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER,
                                                         &problem.bias, sizeof(problem.bias)),
                    "cublasLtMatmulDescSetAttribute"));
  }
  const float alpha = 1, beta = shape.has_addend ? 1 : 0;
  const void* c = shape.has_addend ? problem.addend : problem.c;
  return api_->Check(api_->cublasLtMatmul(handle_, prepared->operation, &alpha, problem.b, prepared->a, problem.a,
                                          prepared->b, &beta, c, prepared->d, problem.c, prepared->d,
                                          &prepared->algorithm, workspace_, kMatMulWorkspaceBytes, stream),
                     "cublasLtMatmul");
}

}  // namespace eps::worker::cuda
