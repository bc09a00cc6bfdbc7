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

int64_t Offset(const Index& strides, const Index& i) {
  return i[0] * strides[0] + i[1] * strides[1] + i[2] * strides[2] + i[3] * strides[3];
}

// A tensor as an operation reads it: in fp32, looked up and converted once.
struct Operand {
  float At(const Index& i) const { return data[Offset(strides, i)]; }

  Index dims, strides;
  std::vector<float> converted;  // what `data` points to, unless that is the graph's own
  const float* data = nullptr;
};

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
  Operand Read(const SdpaTensor& tensor) const {
    Operand operand{.dims = tensor.dims, .strides = tensor.strides};
    if (tensor.is_virtual) {
      operand.data = virtual_.at(tensor.uid).data();
      return operand;
    }
    if (tensor.value.has_value()) {
      operand.strides = {0, 0, 0, 0};
      operand.converted = {*tensor.value};
    } else {
      operand.strides = {tensor.dims[1] * tensor.dims[2] * tensor.dims[3], tensor.dims[2] * tensor.dims[3],
                         tensor.dims[3], 1};
      operand.converted = Convert(tensor, arrays_.at(tensor.uid));
    }
    operand.data = operand.converted.data();
    return operand;
  }

  // Its elements alone, row by row: what lies between them may be another's.
  static std::vector<float> Convert(const SdpaTensor& tensor, const void* array) {
    const auto convert = [&](const auto& to_float) {
      std::vector<float> values;
      values.reserve(static_cast<size_t>(tensor.dims[0] * tensor.dims[1] * tensor.dims[2] * tensor.dims[3]));
      ForEach(tensor.dims, [&](const Index& i) { values.push_back(to_float(Offset(tensor.strides, i))); });
      return values;
    };
    switch (tensor.type) {
      case ElementType::kBf16:
        return convert([array](int64_t i) { return ToFloat(static_cast<const ActBf16*>(array)[i]); });
      case ElementType::kF16:
        return convert([array](int64_t i) { return ToFloat(static_cast<const ActFp16*>(array)[i]); });
      case ElementType::kF32:
        return convert([array](int64_t i) { return static_cast<const float*>(array)[i]; });
      case ElementType::kI32:
        return convert([array](int64_t i) { return static_cast<float>(static_cast<const int32_t*>(array)[i]); });
      case ElementType::kBool:
        break;
    }
    EPS_CHECK(false);
  }

  // Puts what `value(i)` gives everywhere in `tensor`, rounded to its type.
  template <typename Fn>
  void Write(const SdpaTensor& tensor, const Fn& value) {
    const auto put = [&](const auto& store) {
      ForEach(tensor.dims, [&](const Index& i) { store(Offset(tensor.strides, i), value(i)); });
    };
    if (tensor.is_virtual) {
      float* const to = virtual_.at(tensor.uid).data();
      return put([to, type = tensor.type](int64_t i, float x) { to[i] = Rounded(x, type); });
    }
    void* const array = arrays_.at(tensor.uid);
    switch (tensor.type) {
      case ElementType::kBf16:
        return put([array](int64_t i, float x) { static_cast<ActBf16*>(array)[i] = FromFloat<ActBf16>(x); });
      case ElementType::kF16:
        return put([array](int64_t i, float x) { static_cast<ActFp16*>(array)[i] = FromFloat<ActFp16>(x); });
      default:
        EPS_CHECK(tensor.type == ElementType::kF32);
        return put([array](int64_t i, float x) { static_cast<float*>(array)[i] = x; });
    }
  }

  void MatMul(const SdpaOperation& operation) {
    const Operand a = Read(graph_.tensor(operation.inputs[0])), b = Read(graph_.tensor(operation.inputs[1]));
    const SdpaTensor& c = graph_.tensor(operation.output);
    EPS_CHECK(a.dims[2] == c.dims[2] && b.dims[3] == c.dims[3] && a.dims[3] == b.dims[2]);
    std::vector<float> row(static_cast<size_t>(c.dims[3]));
    Write(c, [&](const Index& i) {
      if (i[3] == 0) {  // the first of a row: the loop over columns is the inner one, and each sum's order the same
        const float* const a_row = a.data + Offset(a.strides, {i[0], i[1] * a.dims[1] / c.dims[1], i[2], 0});
        const float* const b_head = b.data + Offset(b.strides, {i[0], i[1] * b.dims[1] / c.dims[1], 0, 0});
        std::fill(row.begin(), row.end(), 0.0f);
        for (int64_t k = 0; k < a.dims[3]; ++k) {
          const float factor = a_row[k * a.strides[3]];
          const float* const b_row = b_head + k * b.strides[2];
          for (size_t n = 0; n < row.size(); ++n) row[n] += factor * b_row[static_cast<int64_t>(n) * b.strides[3]];
        }
      }
      return row[static_cast<size_t>(i[3])];
    });
  }

  void Reshape(const SdpaOperation& operation) {
    const SdpaTensor &x = graph_.tensor(operation.inputs[0]), &y = graph_.tensor(operation.output);
    EPS_CHECK(y.is_virtual);
    if (!x.is_virtual) {
      SdpaTensor view = y;
      view.uid = x.uid;
      view.is_virtual = false;
      const Operand from = Read(view);
      return Write(y, [&](const Index& i) { return from.At(i); });
    }
    std::vector<float>& to = virtual_.at(y.uid);
    EPS_CHECK(to.size() == virtual_.at(x.uid).size());
    std::transform(virtual_.at(x.uid).begin(), virtual_.at(x.uid).end(), to.begin(),
                   [&](float value) { return Rounded(value, y.type); });
  }

  void Reduce(const SdpaOperation& operation) {
    const Operand x = Read(graph_.tensor(operation.inputs[0]));
    const SdpaTensor& y = graph_.tensor(operation.output);
    const bool max = operation.kind == Kind::kReduceMax;
    std::map<Index, float> results;
    ForEach(x.dims, [&](const Index& i) {
      const float value = x.At(i);
      const auto [result, first] = results.emplace(Within(i, x.dims, y.dims), value);
      if (first) return;
      if (!max) {
        result->second += value;
      } else if (!(value <= result->second)) {  // a NaN goes through
        result->second = std::isnan(result->second) ? result->second : value;
      }
    });
    Write(y, [&](const Index& i) { return results.at(i); });
  }

  void Pointwise(const SdpaOperation& operation) {
    const SdpaTensor& y = graph_.tensor(operation.output);
    std::vector<Operand> inputs;
    for (const int64_t uid : operation.inputs) inputs.push_back(uid == kNoUid ? Operand() : Read(graph_.tensor(uid)));
    Write(y, [&](const Index& i) {
      const auto in = [&](size_t which) {
        const Operand& x = inputs[which];
        return x.At(x.dims == y.dims ? i : Within(i, y.dims, x.dims));
      };
      return Value(operation.kind, i, in);
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
