#include "gpu_worker/device/cuda/sdpa_graph.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/tensor/dtype.h"
#include "common/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gpu_worker/device/cuda/emulator/sdpa_interpreter.h"
#include "gpu_worker/device/cuda/sdpa_problem.h"
#include "gtest/gtest.h"

namespace eps::worker::cuda {
namespace {

using ::testing::ElementsAre;
using ::testing::UnorderedElementsAre;
using Kind = SdpaOperation::Kind;

// ---- what is described ----

const SdpaProblem kGraphProblem = {.B = 2, .T = 6, .H = 4, .kv_heads = 4, .D = 8, .scale = 0.25};

int64_t Count(const SdpaGraph& graph, Kind kind) {
  return std::count_if(graph.operations.begin(), graph.operations.end(),
                       [&](const SdpaOperation& operation) { return operation.kind == kind; });
}
std::set<int64_t> RealUids(const SdpaGraph& graph) {
  std::set<int64_t> uids;
  for (const SdpaTensor& tensor : graph.tensors) {
    if (!tensor.is_virtual && !tensor.value.has_value()) uids.insert(tensor.uid);
  }
  return uids;
}

TEST(SdpaGraphTest, ForwardsTensorsLieAsTheKernelTableHasThem) {
  ASSERT_OK_AND_ASSIGN(const SdpaGraph graph, SdpaForwardGraph(kGraphProblem));
  EXPECT_THAT(RealUids(graph), UnorderedElementsAre(kUidQ, kUidK, kUidV, kUidO, kUidStats));
  // qkv is (2, 6, 3, 4, 8): a token is 96 elements.
  const SdpaTensor &q = graph.tensor(kUidQ), &k = graph.tensor(kUidK), &v = graph.tensor(kUidV);
  EXPECT_THAT(q.dims, ElementsAre(2, 4, 6, 8));
  EXPECT_THAT(q.strides, ElementsAre(576, 8, 96, 1));
  EXPECT_THAT(k.dims, ElementsAre(2, 4, 8, 6));  // transposed
  EXPECT_THAT(k.strides, ElementsAre(576, 8, 1, 96));
  EXPECT_THAT(v.dims, ElementsAre(2, 4, 6, 8));
  EXPECT_THAT(v.strides, ElementsAre(576, 8, 96, 1));
  const SdpaTensor &o = graph.tensor(kUidO), &stats = graph.tensor(kUidStats);
  EXPECT_THAT(o.dims, ElementsAre(2, 4, 6, 8));
  EXPECT_THAT(o.strides, ElementsAre(192, 8, 32, 1));
  EXPECT_THAT(stats.dims, ElementsAre(2, 4, 6, 1));
  EXPECT_THAT(stats.strides, ElementsAre(24, 6, 1, 1));
  for (const int64_t uid : {kUidQ, kUidK, kUidV, kUidO}) EXPECT_EQ(graph.tensor(uid).type, ElementType::kBf16) << uid;
  EXPECT_EQ(stats.type, ElementType::kF32);
  SdpaProblem in_fp16 = kGraphProblem;
  in_fp16.act = Dtype::kF16;
  ASSERT_OK_AND_ASSIGN(const SdpaGraph same, SdpaForwardGraph(in_fp16));
  for (const int64_t uid : {kUidQ, kUidK, kUidV, kUidO}) EXPECT_EQ(same.tensor(uid).type, ElementType::kF16) << uid;
  EXPECT_EQ(graph.tensor(kUidScale).value, 0.25f);
  EXPECT_EQ(graph.tensor(kUidMasked).value, -std::numeric_limits<float>::infinity());
}

TEST(SdpaGraphTest, BackwardsTensorsLieAsTheKernelTableHasThem) {
  ASSERT_OK_AND_ASSIGN(const SdpaGraph graph, SdpaBackwardGraph(kGraphProblem));
  EXPECT_THAT(RealUids(graph),
              UnorderedElementsAre(kUidQ, kUidK, kUidV, kUidO, kUidStats, kUidDO, kUidDQ, kUidDK, kUidDV, kUidDelta));
  for (const int64_t uid : {kUidQ, kUidDQ, kUidDK, kUidDV}) {
    EXPECT_THAT(graph.tensor(uid).dims, ElementsAre(2, 4, 6, 8)) << uid;
    EXPECT_THAT(graph.tensor(uid).strides, ElementsAre(576, 8, 96, 1)) << uid;
    EXPECT_EQ(graph.tensor(uid).type, ElementType::kBf16) << uid;
  }
  for (const int64_t uid : {kUidK, kUidV}) {  // both transposed
    EXPECT_THAT(graph.tensor(uid).dims, ElementsAre(2, 4, 8, 6)) << uid;
    EXPECT_THAT(graph.tensor(uid).strides, ElementsAre(576, 8, 1, 96)) << uid;
  }
  for (const int64_t uid : {kUidO, kUidDO}) EXPECT_THAT(graph.tensor(uid).strides, ElementsAre(192, 8, 32, 1)) << uid;
  for (const int64_t uid : {kUidStats, kUidDelta}) {
    EXPECT_THAT(graph.tensor(uid).strides, ElementsAre(24, 6, 1, 1)) << uid;
    EXPECT_EQ(graph.tensor(uid).type, ElementType::kF32) << uid;
  }
  // Of what is summed over blocks, nothing is an array that they would add to: the bits are the same each time.
  EXPECT_EQ(Count(graph, Kind::kMatMul), 5);
  EXPECT_EQ(graph.operations.back().kind, Kind::kMatMul);
  EXPECT_EQ(graph.operations.back().output, kUidDQ);
}

TEST(SdpaGraphTest, RowsSumsArePackedAlsoOfSomeHeads) {
  SdpaProblem some = kGraphProblem;
  some.B = 1;
  some.H = some.kv_heads = 2;
  some.array_H = some.array_kv_heads = 4;
  ASSERT_OK_AND_ASSIGN(const SdpaGraph forward, SdpaForwardGraph(some));
  ASSERT_OK_AND_ASSIGN(const SdpaGraph backward, SdpaBackwardGraph(some));
  EXPECT_THAT(forward.tensor(kUidQ).strides, ElementsAre(576, 8, 96, 1)) << "the rows of an array of 4 heads";
  EXPECT_THAT(forward.tensor(kUidStats).strides, ElementsAre(12, 6, 1, 1));
  for (const int64_t uid : {kUidStats, kUidDelta}) {
    EXPECT_THAT(backward.tensor(uid).strides, ElementsAre(12, 6, 1, 1)) << uid;
  }
}

TEST(SdpaGraphTest, MasksAreOnlyThereWhereTheyAreAskedFor) {
  for (const auto make : {&SdpaForwardGraph, &SdpaBackwardGraph}) {
    const auto expect_masks = [&](const SdpaProblem& problem, int64_t less, int64_t greater, int64_t greater_equal) {
      ASSERT_OK_AND_ASSIGN(const SdpaGraph graph, make(problem));
      EXPECT_EQ(Count(graph, Kind::kLess), less);
      EXPECT_EQ(Count(graph, Kind::kGreater), greater);
      EXPECT_EQ(Count(graph, Kind::kGreaterEqual), greater_equal);
      EXPECT_EQ(Count(graph, Kind::kSelect), less + greater + greater_equal);
      EXPECT_EQ(RealUids(graph).count(kUidBias), problem.documents ? 1u : 0u);
      const bool masks = less + greater + greater_equal > 0;
      EXPECT_EQ(std::any_of(graph.tensors.begin(), graph.tensors.end(),
                            [](const SdpaTensor& tensor) { return tensor.uid == kUidMasked; }),
                masks);
    };
    SdpaProblem problem = kGraphProblem;
    expect_masks(problem, 0, 0, 1);
    problem.window = 3;
    expect_masks(problem, 0, 1, 1);
    problem.documents = true;
    expect_masks(problem, 0, 1, 1);
    problem.window = 0;
    expect_masks(problem, 0, 0, 1);
    problem.causal = false;
    problem.T = 128;  // else backward masks what is behind it
    expect_masks(problem, 0, 0, 0);
    problem.documents = false;
    expect_masks(problem, 0, 0, 0);
  }
}

TEST(SdpaGraphTest, BackwardThatIsNotCausalMasksColumnsBehindTheLastTile) {
  SdpaProblem problem = kGraphProblem;
  problem.causal = false;
  ASSERT_OK_AND_ASSIGN(const SdpaGraph forward, SdpaForwardGraph(problem));
  EXPECT_EQ(Count(forward, Kind::kSelect), 0);
  ASSERT_OK_AND_ASSIGN(const SdpaGraph backward, SdpaBackwardGraph(problem));
  EXPECT_EQ(Count(backward, Kind::kLess), 1);
  EXPECT_EQ(Count(backward, Kind::kSelect), 1);
  EXPECT_EQ(backward.tensor(kUidColumns).value, 6.0f);
}

// What the library's engines recognise is an order of operations, of which the interpreter would take many.
TEST(SdpaGraphTest, TheOrderIsThatOfTheLibrarysFrontEnd) {
  SdpaProblem problem = kGraphProblem;
  problem.window = 3;
  problem.documents = true;
  problem.dropout = 0.2;
  const auto kinds = [](const SdpaGraph& graph) {
    std::vector<Kind> of_graph;
    for (const SdpaOperation& operation : graph.operations) of_graph.push_back(operation.kind);
    return of_graph;
  };
  ASSERT_OK_AND_ASSIGN(const SdpaGraph forward, SdpaForwardGraph(problem));
  EXPECT_THAT(kinds(forward),
              ElementsAre(Kind::kMatMul, Kind::kMultiply,                                           // Q K^T, scale
                          Kind::kAdd,                                                               // documents
                          Kind::kRowIndex, Kind::kColumnIndex, Kind::kGreaterEqual, Kind::kSelect,  // causal
                          Kind::kColumnIndex, Kind::kAdd, Kind::kRowIndex, Kind::kGreater, Kind::kSelect,  // window
                          Kind::kReduceMax, Kind::kSubtract, Kind::kExp, Kind::kReduceAdd, Kind::kLog, Kind::kAdd,
                          Kind::kDivide, Kind::kMultiply, Kind::kMultiply,  // one, kept
                          Kind::kMatMul));
  EXPECT_EQ(forward.operations[19].inputs[1], kUidOne);
  EXPECT_EQ(forward.operations[20].inputs[1], kUidKept);
  ASSERT_OK_AND_ASSIGN(const SdpaGraph backward, SdpaBackwardGraph(problem));
  EXPECT_THAT(kinds(backward),
              ElementsAre(Kind::kMultiply, Kind::kReduceAdd, Kind::kMultiply,                       // delta
                          Kind::kMatMul, Kind::kMultiply,                                           // Q K^T, scale
                          Kind::kAdd,                                                               // documents
                          Kind::kSubtract,                                                          // stats
                          Kind::kRowIndex, Kind::kColumnIndex, Kind::kGreaterEqual, Kind::kSelect,  // causal
                          Kind::kColumnIndex, Kind::kAdd, Kind::kRowIndex, Kind::kGreater, Kind::kSelect,  // window
                          Kind::kExp, Kind::kMultiply, Kind::kMultiply,                                    // kept, one
                          Kind::kReshape, Kind::kMatMul,                                                   // dV
                          Kind::kMatMul, Kind::kMultiply, Kind::kSubtract, Kind::kMultiply,  // dP, kept, delta, P
                          Kind::kMultiply, Kind::kMultiply,                                  // one, scale
                          Kind::kReshape, Kind::kMatMul, Kind::kReshape, Kind::kMatMul));    // dK; dQ
  EXPECT_EQ(backward.operations[17].inputs[1], kUidKept);
  EXPECT_EQ(backward.operations[18].inputs[1], kUidOne);
  EXPECT_EQ(backward.operations[22].inputs[1], kUidKept);
  EXPECT_EQ(backward.operations[25].inputs[1], kUidOne);
}

TEST(SdpaGraphTest, DocumentsAreABiasOfAllHeads) {
  SdpaProblem problem = kGraphProblem;
  problem.documents = true;
  problem.causal = false;
  for (const auto make : {&SdpaForwardGraph, &SdpaBackwardGraph}) {
    ASSERT_OK_AND_ASSIGN(const SdpaGraph graph, make(problem));
    EXPECT_EQ(graph.tensor(kUidBias).type, ElementType::kBf16);
    EXPECT_THAT(graph.tensor(kUidBias).dims, ElementsAre(2, 1, 6, 6));
    EXPECT_THAT(graph.tensor(kUidBias).strides, ElementsAre(36, 36, 6, 1));
  }
}

TEST(SdpaGraphTest, DropoutIsAnArrayOfFactors) {
  SdpaProblem problem = kGraphProblem;
  problem.dropout = 0.2;
  ASSERT_OK_AND_ASSIGN(const SdpaGraph forward, SdpaForwardGraph(problem));
  ASSERT_OK_AND_ASSIGN(const SdpaGraph backward, SdpaBackwardGraph(problem));
  for (const SdpaGraph& graph : {forward, backward}) {
    EXPECT_EQ(graph.tensor(kUidKept).type, ElementType::kBf16);
    EXPECT_THAT(graph.tensor(kUidKept).dims, ElementsAre(2, 4, 6, 6));
    EXPECT_THAT(graph.tensor(kUidKept).strides, ElementsAre(144, 36, 6, 1));
    EXPECT_EQ(graph.tensor(kUidOne).value, 1.0f);
  }
  EXPECT_EQ(backward.tensor(kUidOneDelta).value, 1.0f);
  ASSERT_OK_AND_ASSIGN(const SdpaGraph without, SdpaBackwardGraph(kGraphProblem));
  EXPECT_EQ(RealUids(without).count(kUidKept), 0u);
  EXPECT_EQ(without.tensor(kUidOneDelta).value, 1.0f);
}

TEST(SdpaGraphTest, SharedHeadsAreFewer) {
  SdpaProblem problem = kGraphProblem;
  problem.kv_heads = 2;
  ASSERT_OK_AND_ASSIGN(const SdpaGraph graph, SdpaBackwardGraph(problem));
  // A token is 4 + 2 + 2 heads of 8.
  EXPECT_THAT(graph.tensor(kUidQ).strides, ElementsAre(384, 8, 64, 1));
  EXPECT_THAT(graph.tensor(kUidDK).dims, ElementsAre(2, 2, 6, 8));
  EXPECT_THAT(graph.tensor(kUidDK).strides, ElementsAre(384, 8, 64, 1));
  EXPECT_EQ(Count(graph, Kind::kReduceAdd), 3);  // delta, dK and dV
}

TEST(SdpaGraphTest, UidsAreUniqueAndDefinedBeforeTheyAreUsed) {
  for (const auto make : {&SdpaForwardGraph, &SdpaBackwardGraph}) {
    for (const bool all : {false, true}) {
      SdpaProblem problem = kGraphProblem;
      problem.kv_heads = 1;
      if (all) {
        problem.window = 3;
        problem.documents = true;
        problem.dropout = 0.2;
      }
      ASSERT_OK_AND_ASSIGN(const SdpaGraph graph, make(problem));
      EXPECT_EQ(*make(problem), graph);
      std::set<int64_t> uids, made;
      for (const SdpaTensor& tensor : graph.tensors) {
        EXPECT_TRUE(uids.insert(tensor.uid).second) << tensor.uid;
        EXPECT_EQ(tensor.is_virtual, tensor.uid >= kFirstVirtual);
        if (!tensor.is_virtual) made.insert(tensor.uid);
      }
      for (const SdpaOperation& operation : graph.operations) {
        for (const int64_t input : operation.inputs) EXPECT_EQ(made.count(input), 1u) << input;
        made.insert(operation.output);
      }
      EXPECT_EQ(made, uids);
    }
  }
}

TEST(SdpaGraphTest, WhatIsNoProblemHasNoGraph) {
  for (const auto make : {&SdpaForwardGraph, &SdpaBackwardGraph}) {
    SdpaProblem problem = kGraphProblem;
    problem.kv_heads = 3;
    EXPECT_THAT(make(problem), StatusIs(absl::StatusCode::kInvalidArgument, "kv_heads 3"));
  }
}

TEST(SdpaGraphTest, ArraysAreBoundToTheirTensors) {
  SdpaProblem problem = kGraphProblem;
  problem.kv_heads = 2;
  std::vector<uint16_t> qkv(2 * 6 * 64), dqkv(qkv.size()), o(2 * 6 * 32), d_o(o.size());
  std::vector<float> lse(2 * 4 * 6), delta(lse.size());
  SdpaArrays arrays = {.qkv = qkv.data(),
                       .o = o.data(),
                       .lse = lse.data(),
                       .d_o = d_o.data(),
                       .dqkv = dqkv.data(),
                       .delta = delta.data()};
  ASSERT_OK_AND_ASSIGN(const SdpaGraph graph, SdpaBackwardGraph(problem));
  ASSERT_OK_AND_ASSIGN(std::vector<SdpaBinding> bindings, BindSdpa(problem, graph, arrays));
  const auto bound = [&](int64_t uid) -> const void* {
    for (const SdpaBinding& binding : bindings) {
      if (binding.uid == uid) return binding.address;
    }
    return nullptr;
  };
  EXPECT_EQ(bound(kUidQ), qkv.data());
  EXPECT_EQ(bound(kUidK), &qkv[4 * 8]);
  EXPECT_EQ(bound(kUidV), &qkv[6 * 8]);
  EXPECT_EQ(bound(kUidDQ), dqkv.data());
  EXPECT_EQ(bound(kUidDK), &dqkv[4 * 8]);
  EXPECT_EQ(bound(kUidDV), &dqkv[6 * 8]);
  EXPECT_EQ(bound(kUidO), o.data());
  EXPECT_EQ(bound(kUidDO), d_o.data());
  EXPECT_EQ(bound(kUidStats), lse.data());
  EXPECT_EQ(bound(kUidDelta), delta.data());
  EXPECT_EQ(bindings.size(), 10u);

  arrays.delta = nullptr;
  EXPECT_THAT(BindSdpa(problem, graph, arrays), StatusIs(absl::StatusCode::kInvalidArgument, "no array"));
  arrays.delta = delta.data();
  problem.documents = true;
  problem.dropout = 0.5;
  problem.causal = false;
  ASSERT_OK_AND_ASSIGN(const SdpaGraph masked, SdpaBackwardGraph(problem));
  EXPECT_THAT(BindSdpa(problem, masked, arrays), StatusIs(absl::StatusCode::kInvalidArgument, "no array"));
  const uint16_t bias = 0, kept = 0;
  for (const SdpaMasks& masks : {SdpaMasks{.bias = &bias}, SdpaMasks{.kept = &kept}}) {
    EXPECT_THAT(BindSdpa(problem, masked, arrays, 0, masks), StatusIs(absl::StatusCode::kInvalidArgument, "no array"));
  }
  ASSERT_OK_AND_ASSIGN(bindings, BindSdpa(problem, masked, arrays, 0, {.bias = &bias, .kept = &kept}));
  EXPECT_EQ(bound(kUidBias), &bias);
  EXPECT_EQ(bound(kUidKept), &kept);
}

// ---- what it computes: the graph, operation by operation, against attention's definition in fp64 ----

// Arrays of a problem in fp32, of random numbers, and its results.
struct Data {
  explicit Data(const SdpaProblem& p) : problem(p) {
    std::mt19937 random(7);
    const auto fill = [&](int64_t n) {
      std::vector<float> x(static_cast<size_t>(n));
      for (float& v : x) v = std::uniform_real_distribution<float>(-1, 1)(random);
      return x;
    };
    qkv = fill(p.B * p.T * row());
    d_o = fill(p.B * p.T * p.H * p.D);
    dqkv.resize(qkv.size());
    o.resize(d_o.size());
    lse.resize(static_cast<size_t>(p.B * p.H * p.T));
    delta = lse;
    // Documents of 3 positions, begun at another one in each sample.
    for (int64_t b = 0; b < p.B; ++b) {
      for (int64_t t = 0; t < p.T; ++t) {
        const int64_t start = (t + b) / 3 * 3 - b;
        first.push_back(static_cast<int32_t>(std::max<int64_t>(start, 0)));
        end.push_back(static_cast<int32_t>(std::min(start + 3, p.T)));
      }
    }
    for (int64_t b = 0; b < p.B; ++b) {
      for (int64_t t = 0; t < p.T; ++t) {
        for (int64_t column = 0; column < p.T; ++column) bias.push_back(InDocument(b, t, column) ? 0 : -INFINITY);
      }
    }
    for (int64_t i = 0; i < p.B * p.H * p.T * p.T; ++i) {
      kept.push_back(std::bernoulli_distribution(1 - p.dropout)(random) ? static_cast<float>(1 / (1 - p.dropout)) : 0);
    }
  }

  int64_t row() const { return (problem.H + 2 * problem.kv_heads) * problem.D; }
  // Element e of a head of a position; heads are counted through queries, keys and values.
  size_t Qkv(int64_t b, int64_t t, int64_t head, int64_t e) const {
    return static_cast<size_t>((b * problem.T + t) * row() + head * problem.D + e);
  }
  size_t O(int64_t b, int64_t t, int64_t h, int64_t e) const {
    return static_cast<size_t>(((b * problem.T + t) * problem.H + h) * problem.D + e);
  }
  size_t Row(int64_t b, int64_t h, int64_t t) const { return static_cast<size_t>((b * problem.H + h) * problem.T + t); }
  bool InDocument(int64_t b, int64_t row, int64_t column) const {
    const size_t at = static_cast<size_t>(b * problem.T + row);
    return column >= first[at] && column < end[at];
  }
  bool Sees(int64_t b, int64_t row, int64_t column) const {
    if (problem.causal && column > row) return false;
    if (problem.window > 0 && row - column >= problem.window) return false;
    return !problem.documents || InDocument(b, row, column);
  }
  double Factor(int64_t b, int64_t h, int64_t row, int64_t column) const {
    const size_t at = Row(b, h, row) * static_cast<size_t>(problem.T) + static_cast<size_t>(column);
    return problem.dropout > 0 ? kept[at] : 1;
  }
  SdpaArrays arrays() {
    return {.qkv = qkv.data(),
            .o = o.data(),
            .lse = lse.data(),
            .d_o = d_o.data(),
            .dqkv = dqkv.data(),
            .delta = delta.data()};
  }

  // Of a part that begins at this sequence, and of which `kept` begins at this element.
  SdpaMasks Masks(int64_t sequence = 0, int64_t element = 0) const {
    return {.bias = &bias[static_cast<size_t>(sequence * problem.T * problem.T)],
            .kept = &kept[static_cast<size_t>(element)]};
  }

  const SdpaProblem problem;
  std::vector<int32_t> first, end;
  std::vector<float> qkv, d_o, dqkv, o, lse, delta, bias, kept;
};

struct Expected {
  std::vector<double> o, lse, dqkv;
};
Expected Define(const Data& x) {
  const SdpaProblem& p = x.problem;
  Expected r{std::vector<double>(x.o.size()), std::vector<double>(x.lse.size()), std::vector<double>(x.qkv.size())};
  for (int64_t b = 0; b < p.B; ++b) {
    for (int64_t h = 0; h < p.H; ++h) {
      const int64_t k_head = p.H + h / p.sharers(), v_head = k_head + p.kv_heads;
      for (int64_t i = 0; i < p.T; ++i) {
        std::vector<double> prob(p.T, 0.0), d_prob(p.T, 0.0);
        double sum = 0, dot = 0;
        for (int64_t j = 0; j < p.T; ++j) {
          if (!x.Sees(b, i, j)) continue;
          for (int64_t e = 0; e < p.D; ++e) {
            prob[j] += double{x.qkv[x.Qkv(b, i, h, e)]} * x.qkv[x.Qkv(b, j, k_head, e)] * p.scale;
            d_prob[j] += double{x.d_o[x.O(b, i, h, e)]} * x.qkv[x.Qkv(b, j, v_head, e)];
          }
          prob[j] = std::exp(prob[j]);
          d_prob[j] *= x.Factor(b, h, i, j);
          sum += prob[j];
        }
        r.lse[x.Row(b, h, i)] = std::log(sum);
        for (int64_t j = 0; j < p.T; ++j) {
          prob[j] /= sum;
          dot += prob[j] * d_prob[j];
        }
        for (int64_t e = 0; e < p.D; ++e) {
          for (int64_t j = 0; j < p.T; ++j) {
            const double d_score = prob[j] * (d_prob[j] - dot) * p.scale, dropped = prob[j] * x.Factor(b, h, i, j);
            r.o[x.O(b, i, h, e)] += dropped * x.qkv[x.Qkv(b, j, v_head, e)];
            r.dqkv[x.Qkv(b, i, h, e)] += d_score * x.qkv[x.Qkv(b, j, k_head, e)];
            r.dqkv[x.Qkv(b, j, k_head, e)] += d_score * x.qkv[x.Qkv(b, i, h, e)];
            r.dqkv[x.Qkv(b, j, v_head, e)] += dropped * x.d_o[x.O(b, i, h, e)];
          }
        }
      }
    }
  }
  return r;
}

void ExpectNear(const std::vector<float>& got, const std::vector<double>& want, const std::string& what) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_NEAR(got[i], want[i], 1e-5) << what << " " << i;  // fp32 sums of a few dozen numbers of size 1
  }
}

void ExpectComputesAttention(const SdpaProblem& problem) {
  Data data(problem);
  const Expected want = Define(data);
  ASSERT_OK_AND_ASSIGN(const SdpaGraph forward, SdpaForwardGraph(problem));
  ASSERT_OK_AND_ASSIGN(const std::vector<SdpaBinding> of_forward,
                       BindSdpa(problem, forward, data.arrays(), 0, data.Masks()));
  RunSdpaGraph(forward, of_forward);
  ExpectNear(data.o, want.o, "o");
  ExpectNear(data.lse, want.lse, "lse");
  ASSERT_OK_AND_ASSIGN(const SdpaGraph backward, SdpaBackwardGraph(problem));
  ASSERT_OK_AND_ASSIGN(const std::vector<SdpaBinding> of_backward,
                       BindSdpa(problem, backward, data.arrays(), 0, data.Masks()));
  RunSdpaGraph(backward, of_backward);
  ExpectNear(data.dqkv, want.dqkv, "dqkv");
}

TEST(SdpaGraphTest, ComputesAttention) {
  for (const int64_t kv_heads : {4, 2, 1}) {
    for (const int64_t window : {-1, 0, 2, 5}) {  // -1: not causal
      for (const bool documents : {false, true}) {
        for (const double dropout : {0.0, 0.3}) {
          SCOPED_TRACE(testing::Message() << "kv_heads " << kv_heads << " window " << window << " documents "
                                          << documents << " dropout " << dropout);
          ExpectComputesAttention({.B = 2,
                                   .T = 7,
                                   .H = 4,
                                   .kv_heads = kv_heads,
                                   .D = 8,
                                   .act = Dtype::kF32,
                                   .scale = 0.35,
                                   .causal = window >= 0,
                                   .window = std::max<int64_t>(window, 0),
                                   .dropout = dropout,
                                   .documents = documents});
        }
      }
    }
  }
}

// `part`: of `whole`, cut in some way.
void ExpectPartsGiveTheBitsOf(const SdpaProblem& whole, const SdpaProblem& part) {
  Data together(whole), apart(whole);
  for (const auto make : {&SdpaForwardGraph, &SdpaBackwardGraph}) {
    ASSERT_OK_AND_ASSIGN(const SdpaGraph of_whole, make(whole));
    ASSERT_OK_AND_ASSIGN(const std::vector<SdpaBinding> bindings,
                         BindSdpa(whole, of_whole, together.arrays(), 0, together.Masks()));
    RunSdpaGraph(of_whole, bindings);
    ASSERT_OK_AND_ASSIGN(const SdpaGraph of_part, make(part));
    for (const SdpaPart& each : PartsOf(whole, part, apart.arrays())) {
      const int64_t element = each.arrays.dropout.first_element;
      const SdpaMasks masks = apart.Masks(element / (whole.H * whole.T * whole.T), element);
      ASSERT_OK_AND_ASSIGN(const std::vector<SdpaBinding> of_each,
                           BindSdpa(whole, of_part, each.arrays, each.first_kv_head, masks));
      RunSdpaGraph(of_part, of_each);
    }
  }
  EXPECT_EQ(apart.o, together.o);
  EXPECT_EQ(apart.lse, together.lse);
  EXPECT_EQ(apart.dqkv, together.dqkv);
}

TEST(SdpaGraphTest, SequencesAtATimeGiveTheSameBits) {
  const SdpaProblem whole = {.B = 3,
                             .T = 5,
                             .H = 2,
                             .kv_heads = 2,
                             .D = 8,
                             .act = Dtype::kF32,
                             .causal = false,
                             .dropout = 0.3,
                             .documents = true};
  SdpaProblem one = whole;
  one.B = 1;
  ExpectPartsGiveTheBitsOf(whole, one);
}

// Heads of queries that share keys and values stay together.
TEST(SdpaGraphTest, HeadsAtATimeGiveTheSameBits) {
  for (const double dropout : {0.0, 0.3}) {
    const SdpaProblem whole = {.B = 2, .T = 4, .H = 8, .kv_heads = 4, .D = 8, .act = Dtype::kF32, .dropout = dropout};
    SdpaProblem some = whole;
    some.B = 1;
    some.H = 4;
    some.kv_heads = 2;
    some.array_H = 8;
    some.array_kv_heads = 4;
    ExpectPartsGiveTheBitsOf(whole, some);
  }
}

}  // namespace
}  // namespace eps::worker::cuda
