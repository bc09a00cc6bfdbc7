#include "gpu_worker/device/cuda/emulator/sdpa_interpreter.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <vector>

#include "absl/types/span.h"
#include "common/base/status_macros.h"
#include "gpu_worker/device/cuda/device_code.h"
#include "gpu_worker/device/cuda/sdpa_graph.h"

namespace eps::worker::cuda {
namespace {

using Kind = SdpaOperation::Kind;
using Index = std::array<int64_t, 4>;

float Rounded(float value, ElementType type) {
  if (type == ElementType::kBf16) return ToFloat(FromFloat<ActBf16>(value));
  return type == ElementType::kF16 ? ToFloat(FromFloat<ActFp16>(value)) : value;
}

template <typename Fn>
void ForEach(const Index& dims, const Fn& fn) {
  Index i;
  for (i[0] = 0; i[0] < dims[0]; ++i[0]) {
    for (i[1] = 0; i[1] < dims[1]; ++i[1]) {
      for (i[2] = 0; i[2] < dims[2]; ++i[2]) {
        for (i[3] = 0; i[3] < dims[3]; ++i[3]) fn(i);
      }
    }
  }
}

// Where `i` of a larger tensor is in one of `dims`: the same in a dimension of the same size, 0 in one of size 1, and
// its group's in one of fewer heads.
Index Within(const Index& i, const Index& larger, const Index& dims) {
  Index within;
  for (size_t axis = 0; axis < 4; ++axis) within[axis] = i[axis] * dims[axis] / larger[axis];
  return within;
}

class Interpreter {
 public:
  Interpreter(const SdpaGraph& graph, absl::Span<const SdpaBinding> bindings) : graph_(graph) {
    for (const SdpaBinding& binding : bindings) arrays_[binding.uid] = binding.address;
    for (const SdpaTensor& tensor : graph.tensors) {
      if (!tensor.is_virtual) continue;
      int64_t elems = 1;
      for (size_t axis = 0; axis < 4; ++axis) elems += (tensor.dims[axis] - 1) * tensor.strides[axis];
      // What is read before it is written is seen.
      virtual_[tensor.uid].assign(static_cast<size_t>(elems), std::numeric_limits<float>::quiet_NaN());
    }
  }

  void Run(const SdpaOperation& operation) {
    switch (operation.kind) {
      case Kind::kMatMul:
        return MatMul(operation);
      case Kind::kReshape:
        return Reshape(operation);
      case Kind::kReduceMax:
      case Kind::kReduceAdd:
        return Reduce(operation);
      default:
        return Pointwise(operation);
    }
  }

 private:
  // In elements.
  static int64_t Offset(const SdpaTensor& tensor, const Index& i) {
    int64_t offset = 0;
    for (size_t axis = 0; axis < 4; ++axis) offset += i[axis] * tensor.strides[axis];
    return offset;
  }

  float Get(const SdpaTensor& tensor, const Index& i) const {
    if (tensor.value.has_value()) return *tensor.value;
    const int64_t offset = Offset(tensor, i);
    if (tensor.is_virtual) return virtual_.at(tensor.uid)[static_cast<size_t>(offset)];
    const void* array = arrays_.at(tensor.uid);
    switch (tensor.type) {
      case ElementType::kBf16:
        return ToFloat(static_cast<const ActBf16*>(array)[offset]);
      case ElementType::kF16:
        return ToFloat(static_cast<const ActFp16*>(array)[offset]);
      case ElementType::kF32:
        return static_cast<const float*>(array)[offset];
      case ElementType::kI32:
        return static_cast<float>(static_cast<const int32_t*>(array)[offset]);
      case ElementType::kBool:
        break;
    }
    EPS_CHECK(false);
  }

  void Put(const SdpaTensor& tensor, const Index& i, float value) {
    const int64_t offset = Offset(tensor, i);
    if (tensor.is_virtual) {
      virtual_.at(tensor.uid)[static_cast<size_t>(offset)] = Rounded(value, tensor.type);
    } else if (tensor.type == ElementType::kBf16) {
      static_cast<ActBf16*>(arrays_.at(tensor.uid))[offset] = FromFloat<ActBf16>(value);
    } else if (tensor.type == ElementType::kF16) {
      static_cast<ActFp16*>(arrays_.at(tensor.uid))[offset] = FromFloat<ActFp16>(value);
    } else {
      EPS_CHECK(tensor.type == ElementType::kF32);
      static_cast<float*>(arrays_.at(tensor.uid))[offset] = value;
    }
  }

  void MatMul(const SdpaOperation& operation) {
    const SdpaTensor &a = graph_.tensor(operation.inputs[0]), &b = graph_.tensor(operation.inputs[1]);
    const SdpaTensor& c = graph_.tensor(operation.output);
    EPS_CHECK(a.dims[2] == c.dims[2] && b.dims[3] == c.dims[3] && a.dims[3] == b.dims[2]);
    ForEach(c.dims, [&](const Index& i) {
      const int64_t a_head = i[1] * a.dims[1] / c.dims[1], b_head = i[1] * b.dims[1] / c.dims[1];
      float sum = 0;
      for (int64_t k = 0; k < a.dims[3]; ++k) {
        sum += Get(a, {i[0], a_head, i[2], k}) * Get(b, {i[0], b_head, k, i[3]});
      }
      Put(c, i, sum);
    });
  }

  void Reshape(const SdpaOperation& operation) {
    const SdpaTensor &x = graph_.tensor(operation.inputs[0]), &y = graph_.tensor(operation.output);
    EPS_CHECK(y.is_virtual);
    if (!x.is_virtual) {
      SdpaTensor view = y;
      view.uid = x.uid;
      view.is_virtual = false;
      ForEach(y.dims, [&](const Index& i) { Put(y, i, Get(view, i)); });
      return;
    }
    std::vector<float>& to = virtual_.at(y.uid);
    EPS_CHECK(to.size() == virtual_.at(x.uid).size());
    std::transform(virtual_.at(x.uid).begin(), virtual_.at(x.uid).end(), to.begin(),
                   [&](float value) { return Rounded(value, y.type); });
  }

  void Reduce(const SdpaOperation& operation) {
    const SdpaTensor &x = graph_.tensor(operation.inputs[0]), &y = graph_.tensor(operation.output);
    const bool max = operation.kind == Kind::kReduceMax;
    std::map<Index, float> results;
    ForEach(x.dims, [&](const Index& i) {
      const float value = Get(x, i);
      const auto [result, first] = results.emplace(Within(i, x.dims, y.dims), value);
      if (first) return;
      if (!max) {
        result->second += value;
      } else if (!(value <= result->second)) {  // a NaN goes through
        result->second = std::isnan(result->second) ? result->second : value;
      }
    });
    for (const auto& [i, value] : results) Put(y, i, value);
  }

  void Pointwise(const SdpaOperation& operation) {
    const SdpaTensor& y = graph_.tensor(operation.output);
    ForEach(y.dims, [&](const Index& i) {
      const auto in = [&](size_t which) {
        const SdpaTensor& x = graph_.tensor(operation.inputs[which]);
        return Get(x, Within(i, y.dims, x.dims));
      };
      Put(y, i, Value(operation.kind, i, in));
    });
  }
  template <typename In>
  static float Value(Kind kind, const Index& i, const In& in) {
    switch (kind) {
      case Kind::kMultiply:
        return in(0) * in(1);
      case Kind::kAdd:
        return in(0) + in(1);
      case Kind::kSubtract:
        return in(0) - in(1);
      case Kind::kDivide:
        return in(0) / in(1);
      case Kind::kExp:
        return std::exp(in(0));
      case Kind::kLog:
        return std::log(in(0));
      case Kind::kRowIndex:
        return static_cast<float>(i[2]);
      case Kind::kColumnIndex:
        return static_cast<float>(i[3]);
      case Kind::kLess:
        return in(0) < in(1);
      case Kind::kGreater:
        return in(0) > in(1);
      case Kind::kGreaterEqual:
        return in(0) >= in(1);
      case Kind::kSelect:
        return in(2) != 0 ? in(0) : in(1);
      case Kind::kMatMul:
      case Kind::kReshape:
      case Kind::kReduceMax:
      case Kind::kReduceAdd:
        break;
    }
    EPS_CHECK(false);
  }

  const SdpaGraph& graph_;
  std::map<int64_t, void*> arrays_;
  std::map<int64_t, std::vector<float>> virtual_;
};

}  // namespace

void RunSdpaGraph(const SdpaGraph& graph, absl::Span<const SdpaBinding> bindings) {
  Interpreter interpreter(graph, bindings);
  for (const SdpaOperation& operation : graph.operations) interpreter.Run(operation);
}

}  // namespace eps::worker::cuda
