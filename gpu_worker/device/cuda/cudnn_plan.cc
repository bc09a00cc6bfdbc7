#include "gpu_worker/device/cuda/cudnn_plan.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "cudnn_graph.h"
#include "gpu_worker/device/cuda/cudnn_api.h"
#include "gpu_worker/device/cuda/sdpa_graph.h"

namespace eps::worker::cuda {
namespace {

using Kind = SdpaOperation::Kind;

constexpr int64_t kAlignmentBytes = 16;  // of every array, as D is a multiple of 8
constexpr int64_t kRowAxis = 2, kColumnAxis = 3;

cudnnDataType_t TypeOf(ElementType type) {
  switch (type) {
    case ElementType::kBf16:
      return CUDNN_DATA_BFLOAT16;
    case ElementType::kF16:
      return CUDNN_DATA_HALF;
    case ElementType::kF32:
      return CUDNN_DATA_FLOAT;
    case ElementType::kI32:
      return CUDNN_DATA_INT32;
    case ElementType::kBool:
      return CUDNN_DATA_BOOLEAN;
  }
  EPS_CHECK(false);
}

struct PointwiseMode {
  cudnnPointwiseMode_t mode;
  cudnnDataType_t math = CUDNN_DATA_FLOAT;
  int64_t axis = -1;
};
PointwiseMode PointwiseOf(Kind kind) {
  switch (kind) {
    case Kind::kMultiply:
      return {CUDNN_POINTWISE_MUL};
    case Kind::kAdd:
      return {CUDNN_POINTWISE_ADD};
    case Kind::kSubtract:
      return {CUDNN_POINTWISE_SUB};
    case Kind::kDivide:
      return {CUDNN_POINTWISE_DIV};
    case Kind::kExp:
      return {CUDNN_POINTWISE_EXP};
    case Kind::kLog:
      return {CUDNN_POINTWISE_LOG};
    case Kind::kRowIndex:
      return {CUDNN_POINTWISE_GEN_INDEX, CUDNN_DATA_INT32, kRowAxis};
    case Kind::kColumnIndex:
      return {CUDNN_POINTWISE_GEN_INDEX, CUDNN_DATA_INT32, kColumnAxis};
    case Kind::kLess:
      return {CUDNN_POINTWISE_CMP_LT, CUDNN_DATA_BOOLEAN};
    case Kind::kGreater:
      return {CUDNN_POINTWISE_CMP_GT, CUDNN_DATA_BOOLEAN};
    case Kind::kGreaterEqual:
      return {CUDNN_POINTWISE_CMP_GE, CUDNN_DATA_BOOLEAN};
    case Kind::kSelect:
      return {CUDNN_POINTWISE_BINARY_SELECT};
    case Kind::kMatMul:
    case Kind::kReshape:
    case Kind::kReduceMax:
    case Kind::kReduceAdd:
      break;
  }
  EPS_CHECK(false);
}

// Descriptors of a graph's tensors and operations.
class Translator {
 public:
  Translator(const CudnnApi* api, std::vector<CudnnDescriptor>* parts) : api_(api), parts_(*parts) {}

  absl::Status Add(const SdpaTensor& tensor) {
    EPS_ASSIGN_OR_RETURN(CudnnDescriptor made, CudnnDescriptor::New(api_, CUDNN_BACKEND_TENSOR_DESCRIPTOR));
    const auto dims = static_cast<int64_t>(tensor.dims.size());
    EPS_RETURN_IF_ERROR(made.Set(CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, tensor.uid));
    EPS_RETURN_IF_ERROR(made.Set(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, TypeOf(tensor.type)));
    EPS_RETURN_IF_ERROR(made.SetArray(CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, dims, tensor.dims.data()));
    EPS_RETURN_IF_ERROR(made.SetArray(CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, dims, tensor.strides.data()));
    EPS_RETURN_IF_ERROR(made.Set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, kAlignmentBytes));
    EPS_RETURN_IF_ERROR(made.Set(CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, tensor.is_virtual));
    EPS_RETURN_IF_ERROR(made.Set(CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, tensor.value.has_value()));
    EPS_RETURN_IF_ERROR(made.Finalize());
    tensors_[tensor.uid] = parts_.size();
    parts_.push_back(std::move(made));
    return absl::OkStatus();
  }

  absl::StatusOr<CudnnDescriptor> Operation(const SdpaOperation& operation) {
    switch (operation.kind) {
      case Kind::kMatMul:
        return MatMul(operation);
      case Kind::kReshape:
        return Reshape(operation);
      case Kind::kReduceMax:
        return Reduction(operation, CUDNN_REDUCE_TENSOR_MAX);
      case Kind::kReduceAdd:
        return Reduction(operation, CUDNN_REDUCE_TENSOR_ADD);
      default:
        return Pointwise(operation);
    }
  }

 private:
  const CudnnDescriptor& Tensor(int64_t uid) const { return parts_[tensors_.at(uid)]; }

  absl::StatusOr<CudnnDescriptor> MatMul(const SdpaOperation& operation) {
    EPS_ASSIGN_OR_RETURN(CudnnDescriptor how, CudnnDescriptor::New(api_, CUDNN_BACKEND_MATMUL_DESCRIPTOR));
    EPS_RETURN_IF_ERROR(how.Set(CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT));
    EPS_RETURN_IF_ERROR(how.Finalize());
    EPS_ASSIGN_OR_RETURN(CudnnDescriptor made, CudnnDescriptor::New(api_, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR));
    EPS_RETURN_IF_ERROR(made.Set(CUDNN_ATTR_OPERATION_MATMUL_DESC, how));
    EPS_RETURN_IF_ERROR(made.Set(CUDNN_ATTR_OPERATION_MATMUL_ADESC, Tensor(operation.inputs[0])));
    EPS_RETURN_IF_ERROR(made.Set(CUDNN_ATTR_OPERATION_MATMUL_BDESC, Tensor(operation.inputs[1])));
    EPS_RETURN_IF_ERROR(made.Set(CUDNN_ATTR_OPERATION_MATMUL_CDESC, Tensor(operation.output)));
    return Finalized(std::move(made), std::move(how));
  }

  absl::StatusOr<CudnnDescriptor> Reshape(const SdpaOperation& operation) {
    EPS_ASSIGN_OR_RETURN(CudnnDescriptor made, CudnnDescriptor::New(api_, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR));
    EPS_RETURN_IF_ERROR(made.Set(CUDNN_ATTR_OPERATION_RESHAPE_XDESC, Tensor(operation.inputs[0])));
    EPS_RETURN_IF_ERROR(made.Set(CUDNN_ATTR_OPERATION_RESHAPE_YDESC, Tensor(operation.output)));
    EPS_RETURN_IF_ERROR(made.Finalize());
    return made;
  }

  absl::StatusOr<CudnnDescriptor> Reduction(const SdpaOperation& operation, cudnnReduceTensorOp_t op) {
    EPS_ASSIGN_OR_RETURN(CudnnDescriptor how, CudnnDescriptor::New(api_, CUDNN_BACKEND_REDUCTION_DESCRIPTOR));
    EPS_RETURN_IF_ERROR(how.Set(CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT));
    EPS_RETURN_IF_ERROR(how.Set(CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, op));
    EPS_RETURN_IF_ERROR(how.Finalize());
    EPS_ASSIGN_OR_RETURN(CudnnDescriptor made,
                         CudnnDescriptor::New(api_, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR));
    EPS_RETURN_IF_ERROR(made.Set(CUDNN_ATTR_OPERATION_REDUCTION_DESC, how));
    EPS_RETURN_IF_ERROR(made.Set(CUDNN_ATTR_OPERATION_REDUCTION_XDESC, Tensor(operation.inputs[0])));
    EPS_RETURN_IF_ERROR(made.Set(CUDNN_ATTR_OPERATION_REDUCTION_YDESC, Tensor(operation.output)));
    return Finalized(std::move(made), std::move(how));
  }

  absl::StatusOr<CudnnDescriptor> Pointwise(const SdpaOperation& operation) {
    const PointwiseMode pointwise = PointwiseOf(operation.kind);
    EPS_ASSIGN_OR_RETURN(CudnnDescriptor how, CudnnDescriptor::New(api_, CUDNN_BACKEND_POINTWISE_DESCRIPTOR));
    EPS_RETURN_IF_ERROR(how.Set(CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, pointwise.mode));
    EPS_RETURN_IF_ERROR(how.Set(CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, pointwise.math));
    if (pointwise.axis >= 0) EPS_RETURN_IF_ERROR(how.Set(CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, pointwise.axis));
    EPS_RETURN_IF_ERROR(how.Finalize());
    EPS_ASSIGN_OR_RETURN(CudnnDescriptor made,
                         CudnnDescriptor::New(api_, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR));
    EPS_RETURN_IF_ERROR(made.Set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, how));
    constexpr std::array kInputs = {CUDNN_ATTR_OPERATION_POINTWISE_XDESC, CUDNN_ATTR_OPERATION_POINTWISE_BDESC,
                                    CUDNN_ATTR_OPERATION_POINTWISE_TDESC};
    for (size_t i = 0; i < operation.inputs.size(); ++i) {
      EPS_RETURN_IF_ERROR(made.Set(kInputs[i], Tensor(operation.inputs[i])));
    }
    EPS_RETURN_IF_ERROR(made.Set(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, Tensor(operation.output)));
    return Finalized(std::move(made), std::move(how));
  }

  absl::StatusOr<CudnnDescriptor> Finalized(CudnnDescriptor made, CudnnDescriptor how) {
    EPS_RETURN_IF_ERROR(made.Finalize());
    parts_.push_back(std::move(how));
    return made;
  }

  const CudnnApi* const api_;
  std::vector<CudnnDescriptor>& parts_;
  std::map<int64_t, size_t> tensors_;  // by uid, the index in parts_
};

absl::StatusOr<bool> IsDeterministic(const CudnnDescriptor& engine) {
  std::array<cudnnBackendNumericalNote_t, CUDNN_NUMERICAL_NOTE_TYPE_COUNT> notes = {};
  EPS_ASSIGN_OR_RETURN(const int64_t count, engine.GetArray(CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE,
                                                            static_cast<int64_t>(notes.size()), notes.data()));
  const auto end = notes.begin() + std::min<int64_t>(count, static_cast<int64_t>(notes.size()));
  return std::find(notes.begin(), end, CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC) == end;
}

}  // namespace

absl::StatusOr<CudnnDescriptor> CudnnDeviceOf(const CudnnApi* api, cudnnHandle_t handle) {
  EPS_ASSIGN_OR_RETURN(CudnnDescriptor device, CudnnDescriptor::New(api, CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR));
  EPS_RETURN_IF_ERROR(device.Set(CUDNN_ATTR_DEVICEPROP_HANDLE, CUDNN_TYPE_HANDLE, handle));
  EPS_RETURN_IF_ERROR(device.Finalize());
  return device;
}

absl::StatusOr<CudnnDescriptor> CudnnDeviceByJson(const CudnnApi* api, const std::string& json) {
  EPS_ASSIGN_OR_RETURN(CudnnDescriptor device, CudnnDescriptor::New(api, CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR));
  EPS_RETURN_IF_ERROR(device.SetArray(CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR,
                                      static_cast<int64_t>(json.size()), json.data()));
  EPS_RETURN_IF_ERROR(device.Finalize());
  return device;
}

absl::StatusOr<std::unique_ptr<CudnnPlan>> CudnnPlan::Make(const CudnnApi* api, const SdpaGraph& graph,
                                                           const CudnnDescriptor& device,
                                                           absl::Span<const int64_t> passed_over) {
  auto plan = std::unique_ptr<CudnnPlan>(new CudnnPlan(api));
  Translator translator(api, &plan->parts_);
  for (const SdpaTensor& tensor : graph.tensors) {
    EPS_RETURN_IF_ERROR_WITH(translator.Add(tensor), absl::StrCat("tensor ", tensor.uid));
    if (!tensor.value.has_value()) continue;
    plan->number_uids_.push_back(tensor.uid);
    plan->numbers_.push_back(tensor.type == ElementType::kI32 ? static_cast<uint32_t>(*tensor.value)
                                                              : std::bit_cast<uint32_t>(*tensor.value));
  }
  std::vector<CudnnDescriptor> operations;
  for (const SdpaOperation& operation : graph.operations) {
    absl::StatusOr<CudnnDescriptor> made = translator.Operation(operation);
    EPS_RETURN_IF_ERROR_WITH(made.status(), absl::StrCat("operation ", operations.size()));
    operations.push_back(*std::move(made));
  }
  EPS_ASSIGN_OR_RETURN(CudnnDescriptor whole, CudnnDescriptor::New(api, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR));
  EPS_RETURN_IF_ERROR(whole.Set(CUDNN_ATTR_OPERATIONGRAPH_OPS, operations));
  EPS_RETURN_IF_ERROR_WITH(whole.Finalize(), "operation graph");
  for (CudnnDescriptor& operation : operations) plan->parts_.push_back(std::move(operation));
  EPS_RETURN_IF_ERROR(plan->Choose(whole, device, passed_over));
  // The plan stays last.
  plan->parts_.insert(plan->parts_.end() - 1, std::move(whole));
  return plan;
}

absl::Status CudnnPlan::Choose(const CudnnDescriptor& operation_graph, const CudnnDescriptor& device,
                               absl::Span<const int64_t> passed_over) {
  EPS_ASSIGN_OR_RETURN(CudnnDescriptor heuristic, CudnnDescriptor::New(api_, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR));
  EPS_RETURN_IF_ERROR(heuristic.Set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, operation_graph));
  EPS_RETURN_IF_ERROR(heuristic.Set(CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, CUDNN_HEUR_MODE_A));
  EPS_RETURN_IF_ERROR(heuristic.Set(CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, device));
  if (const absl::Status listed = heuristic.Finalize(); !listed.ok()) {
    if (absl::IsUnimplemented(listed) || absl::IsResourceExhausted(listed)) return Annotate(listed, "heuristic");
    // As where this part of the library is of another version, or missing: it is loaded now.
    LogWarning("attention_is_plain_and_slow", {{"why", listed.ToString()}});
    return absl::UnimplementedError(absl::StrCat("heuristic: ", listed.message()));
  }
  EPS_ASSIGN_OR_RETURN(std::vector<CudnnDescriptor> configs,
                       heuristic.GetDescriptors(CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR));
  std::string refused;
  place_ = -1;
  for (CudnnDescriptor& config : configs) {
    ++place_;
    EPS_ASSIGN_OR_RETURN(std::vector<CudnnDescriptor> engines,
                         config.GetDescriptors(CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_BACKEND_ENGINE_DESCRIPTOR));
    if (engines.size() != 1) return absl::InternalError("a configuration of cuDNN's has not one engine");
    EPS_ASSIGN_OR_RETURN(engine_, engines[0].Get<int64_t>(CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64));
    if (std::find(passed_over.begin(), passed_over.end(), engine_) != passed_over.end()) {
      absl::StrAppend(&refused, "; engine ", engine_, " is passed over");
      continue;
    }
    EPS_ASSIGN_OR_RETURN(const bool deterministic, IsDeterministic(engines[0]));
    if (!deterministic) {
      absl::StrAppend(&refused, "; engine ", engine_, " is not deterministic");
      continue;
    }
    EPS_ASSIGN_OR_RETURN(CudnnDescriptor made, CudnnDescriptor::New(api_, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR));
    EPS_RETURN_IF_ERROR(made.Set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config));
    const absl::Status status = made.Finalize();
    if (absl::IsResourceExhausted(status)) return Annotate(status, absl::StrCat("engine ", engine_));
    if (!status.ok()) {
      // What an engine lists as its own, and has no code for that compiles and is loaded, it has not got.
      if (!absl::IsUnimplemented(status)) {
        LogWarning("attention_engine_passed_over", {{"engine", engine_}, {"status", status.ToString()}});
      }
      absl::StrAppend(&refused, "; engine ", engine_, ": ", status.message());
      continue;
    }
    EPS_ASSIGN_OR_RETURN(workspace_bytes_,
                         made.Get<int64_t>(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64));
    parts_.push_back(std::move(config));
    parts_.push_back(std::move(made));
    return absl::OkStatus();
  }
  // Where it lists none, it has said why, if at all, in its last error.
  if (configs.empty()) absl::StrAppend(&refused, "; ", api_->LastError());
  return absl::UnimplementedError(absl::StrCat("no engine of cuDNN takes it, of ", configs.size(), refused));
}

absl::Status CudnnPlan::Execute(cudnnHandle_t handle, absl::Span<const SdpaBinding> bindings, void* workspace) const {
  std::vector<int64_t> uids = number_uids_;
  std::vector<void*> addresses;
  for (const uint32_t& number : numbers_) addresses.push_back(const_cast<uint32_t*>(&number));
  for (const SdpaBinding& binding : bindings) {
    uids.push_back(binding.uid);
    addresses.push_back(binding.address);
  }
  const auto count = static_cast<int64_t>(uids.size());
  EPS_ASSIGN_OR_RETURN(CudnnDescriptor pack, CudnnDescriptor::New(api_, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR));
  EPS_RETURN_IF_ERROR(pack.SetArray(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, count, uids.data()));
  EPS_RETURN_IF_ERROR(
      pack.SetArray(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, count, addresses.data()));
  EPS_RETURN_IF_ERROR(pack.Set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, workspace));
  EPS_RETURN_IF_ERROR(pack.Finalize());
  return api_->Check(api_->cudnnBackendExecute(handle, parts_.back().get(), pack.get()), "cudnnBackendExecute");
}

}  // namespace eps::worker::cuda
