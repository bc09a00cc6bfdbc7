#include "gpu_worker/device/cuda/sdpa_graph.h"

#include <array>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/tensor/dtype.h"
#include "gpu_worker/device/cuda/sdpa_problem.h"

namespace eps::worker::cuda {
namespace {

using Kind = SdpaOperation::Kind;
using Dims = std::array<int64_t, 4>;

constexpr int64_t kColumnsOfTile = 128;  // of the largest that backward's engines have

ElementType ElementOf(Dtype act) {
  return act == Dtype::kF32 ? ElementType::kF32 : act == Dtype::kBf16 ? ElementType::kBf16 : ElementType::kF16;
}

Dims DenseStrides(const Dims& d) { return {d[1] * d[2] * d[3], d[2] * d[3], d[3], 1}; }

SdpaTensor Exchanged(SdpaTensor tensor) {
  std::swap(tensor.dims[2], tensor.dims[3]);
  std::swap(tensor.strides[2], tensor.strides[3]);
  return tensor;
}

class GraphBuilder {
 public:
  explicit GraphBuilder(const SdpaProblem& problem) : p_(problem) {}

  SdpaGraph Take() { return std::move(graph_); }

  int64_t Put(SdpaTensor tensor) {
    graph_.tensors.push_back(std::move(tensor));
    return graph_.tensors.back().uid;
  }
  int64_t Number(int64_t uid, float value, ElementType type = ElementType::kF32) {
    return Put({.uid = uid, .type = type, .value = value});
  }
  int64_t PutVirtual(SdpaTensor tensor) {
    tensor.uid = kFirstVirtual + num_virtual_++;
    tensor.is_virtual = true;
    return Put(tensor);
  }
  int64_t Virtual(const Dims& dims, ElementType type = ElementType::kF32) {
    return PutVirtual({.type = type, .dims = dims, .strides = DenseStrides(dims)});
  }

  // A part of qkv, or of dqkv: `first_head` is counted from the queries' first.
  SdpaTensor OfQkv(int64_t uid, int64_t heads) const {
    const int64_t row = (p_.heads_of_array() + 2 * p_.kv_heads_of_array()) * p_.D;
    return {.uid = uid,
            .type = ElementOf(p_.act),
            .dims = {p_.B, heads, p_.T, p_.D},
            .strides = {p_.T * row, p_.D, row, 1}};
  }
  SdpaTensor OfO(int64_t uid) const {
    return {.uid = uid, .type = ElementOf(p_.act), .dims = o_dims(), .strides = {p_.T * o_row(), p_.D, o_row(), 1}};
  }
  SdpaTensor OfRows(int64_t uid) const { return {.uid = uid, .dims = rows(), .strides = DenseStrides(rows())}; }
  // What says which probabilities there are.
  void PutMasks() {
    if (p_.documents) {
      const Dims dims = {p_.B, 1, p_.T, p_.T};
      Put({.uid = kUidBias, .type = ElementOf(p_.act), .dims = dims, .strides = DenseStrides(dims)});
    }
    if (drops()) {
      Put({.uid = kUidKept, .type = ElementOf(p_.act), .dims = score_dims(), .strides = DenseStrides(score_dims())});
    }
  }

  int64_t Apply(Kind kind, std::vector<int64_t> inputs, int64_t output) {
    graph_.operations.push_back({.kind = kind, .inputs = std::move(inputs), .output = output});
    return output;
  }
  int64_t ScaledScores(int64_t q, int64_t k_transposed) {
    const int64_t scores = Apply(Kind::kMatMul, {q, k_transposed}, Virtual(score_dims()));
    return Apply(Kind::kMultiply, {scores, kUidScale}, Virtual(score_dims()));
  }
  int64_t Row(int64_t scores) { return Index(Kind::kRowIndex, scores); }
  int64_t Column(int64_t scores) { return Index(Kind::kColumnIndex, scores); }
  // Scores where `kind` holds between a and b.
  int64_t MaskUnless(Kind kind, int64_t a, int64_t b, int64_t scores) {
    const int64_t seen = Apply(kind, {a, b}, Virtual(score_dims(), ElementType::kBool));
    return Apply(Kind::kSelect, {scores, kUidMasked, seen}, Virtual(score_dims()));
  }
  int64_t MaskDocuments(int64_t scores) {
    return p_.documents ? Apply(Kind::kAdd, {scores, kUidBias}, Virtual(score_dims())) : scores;
  }
  int64_t MaskPositions(int64_t scores) {
    if (!p_.causal) return scores;
    const int64_t row = Row(scores);
    const int64_t masked = MaskUnless(Kind::kGreaterEqual, row, Column(scores), scores);
    if (p_.window == 0) return masked;
    const int64_t end_of_rows = Apply(Kind::kAdd, {Column(masked), kUidWindow}, Virtual(score_dims()));
    return MaskUnless(Kind::kGreater, end_of_rows, Row(masked), masked);
  }
  int64_t MaskColumnsBehind(int64_t scores) {
    return masks_columns_behind() ? MaskUnless(Kind::kLess, Column(scores), kUidColumns, scores) : scores;
  }
  bool masks_columns_behind() const { return !p_.causal && p_.T % kColumnsOfTile != 0; }
  void PutNumbers(bool is_backward) {
    const bool columns_behind = is_backward && masks_columns_behind();
    Number(kUidScale, static_cast<float>(p_.scale));
    if (p_.causal || columns_behind) Number(kUidMasked, -std::numeric_limits<float>::infinity());
    if (columns_behind) Number(kUidColumns, static_cast<float>(p_.T), ElementType::kI32);
    if (p_.window > 0) Number(kUidWindow, static_cast<float>(p_.window));
    if (drops()) Number(kUidOne, 1);
  }
  // x, (B, H, T, T), times a tensor or a number.
  int64_t Times(int64_t x, int64_t factor, ElementType type = ElementType::kF32) {
    return Apply(Kind::kMultiply, {x, factor}, Virtual(score_dims(), type));
  }

  // x, (B, H, T, T), as act and transposed: for a product that sums over its rows.
  int64_t Transposed(int64_t x) {
    const SdpaTensor scores = {.type = ElementOf(p_.act), .dims = score_dims(), .strides = DenseStrides(score_dims())};
    return Apply(Kind::kReshape, {x}, PutVirtual(Exchanged(scores)));
  }
  // Of keys or of values: output = (x transposed) y, added over the query heads that use the same one.
  void KvGradient(int64_t x, int64_t y, int64_t output) {
    const bool shared = p_.H != p_.kv_heads;
    const int64_t transposed = Transposed(x);
    const int64_t of_each = shared ? Virtual(o_dims(), ElementOf(p_.act)) : output;
    Apply(Kind::kMatMul, {transposed, y}, of_each);
    if (shared) Apply(Kind::kReduceAdd, {of_each}, output);
  }

  int64_t o_row() const { return p_.heads_of_array() * p_.D; }
  Dims rows() const { return {p_.B, p_.H, p_.T, 1}; }
  Dims score_dims() const { return {p_.B, p_.H, p_.T, p_.T}; }
  Dims o_dims() const { return {p_.B, p_.H, p_.T, p_.D}; }
  bool drops() const { return p_.dropout > 0; }

 private:
  int64_t Index(Kind kind, int64_t scores) { return Apply(kind, {scores}, Virtual(score_dims(), ElementType::kI32)); }

  const SdpaProblem p_;
  SdpaGraph graph_;
  int64_t num_virtual_ = 0;
};

}  // namespace

const SdpaTensor& SdpaGraph::tensor(int64_t uid) const {
  for (const SdpaTensor& tensor : tensors) {
    if (tensor.uid == uid) return tensor;
  }
  EPS_CHECK(false);
}

absl::StatusOr<SdpaGraph> SdpaForwardGraph(const SdpaProblem& problem) {
  EPS_RETURN_IF_ERROR(CheckSdpaProblem(problem));
  GraphBuilder g(problem);
  g.PutMasks();
  g.PutNumbers(/*is_backward=*/false);
  const int64_t q = g.Put(g.OfQkv(kUidQ, problem.H));
  const int64_t k_transposed = g.Put(Exchanged(g.OfQkv(kUidK, problem.kv_heads)));
  const int64_t v = g.Put(g.OfQkv(kUidV, problem.kv_heads));
  const int64_t o = g.Put(g.OfO(kUidO));
  const int64_t stats = g.Put(g.OfRows(kUidStats));

  const int64_t scores = g.MaskPositions(g.MaskDocuments(g.ScaledScores(q, k_transposed)));
  const int64_t max = g.Apply(Kind::kReduceMax, {scores}, g.Virtual(g.rows()));
  const int64_t less_max = g.Apply(Kind::kSubtract, {scores, max}, g.Virtual(g.score_dims()));
  const int64_t exp = g.Apply(Kind::kExp, {less_max}, g.Virtual(g.score_dims()));
  const int64_t sum = g.Apply(Kind::kReduceAdd, {exp}, g.Virtual(g.rows()));
  g.Apply(Kind::kAdd, {max, g.Apply(Kind::kLog, {sum}, g.Virtual(g.rows()))}, stats);
  const ElementType act = ElementOf(problem.act);
  int64_t p = g.Apply(Kind::kDivide, {exp, sum}, g.Virtual(g.score_dims(), g.drops() ? ElementType::kF32 : act));
  if (g.drops()) p = g.Times(g.Times(p, kUidOne), kUidKept, act);
  g.Apply(Kind::kMatMul, {p, v}, o);
  return g.Take();
}

absl::StatusOr<SdpaGraph> SdpaBackwardGraph(const SdpaProblem& problem) {
  EPS_RETURN_IF_ERROR(CheckSdpaProblem(problem));
  GraphBuilder g(problem);
  g.PutMasks();
  g.PutNumbers(/*is_backward=*/true);
  const int64_t one = g.Number(kUidOneDelta, 1);
  const int64_t q = g.Put(g.OfQkv(kUidQ, problem.H));
  const int64_t k_transposed = g.Put(Exchanged(g.OfQkv(kUidK, problem.kv_heads)));
  const int64_t v_transposed = g.Put(Exchanged(g.OfQkv(kUidV, problem.kv_heads)));
  const int64_t o = g.Put(g.OfO(kUidO));
  const int64_t stats = g.Put(g.OfRows(kUidStats));
  const int64_t d_o = g.Put(g.OfO(kUidDO));
  const int64_t d_q = g.Put(g.OfQkv(kUidDQ, problem.H));
  const int64_t d_k = g.Put(g.OfQkv(kUidDK, problem.kv_heads));
  const int64_t d_v = g.Put(g.OfQkv(kUidDV, problem.kv_heads));
  const int64_t delta = g.Put(g.OfRows(kUidDelta));

  const int64_t d_o_times_o = g.Apply(Kind::kMultiply, {d_o, o}, g.Virtual(g.o_dims()));
  const int64_t of_rows = g.Apply(Kind::kReduceAdd, {d_o_times_o}, g.Virtual(g.rows()));
  g.Apply(Kind::kMultiply, {of_rows, one}, delta);  // also without dropout: the pattern has it

  const int64_t scores = g.MaskDocuments(g.ScaledScores(q, k_transposed));
  const int64_t less_stats = g.Apply(Kind::kSubtract, {scores, stats}, g.Virtual(g.score_dims()));
  const int64_t seen = g.MaskColumnsBehind(g.MaskPositions(less_stats));
  const int64_t p = g.Apply(Kind::kExp, {seen}, g.Virtual(g.score_dims()));
  g.KvGradient(g.drops() ? g.Times(g.Times(p, kUidKept), kUidOne) : p, d_o, d_v);

  int64_t d_p = g.Apply(Kind::kMatMul, {d_o, v_transposed}, g.Virtual(g.score_dims()));
  if (g.drops()) d_p = g.Times(d_p, kUidKept);
  const int64_t less_delta = g.Apply(Kind::kSubtract, {d_p, delta}, g.Virtual(g.score_dims()));
  int64_t d_s = g.Times(less_delta, p);
  if (g.drops()) d_s = g.Times(d_s, kUidOne);
  d_s = g.Times(d_s, kUidScale);
  g.KvGradient(d_s, q, d_k);

  const int64_t k = g.Apply(Kind::kReshape, {k_transposed}, g.PutVirtual(g.OfQkv(kNoUid, problem.kv_heads)));
  g.Apply(Kind::kMatMul, {d_s, k}, d_q);
  return g.Take();
}

absl::StatusOr<std::vector<SdpaBinding>> BindSdpa(const SdpaProblem& problem, const SdpaGraph& graph,
                                                  const SdpaArrays& arrays, int64_t first_kv_head,
                                                  const SdpaMasks& masks) {
  const int64_t head_bytes = problem.D * SizeOf(problem.act);
  const int64_t first_head = first_kv_head * problem.sharers();
  const int64_t q_bytes = first_head * head_bytes;
  const int64_t k_bytes = (problem.heads_of_array() + first_kv_head) * head_bytes;
  const int64_t v_bytes = k_bytes + problem.kv_heads_of_array() * head_bytes;
  const int64_t rows_bytes = first_head * problem.T * int64_t{sizeof(float)};
  const auto at = [](const void* array, int64_t num_bytes) -> void* {
    return array == nullptr ? nullptr : static_cast<char*>(const_cast<void*>(array)) + num_bytes;
  };
  const auto array_of = [&](int64_t uid) -> void* {
    switch (uid) {
      case kUidQ:
        return at(arrays.qkv, q_bytes);
      case kUidK:
        return at(arrays.qkv, k_bytes);
      case kUidV:
        return at(arrays.qkv, v_bytes);
      case kUidO:
        return at(arrays.o, q_bytes);
      case kUidStats:
        return at(arrays.lse, rows_bytes);
      case kUidDO:
        return at(arrays.d_o, q_bytes);
      case kUidDQ:
        return at(arrays.dqkv, q_bytes);
      case kUidDK:
        return at(arrays.dqkv, k_bytes);
      case kUidDV:
        return at(arrays.dqkv, v_bytes);
      case kUidDelta:
        return at(arrays.delta, rows_bytes);
      case kUidBias:
        return at(masks.bias, 0);
      case kUidKept:
        return at(masks.kept, 0);
      default:
        return nullptr;
    }
  };
  std::vector<SdpaBinding> bindings;
  for (const SdpaTensor& tensor : graph.tensors) {
    if (tensor.is_virtual || tensor.value.has_value()) continue;
    void* const address = array_of(tensor.uid);
    if (address == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat("attention: no array for tensor ", tensor.uid));
    }
    bindings.push_back({tensor.uid, address});
  }
  return bindings;
}

}  // namespace eps::worker::cuda
