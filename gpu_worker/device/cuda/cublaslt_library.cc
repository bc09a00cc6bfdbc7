#include "gpu_worker/device/cuda/cublaslt_library.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
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
  EPS_LT_FUNCTION(cublasLtMatmulAlgoCheck);
  EPS_LT_FUNCTION(cublasLtMatmulAlgoConfigGetAttribute);
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
    EPS_LT_FIND(cublasLtMatmulAlgoCheck);
    EPS_LT_FIND(cublasLtMatmulAlgoConfigGetAttribute);
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
  std::optional<cublasLtMatmulAlgo_t> algorithm;  // none: not used yet
};

namespace {

// Sums that are split stay fp32 until the last: rounded once. One scheme alone; those that are not split are always in.
constexpr int kLeastGuesses = 8;
constexpr uint32_t kReduction = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;

std::string TextOf(const cublasLtMatmulAlgo_t& algorithm) {
  return absl::BytesToHexString(absl::string_view(reinterpret_cast<const char*>(&algorithm), sizeof(algorithm)));
}

absl::StatusOr<cublasLtMatmulAlgo_t> AlgorithmOf(const std::string& text) {
  cublasLtMatmulAlgo_t algorithm = {};
  const bool is_hex = text.find_first_not_of("0123456789abcdef") == std::string::npos;
  if (text.size() != 2 * sizeof(algorithm) || !is_hex) {
    return absl::FailedPreconditionError(absl::StrCat("\"", text, "\" is no algorithm of cuBLASLt: want ",
                                                      2 * sizeof(algorithm), " hexadecimal digits"));
  }
  const std::string bytes = absl::HexStringToBytes(text);
  std::memcpy(&algorithm, bytes.data(), sizeof(algorithm));
  return algorithm;
}

// Aligned no better than a bias will be.
const void* BiasAlignedAs(const LtShape& shape) {
  return reinterpret_cast<const void*>(static_cast<uintptr_t>(shape.a.alignment_bytes));
}

cudaDataType_t TypeOf(Dtype dtype) {
  return dtype == Dtype::kF32 ? CUDA_R_32F : dtype == Dtype::kBf16 ? CUDA_R_16BF : CUDA_R_16F;
}

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

absl::StatusOr<CublasLtLibrary::Prepared*> CublasLtLibrary::Prepare(const LtShape& shape) {
  std::unique_ptr<Prepared>& found = prepared_[shape];
  if (found != nullptr) return found.get();

  auto made = std::make_unique<Prepared>(api_.get());
  const auto check = [this](cublasStatus_t status, const char* call) { return api_->Check(status, call); };
  // fp32 sums. Without tf32 operands of fp32 are multiplied as such.
  const cublasComputeType_t compute = shape.tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
  EPS_RETURN_IF_ERROR(
      check(api_->cublasLtMatmulDescCreate(&made->operation, compute, CUDA_R_32F), "cublasLtMatmulDescCreate"));
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
  if (shape.has_bias) EPS_RETURN_IF_ERROR(set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, bias_type));

  const auto layout = [&](cublasLtMatrixLayout_t* to, const LtMatrix& matrix) {
    return check(api_->cublasLtMatrixLayoutCreate(to, TypeOf(matrix.dtype), static_cast<uint64_t>(matrix.rows),
                                                  static_cast<uint64_t>(matrix.columns), matrix.ld),
                 "cublasLtMatrixLayoutCreate");
  };
  EPS_RETURN_IF_ERROR(layout(&made->a, shape.a));
  EPS_RETURN_IF_ERROR(layout(&made->b, shape.b));
  EPS_RETURN_IF_ERROR(layout(&made->d, shape.d));
  found = std::move(made);
  return found.get();
}

absl::Status CublasLtLibrary::SetBias(const Prepared& prepared, const void* bias) {
  return api_->Check(
      api_->cublasLtMatmulDescSetAttribute(prepared.operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof(bias)),
      "cublasLtMatmulDescSetAttribute");
}

absl::Status CublasLtLibrary::CheckReduction(const cublasLtMatmulAlgo_t& algorithm) {
  uint32_t scheme = 0;
  size_t written = 0;
  EPS_RETURN_IF_ERROR(
      api_->Check(api_->cublasLtMatmulAlgoConfigGetAttribute(&algorithm, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, &scheme,
                                                             sizeof(scheme), &written),
                  "cublasLtMatmulAlgoConfigGetAttribute"));
  if (scheme == CUBLASLT_REDUCTION_SCHEME_NONE || scheme == kReduction) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("its sums are split by reduction scheme ", scheme, ", want ",
                                                    int{CUBLASLT_REDUCTION_SCHEME_NONE}, " or ", kReduction));
}

absl::StatusOr<std::vector<cublasLtMatmulAlgo_t>> CublasLtLibrary::Heuristic(const LtShape& shape,
                                                                             const Prepared& prepared, int most) {
  if (shape.has_bias) EPS_RETURN_IF_ERROR(SetBias(prepared, BiasAlignedAs(shape)));
  const auto check = [this](cublasStatus_t status, const char* call) { return api_->Check(status, call); };
  cublasLtMatmulPreference_t preference = nullptr;
  EPS_RETURN_IF_ERROR(check(api_->cublasLtMatmulPreferenceCreate(&preference), "cublasLtMatmulPreferenceCreate"));
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
    return check(api_->cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof(value)),
                 "cublasLtMatmulPreferenceSetAttribute");
  };
  // Some more than are wanted: those that are dropped below may be the first.
  const int asked_for = std::max(most, kLeastGuesses);
  std::vector<cublasLtMatmulHeuristicResult_t> results(static_cast<size_t>(asked_for));
  int num_results = 0;
  const auto ask = [&] {
    const uint64_t workspace_bytes = kMatMulWorkspaceBytes;
    const auto alignment_of = [](const LtMatrix& matrix) { return static_cast<uint32_t>(matrix.alignment_bytes); };
    EPS_RETURN_IF_ERROR(prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, kReduction));
    EPS_RETURN_IF_ERROR(prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace_bytes));
    EPS_RETURN_IF_ERROR(prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment_of(shape.a)));
    EPS_RETURN_IF_ERROR(prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment_of(shape.b)));
    EPS_RETURN_IF_ERROR(prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment_of(shape.d)));
    EPS_RETURN_IF_ERROR(prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment_of(shape.d)));
    return check(api_->cublasLtMatmulAlgoGetHeuristic(handle_, prepared.operation, prepared.a, prepared.b, prepared.d,
                                                      prepared.d, preference, asked_for, results.data(), &num_results),
                 "cublasLtMatmulAlgoGetHeuristic");
  };
  const absl::Status asked = ask();
  api_->cublasLtMatmulPreferenceDestroy(preference);
  EPS_RETURN_IF_ERROR(asked);
  std::vector<cublasLtMatmulAlgo_t> algorithms;
  for (int i = 0; i < num_results; ++i) {
    const cublasLtMatmulHeuristicResult_t& result = results[static_cast<size_t>(i)];
    if (static_cast<int>(algorithms.size()) == most) break;
    if (result.state == CUBLAS_STATUS_SUCCESS && CheckReduction(result.algo).ok()) algorithms.push_back(result.algo);
  }
  if (algorithms.empty()) {
    return absl::UnimplementedError("cublasLtMatmulAlgoGetHeuristic: no algorithm for this product");
  }
  return algorithms;
}

absl::StatusOr<std::vector<std::string>> CublasLtLibrary::Algorithms(const LtShape& shape, int most) {
  EPS_ASSIGN_OR_RETURN(const Prepared* prepared, Prepare(shape));
  EPS_ASSIGN_OR_RETURN(const std::vector<cublasLtMatmulAlgo_t> algorithms, Heuristic(shape, *prepared, most));
  std::vector<std::string> texts;
  for (const cublasLtMatmulAlgo_t& algorithm : algorithms) texts.push_back(TextOf(algorithm));
  return texts;
}

absl::Status CublasLtLibrary::UseAlgorithm(const LtShape& shape, const std::string& text) {
  EPS_ASSIGN_OR_RETURN(const cublasLtMatmulAlgo_t algorithm, AlgorithmOf(text));
  EPS_ASSIGN_OR_RETURN(Prepared * prepared, Prepare(shape));
  if (shape.has_bias) EPS_RETURN_IF_ERROR(SetBias(*prepared, BiasAlignedAs(shape)));
  cublasLtMatmulHeuristicResult_t result = {};
  const absl::Status checked =
      api_->Check(api_->cublasLtMatmulAlgoCheck(handle_, prepared->operation, prepared->a, prepared->b, prepared->d,
                                                prepared->d, &algorithm, &result),
                  "cublasLtMatmulAlgoCheck");
  if (!checked.ok()) {
    return absl::FailedPreconditionError(
        absl::StrCat("algorithm ", text, " is refused by ", version(), ": ", checked.message()));
  }
  if (result.workspaceSize > static_cast<size_t>(kMatMulWorkspaceBytes)) {
    return absl::FailedPreconditionError(absl::StrCat("algorithm ", text, " works in ", result.workspaceSize,
                                                      " bytes, and there are ", kMatMulWorkspaceBytes));
  }
  EPS_RETURN_IF_ERROR_WITH(CheckReduction(algorithm), absl::StrCat("algorithm ", text));
  prepared->algorithm = algorithm;
  return absl::OkStatus();
}

absl::Status CublasLtLibrary::MatMul(cudaStream_t stream, const MatMulProblem& problem) {
  const LtShape shape = LtShapeOf(problem);
  EPS_ASSIGN_OR_RETURN(Prepared * prepared, Prepare(shape));
  if (!prepared->algorithm.has_value()) {
    EPS_ASSIGN_OR_RETURN(const std::vector<cublasLtMatmulAlgo_t> algorithms, Heuristic(shape, *prepared, 1));
    prepared->algorithm = algorithms.front();
  }
  if (shape.has_bias) EPS_RETURN_IF_ERROR(SetBias(*prepared, problem.bias));
  const float alpha = problem.scale, beta = shape.has_addend ? 1 : 0;
  const void* c = shape.has_addend ? problem.addend : problem.c;
  return api_->Check(api_->cublasLtMatmul(handle_, prepared->operation, &alpha, problem.b, prepared->a, problem.a,
                                          prepared->b, &beta, c, prepared->d, problem.c, prepared->d,
                                          &*prepared->algorithm, workspace_, kMatMulWorkspaceBytes, stream),
                     "cublasLtMatmul");
}

}  // namespace eps::worker::cuda
