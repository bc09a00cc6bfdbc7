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
using Lengths = SdpaProblem::Lengths;

// ---- what is described ----

const SdpaProblem kProblem = {.B = 2, .T = 6, .H = 4, .kv_heads = 4, .D = 8, .scale = 0.25};

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
  ASSERT_OK_AND_ASSIGN(const SdpaGraph graph, SdpaForwardGraph(kProblem));
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
  SdpaProblem in_fp16 = kProblem;
  in_fp16.act = Dtype::kF16;
  ASSERT_OK_AND_ASSIGN(const SdpaGraph same, SdpaForwardGraph(in_fp16));
  for (const int64_t uid : {kUidQ, kUidK, kUidV, kUidO}) EXPECT_EQ(same.tensor(uid).type, ElementType::kF16) << uid;
  EXPECT_EQ(graph.tensor(kUidScale).value, 0.25f);
  EXPECT_EQ(graph.tensor(kUidMasked).value, -std::numeric_limits<float>::infinity());
}

TEST(SdpaGraphTest, BackwardsTensorsLieAsTheKernelTableHasThem) {
  ASSERT_OK_AND_ASSIGN(const SdpaGraph graph, SdpaBackwardGraph(kProblem));
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

TEST(SdpaGraphTest, MasksAreOnlyThereWhereTheyAreAskedFor) {
  for (const auto make : {&SdpaForwardGraph, &SdpaBackwardGraph}) {
    SdpaProblem problem = kProblem;
    ASSERT_OK_AND_ASSIGN(const SdpaGraph causal, make(problem));
    EXPECT_EQ(Count(causal, Kind::kGreaterEqual), 1);
    EXPECT_EQ(Count(causal, Kind::kLess), 0);
    EXPECT_EQ(Count(causal, Kind::kSelect), 1);
    problem.lengths = Lengths::kPadded;
    ASSERT_OK_AND_ASSIGN(const SdpaGraph both, make(problem));
    EXPECT_EQ(Count(both, Kind::kGreaterEqual), 1);
    EXPECT_EQ(Count(both, Kind::kLess), 2);
    EXPECT_EQ(Count(both, Kind::kSelect), 2);
    problem.causal = false;
    ASSERT_OK_AND_ASSIGN(const SdpaGraph padded, make(problem));
    EXPECT_EQ(Count(padded, Kind::kGreaterEqual), 0);
    EXPECT_EQ(Count(padded, Kind::kSelect), 1);
    problem.lengths = Lengths::kWhole;
    ASSERT_OK_AND_ASSIGN(const SdpaGraph neither, make(problem));
    EXPECT_EQ(Count(neither, Kind::kSelect), 0);
    EXPECT_TRUE(std::none_of(neither.tensors.begin(), neither.tensors.end(),
                             [](const SdpaTensor& tensor) { return tensor.uid == kUidMasked; }));
  }
}

TEST(SdpaGraphTest, LengthsBoundEveryProductWhereItsPositionsAre) {
  SdpaProblem problem = kProblem;
  problem.lengths = Lengths::kPadded;
  ASSERT_OK_AND_ASSIGN(const SdpaGraph graph, SdpaBackwardGraph(problem));
  EXPECT_THAT(graph.tensor(kUidLengths).dims, ElementsAre(2, 1, 1, 1));
  EXPECT_EQ(graph.tensor(kUidLengths).type, ElementType::kI32);
  for (const SdpaOperation& operation : graph.operations) {
    if (operation.kind != Kind::kMatMul) continue;
    const SdpaTensor &a = graph.tensor(operation.inputs[0]), &c = graph.tensor(operation.output);
    const auto bound = [](int64_t size) { return size == 6 ? kUidLengths : kNoUid; };  // T, or D
    EXPECT_EQ(operation.m_lengths, bound(c.dims[2]));
    EXPECT_EQ(operation.n_lengths, bound(c.dims[3]));
    EXPECT_EQ(operation.k_lengths, bound(a.dims[3]));
  }
}

TEST(SdpaGraphTest, PackedSequencesHaveOffsetsAndSharedHeadsFewerOfThem) {
  SdpaProblem problem = kProblem;
  problem.lengths = Lengths::kPacked;
  problem.kv_heads = 2;
  ASSERT_OK_AND_ASSIGN(const SdpaGraph graph, SdpaBackwardGraph(problem));
  for (const int64_t uid : {kUidQkvOffsets, kUidOOffsets}) {
    EXPECT_THAT(graph.tensor(uid).dims, ElementsAre(3, 1, 1, 1));
    EXPECT_EQ(graph.tensor(uid).type, ElementType::kI32);
  }
  for (const int64_t uid : {kUidQ, kUidK, kUidV, kUidDQ, kUidDK, kUidDV}) {
    EXPECT_EQ(graph.tensor(uid).ragged_offsets, kUidQkvOffsets) << uid;
  }
  for (const int64_t uid : {kUidO, kUidDO}) EXPECT_EQ(graph.tensor(uid).ragged_offsets, kUidOOffsets) << uid;
  for (const int64_t uid : {kUidStats, kUidDelta}) EXPECT_EQ(graph.tensor(uid).ragged_offsets, kNoUid) << uid;
  // A token is 4 + 2 + 2 heads of 8.
  EXPECT_THAT(graph.tensor(kUidQ).strides, ElementsAre(384, 8, 64, 1));
  EXPECT_THAT(graph.tensor(kUidDK).dims, ElementsAre(2, 2, 6, 8));
  EXPECT_THAT(graph.tensor(kUidDK).strides, ElementsAre(384, 8, 64, 1));
  EXPECT_EQ(Count(graph, Kind::kReduceAdd), 3);  // delta, dK and dV
}

TEST(SdpaGraphTest, UidsAreUniqueAndDefinedBeforeTheyAreUsed) {
  for (const auto make : {&SdpaForwardGraph, &SdpaBackwardGraph}) {
    for (const Lengths lengths : {Lengths::kWhole, Lengths::kPadded, Lengths::kPacked}) {
      SdpaProblem problem = kProblem;
      problem.lengths = lengths;
      problem.kv_heads = 1;
      ASSERT_OK_AND_ASSIGN(const SdpaGraph graph, make(problem));
      EXPECT_EQ(*make(problem), graph);
      std::set<int64_t> uids, made;
      for (const SdpaTensor& tensor : graph.tensors) {
        EXPECT_TRUE(tensor.ragged_offsets == kNoUid || uids.count(tensor.ragged_offsets) == 1) << tensor.uid;
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
    SdpaProblem problem = kProblem;
    problem.kv_heads = 3;
    EXPECT_THAT(make(problem), StatusIs(absl::StatusCode::kInvalidArgument, "kv_heads 3"));
    problem = kProblem;
    problem.dropout = 0.5;
    EXPECT_THAT(make(problem), StatusIs(absl::StatusCode::kUnimplemented, "dropout"));
    problem = kProblem;
    problem.window = 3;
    EXPECT_THAT(make(problem), StatusIs(absl::StatusCode::kUnimplemented, "window"));
  }
}

TEST(SdpaGraphTest, ArraysAreBoundToTheirTensors) {
  SdpaProblem problem = kProblem;
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
  ASSERT_OK_AND_ASSIGN(const std::vector<SdpaBinding> bindings, BindSdpa(problem, graph, arrays));
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
  problem.lengths = Lengths::kPadded;
  arrays.delta = delta.data();
  ASSERT_OK_AND_ASSIGN(const SdpaGraph padded, SdpaBackwardGraph(problem));
  EXPECT_THAT(BindSdpa(problem, padded, arrays), StatusIs(absl::StatusCode::kInvalidArgument, "no array"));
}

// ---- what it computes: the graph, operation by operation, against attention's definition in fp64 ----

// Arrays of a problem in fp32, of random numbers, and its results.
struct Data {
  explicit Data(const SdpaProblem& p, std::vector<int32_t> lengths) : problem(p), lengths(std::move(lengths)) {
    const bool packed = p.lengths == Lengths::kPacked;
    int64_t positions = 0;
    for (const int32_t length : this->lengths) {
      begins.push_back(positions);
      positions += packed ? length : p.T;
    }
    begins.push_back(positions);
    for (const int64_t begin : begins) {
      qkv_offsets.push_back(static_cast<int32_t>(begin * row()));
      o_offsets.push_back(static_cast<int32_t>(begin * p.H * p.D));
    }
    std::mt19937 random(7);
    const auto fill = [&](int64_t n) {
      std::vector<float> x(static_cast<size_t>(n));
      for (float& v : x) v = std::uniform_real_distribution<float>(-1, 1)(random);
      return x;
    };
    qkv = fill(positions * row());
    d_o = fill(positions * p.H * p.D);
    dqkv.assign(qkv.size(), kUntouched);
    o.assign(d_o.size(), kUntouched);
    lse.assign(static_cast<size_t>(p.B * p.H * p.T), kUntouched);
    delta = lse;
  }

  static constexpr float kUntouched = 77;
  int64_t row() const { return (problem.H + 2 * problem.kv_heads) * problem.D; }
  // Element e of a head of a position; heads are counted through queries, keys and values.
  size_t Qkv(int64_t b, int64_t t, int64_t head, int64_t e) const {
    return static_cast<size_t>((begins[b] + t) * row() + head * problem.D + e);
  }
  size_t O(int64_t b, int64_t t, int64_t h, int64_t e) const {
    return static_cast<size_t>(((begins[b] + t) * problem.H + h) * problem.D + e);
  }
  size_t Row(int64_t b, int64_t h, int64_t t) const { return static_cast<size_t>((b * problem.H + h) * problem.T + t); }
  SdpaArrays arrays() {
    return {.qkv = qkv.data(),
            .o = o.data(),
            .lse = lse.data(),
            .lengths = lengths.data(),
            .qkv_offsets = qkv_offsets.data(),
            .o_offsets = o_offsets.data(),
            .d_o = d_o.data(),
            .dqkv = dqkv.data(),
            .delta = delta.data()};
  }

  const SdpaProblem problem;
  std::vector<int32_t> lengths;
  std::vector<int64_t> begins;
  std::vector<int32_t> qkv_offsets, o_offsets;
  std::vector<float> qkv, d_o, dqkv, o, lse, delta;
};

struct Expected {
  std::vector<double> o, lse, dqkv;
};
// Positions that no sequence has keep kUntouched.
Expected Define(const Data& x) {
  const SdpaProblem& p = x.problem;
  Expected r{std::vector<double>(x.o.size(), Data::kUntouched), std::vector<double>(x.lse.size(), Data::kUntouched),
             std::vector<double>(x.qkv.size(), Data::kUntouched)};
  for (int64_t b = 0; b < p.B; ++b) {
    for (int64_t t = 0; t < x.lengths[b]; ++t) {
      for (int64_t i = 0; i < x.row(); ++i) r.dqkv[x.Qkv(b, t, 0, i)] = 0;
    }
    for (int64_t h = 0; h < p.H; ++h) {
      const int64_t k_head = p.H + h / (p.H / p.kv_heads), v_head = k_head + p.kv_heads;
      for (int64_t i = 0; i < x.lengths[b]; ++i) {
        const int64_t columns = p.causal ? i + 1 : x.lengths[b];
        std::vector<double> prob(columns, 0.0), d_prob(columns, 0.0);
        double sum = 0, dot = 0;
        for (int64_t j = 0; j < columns; ++j) {
          for (int64_t e = 0; e < p.D; ++e) {
            prob[j] += double{x.qkv[x.Qkv(b, i, h, e)]} * x.qkv[x.Qkv(b, j, k_head, e)] * p.scale;
            d_prob[j] += double{x.d_o[x.O(b, i, h, e)]} * x.qkv[x.Qkv(b, j, v_head, e)];
          }
          sum += std::exp(prob[j]);
        }
        r.lse[x.Row(b, h, i)] = std::log(sum);
        for (int64_t j = 0; j < columns; ++j) {
          prob[j] = std::exp(prob[j]) / sum;
          dot += prob[j] * d_prob[j];
        }
        for (int64_t e = 0; e < p.D; ++e) {
          double& o = r.o[x.O(b, i, h, e)];
          o = 0;
          for (int64_t j = 0; j < columns; ++j) {
            const double d_score = prob[j] * (d_prob[j] - dot) * p.scale;
            o += prob[j] * x.qkv[x.Qkv(b, j, v_head, e)];
            r.dqkv[x.Qkv(b, i, h, e)] += d_score * x.qkv[x.Qkv(b, j, k_head, e)];
            r.dqkv[x.Qkv(b, j, k_head, e)] += d_score * x.qkv[x.Qkv(b, i, h, e)];
            r.dqkv[x.Qkv(b, j, v_head, e)] += prob[j] * x.d_o[x.O(b, i, h, e)];
          }
        }
      }
    }
  }
  return r;
}

// Where `want` is defined; elsewhere packed arrays have no element, and padded ones anything.
void ExpectNearWhereDefined(const std::vector<float>& got, const std::vector<double>& want, const std::string& what) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    if (want[i] == Data::kUntouched) continue;
    EXPECT_NEAR(got[i], want[i], 1e-5) << what << " " << i;  // fp32 sums of a few dozen numbers of size 1
  }
}

void ExpectComputesAttention(SdpaProblem problem, std::vector<int32_t> lengths) {
  problem.act = Dtype::kF32;
  Data data(problem, std::move(lengths));
  const Expected want = Define(data);
  ASSERT_OK_AND_ASSIGN(const SdpaGraph forward, SdpaForwardGraph(problem));
  ASSERT_OK_AND_ASSIGN(const std::vector<SdpaBinding> of_forward, BindSdpa(problem, forward, data.arrays()));
  RunSdpaGraph(forward, of_forward);
  ExpectNearWhereDefined(data.o, want.o, "o");
  ExpectNearWhereDefined(data.lse, want.lse, "lse");
  ASSERT_OK_AND_ASSIGN(const SdpaGraph backward, SdpaBackwardGraph(problem));
  ASSERT_OK_AND_ASSIGN(const std::vector<SdpaBinding> of_backward, BindSdpa(problem, backward, data.arrays()));
  RunSdpaGraph(backward, of_backward);
  ExpectNearWhereDefined(data.dqkv, want.dqkv, "dqkv");
}

TEST(SdpaGraphTest, ComputesAttention) {
  const SdpaProblem problem = {.B = 2, .T = 7, .H = 4, .kv_heads = 4, .D = 8, .scale = 0.35};
  for (const bool causal : {true, false}) {
    for (const int64_t kv_heads : {4, 2, 1}) {
      for (const Lengths lengths : {Lengths::kWhole, Lengths::kPadded, Lengths::kPacked}) {
        SCOPED_TRACE(testing::Message() << "causal " << causal << " kv_heads " << kv_heads << " lengths "
                                        << static_cast<int>(lengths));
        SdpaProblem changed = problem;
        changed.causal = causal;
        changed.kv_heads = kv_heads;
        changed.lengths = lengths;
        ExpectComputesAttention(changed,
                                lengths == Lengths::kWhole ? std::vector<int32_t>{7, 7} : std::vector<int32_t>{4, 7});
      }
    }
  }
}

TEST(SdpaGraphTest, SequencesAtATimeGiveTheSameBits) {
  for (const Lengths lengths : {Lengths::kWhole, Lengths::kPacked}) {
    SdpaProblem whole = {.B = 3, .T = 5, .H = 2, .kv_heads = 2, .D = 8, .act = Dtype::kF32, .lengths = lengths};
    const std::vector<int32_t> of_each =
        lengths == Lengths::kWhole ? std::vector<int32_t>{5, 5, 5} : std::vector<int32_t>{3, 5, 2};
    SdpaProblem one = whole;
    one.B = 1;
    Data together(whole, of_each), apart(whole, of_each);
    for (const auto make : {&SdpaForwardGraph, &SdpaBackwardGraph}) {
      ASSERT_OK_AND_ASSIGN(const SdpaGraph of_whole, make(whole));
      ASSERT_OK_AND_ASSIGN(const std::vector<SdpaBinding> bindings, BindSdpa(whole, of_whole, together.arrays()));
      RunSdpaGraph(of_whole, bindings);
      ASSERT_OK_AND_ASSIGN(const SdpaGraph of_one, make(one));
      for (int64_t first = 0; first < whole.B; ++first) {
        ASSERT_OK_AND_ASSIGN(const std::vector<SdpaBinding> from,
                             BindSdpa(whole, of_one, ArraysFrom(whole, apart.arrays(), first)));
        RunSdpaGraph(of_one, from);
      }
    }
    EXPECT_EQ(apart.o, together.o);
    EXPECT_EQ(apart.dqkv, together.dqkv);
  }
}

// Heads of queries that share keys and values stay together.
TEST(SdpaGraphTest, HeadsAtATimeGiveTheSameBits) {
  for (const Lengths lengths : {Lengths::kWhole, Lengths::kPacked}) {
    SdpaProblem whole = {.B = 2, .T = 4, .H = 8, .kv_heads = 4, .D = 8, .act = Dtype::kF32, .lengths = lengths};
    const std::vector<int32_t> of_each =
        lengths == Lengths::kWhole ? std::vector<int32_t>{4, 4} : std::vector<int32_t>{3, 4};
    SdpaProblem some = whole;
    some.H = 4;
    some.kv_heads = 2;
    some.array_H = 8;
    some.array_kv_heads = 4;
    Data together(whole, of_each), apart(whole, of_each);
    for (const auto make : {&SdpaForwardGraph, &SdpaBackwardGraph}) {
      ASSERT_OK_AND_ASSIGN(const SdpaGraph of_whole, make(whole));
      ASSERT_OK_AND_ASSIGN(const std::vector<SdpaBinding> bindings, BindSdpa(whole, of_whole, together.arrays()));
      RunSdpaGraph(of_whole, bindings);
      ASSERT_OK_AND_ASSIGN(const SdpaGraph of_some, make(some));
      for (const int64_t first : {0, 2}) {
        ASSERT_OK_AND_ASSIGN(const std::vector<SdpaBinding> from, BindSdpa(whole, of_some, apart.arrays(), first));
        RunSdpaGraph(of_some, from);
      }
    }
    EXPECT_EQ(apart.o, together.o);
    if (lengths == Lengths::kWhole) {
      EXPECT_EQ(apart.lse, together.lse);  // packed, it has rows that are no number
    }
    EXPECT_EQ(apart.dqkv, together.dqkv);
  }
}

}  // namespace
}  // namespace eps::worker::cuda
