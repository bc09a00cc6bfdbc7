#include "eps_server/optimizer/tensor_groups.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "common/base/ids.h"
#include "common/model/model_spec.h"
#include "common/spec/run_config.h"
#include "eps_server/optimizer/chunk_kernels.h"
#include "eps_server/optimizer/update_engine.h"
#include "eps_server/optimizer/update_engine_testing.h"
#include "eps_server/optimizer/update_scalars.h"
#include "eps_server/store/store.h"
#include "gtest/gtest.h"

namespace eps::server {
namespace {

// ---- which tensors are updated alike

TEST(TensorGroupsTest, RangesCoverEachChunkAndNeighboursDiffer) {
  for (const OptimizerRule rule : {OptimizerRule::kAdamW, OptimizerRule::kLamb}) {
    RunConfig run = SmallRun(Mode{ClipMode::kNone, rule});
    run.model.freeze = {"transformer.wpe.weight"};
    run.optimizer.groups = {{{"*.mlp.*"}, 0.5}, {{"*.mlp.c_proj.bias"}, 1, 0.3}};
    const ModelSpec model = *BuildModel(run.model);
    const std::vector<TensorGroups> groups = GroupTensors(model, run.optimizer);
    ASSERT_EQ(groups.size(), model.blobs.size());
    for (const BlobSpec& blob : model.blobs) {
      const TensorGroups& of_blob = groups[blob.id.value()];
      if (blob.frozen) {
        EXPECT_TRUE(of_blob.ranges.empty());
        continue;
      }
      ASSERT_EQ(of_blob.ranges.size(), static_cast<size_t>(blob.num_chunks()));
      for (int64_t c = 0; c < blob.num_chunks(); ++c) {
        int64_t end = 0;
        int before = -1;
        for (const GroupRange& range : of_blob.ranges[c]) {
          EXPECT_EQ(range.begin, end);
          EXPECT_LT(range.begin, range.end);
          EXPECT_NE(range.group, before);
          EXPECT_LT(static_cast<size_t>(range.group), of_blob.groups.size());
          end = range.end;
          before = range.group;
        }
        EXPECT_EQ(end, blob.chunk_elems(c));
      }
    }
  }
}

TEST(TensorGroupsTest, TensorsThatAreUpdatedAlikeShareAGroupAndATrustRatioIsOfOneAlone) {
  RunConfig run = SmallRun(ClipMode::kNone);
  const ModelSpec model = *BuildModel(run.model);
  EXPECT_EQ(GroupTensors(model, run.optimizer)[kBlock.value()].groups.size(), 2u);
  run.optimizer.weight_decay = 0;
  EXPECT_EQ(GroupTensors(model, run.optimizer)[kBlock.value()].groups.size(), 1u);
  run.optimizer.rule = OptimizerRule::kLamb;
  const TensorGroups lamb = GroupTensors(model, run.optimizer)[kBlock.value()];
  EXPECT_EQ(lamb.groups.size(), 5u);  // four matrices, and the vectors
  EXPECT_EQ(std::count(lamb.has_trust_ratio.begin(), lamb.has_trust_ratio.end(), true), 4);
}

TEST(TrustRatioTest, IsTheWeightsNormOverTheSteps) {
  constexpr double kMost = 1e6;
  EXPECT_EQ(TrustRatio({.weights = 9, .step = 4}, kMost), 1.5);
  EXPECT_EQ(TrustRatio({.weights = 9, .step = 4}, 1.25), 1.25);
  EXPECT_EQ(TrustRatio({.weights = 1, .step = 4}, 1.25), 0.5);
  for (const StepSquares zero : {StepSquares{.weights = 0, .step = 4}, {.weights = 9, .step = 0}, {}}) {
    EXPECT_EQ(TrustRatio(zero, kMost), 1);
    EXPECT_EQ(TrustRatio(zero, 0.5), 0.5);
  }
}

TEST(TrustRatioTest, OfTheSmallestStepsIsANumberThatTheUpdateCanUse) {
  const double ratio = TrustRatio({.weights = 1e60, .step = 1e-300}, OptimizerConfig().max_trust_ratio);
  const std::vector<TensorGroup> groups = {{.learning_rate_scale = ratio, .weight_decay = 0.1}};
  const UpdateScalars scalars = ComputeUpdateScalars(SmallRun(ClipMode::kNone).optimizer, groups, 1, 1, 1);
  EXPECT_TRUE(std::isfinite(scalars.groups[0].step_size));
  EXPECT_TRUE(std::isfinite(scalars.groups[0].keep));
}

// ---- what the engine makes of it, against fp64

struct Tensor {
  std::vector<double> p, m, v;
};

// All tensors of the model, by their names; the rule as the RunSpec states it.
class Reference {
 public:
  explicit Reference(const RunConfig& run) : run_(run), model_(*BuildModel(run.model)) {
    for (const BlobSpec& blob : model_.blobs) {
      for (const TensorSpec& tensor : blob.tensors) {
        Tensor& values = tensors_[{blob.id.value(), tensor.name}];
        for (int64_t i = 0; i < tensor.num_elems(); ++i) values.p.push_back(Trainer::FirstAt(tensor.offset_elems + i));
        values.m.resize(values.p.size());
        values.v.resize(values.p.size());
      }
    }
  }
  const ModelSpec& model() const { return model_; }
  const Tensor& tensor(BlobId blob, const std::string& name) const { return tensors_.at({blob.value(), name}); }

  // scale: of each blob's gradient.
  void Step(int64_t step, const std::function<double(BlobId)>& scale) {
    for (const BlobSpec& blob : model_.blobs) {
      for (const TensorSpec& tensor : blob.tensors) StepTensor(step, scale(blob.id), blob.id, tensor);
    }
  }

 private:
  void StepTensor(int64_t step, double scale, BlobId blob, const TensorSpec& spec) {
    Tensor& tensor = tensors_.at({blob.value(), spec.name});
    const OptimizerConfig& config = run_.optimizer;
    const bool is_matrix = spec.shape.size() >= 2;
    double rate = config.peak_learning_rate, decay = is_matrix ? config.weight_decay : 0;
    // The groups of the tests, by other means.
    for (const ParameterGroupConfig& group : config.groups) {
      if (spec.name.find(group.tensors[0].substr(1, group.tensors[0].size() - 2)) == std::string::npos) continue;
      rate = config.peak_learning_rate * group.learning_rate_scale;
      decay = group.weight_decay.value_or(is_matrix ? config.weight_decay : 0);
    }
    const double t = static_cast<double>(step + 1);
    std::vector<double> u(tensor.p.size());
    double p_squares = 0, u_squares = 0;
    for (size_t i = 0; i < u.size(); ++i) {
      const double g = scale * Trainer::SumAt(step, {0, kVnodes}, blob, spec.offset_elems + static_cast<int64_t>(i));
      tensor.m[i] = config.beta1 * tensor.m[i] + (1 - config.beta1) * g;
      tensor.v[i] = config.beta2 * tensor.v[i] + (1 - config.beta2) * g * g;
      const double m = tensor.m[i] / (1 - std::pow(config.beta1, t)), v = tensor.v[i] / (1 - std::pow(config.beta2, t));
      u[i] = m / (std::sqrt(v) + config.eps) + decay * tensor.p[i];
      p_squares += tensor.p[i] * tensor.p[i];
      u_squares += u[i] * u[i];
    }
    double ratio = 1;
    if (config.rule == OptimizerRule::kLamb && is_matrix) {
      ratio = std::sqrt(p_squares / u_squares);
      ratio = std::min(ratio, config.max_trust_ratio);
      ratios.insert(ratio);
    }
    for (size_t i = 0; i < u.size(); ++i) tensor.p[i] -= rate * ratio * u[i];
  }

 public:
  std::set<double> ratios;

 private:
  const RunConfig run_;
  const ModelSpec model_;
  std::map<std::pair<int32_t, std::string>, Tensor> tensors_;
};

void ExpectAgrees(const Trainer& trainer, const Reference& reference, int64_t version) {
  for (const BlobSpec& blob : reference.model().blobs) {
    for (const TensorSpec& tensor : blob.tensors) {
      const Tensor& want = reference.tensor(blob.id, tensor.name);
      std::vector<float> got(want.p.size());
      EXPECT_OK(trainer.store().ReadMaster(blob.id, Version(version), tensor.offset_elems, absl::MakeSpan(got)));
      // Weights are below 0.5, of which fp32 keeps 24 bits; they move by 1e-4 and more.
      const double bound = 2e-7 * static_cast<double>(version);
      double moved = 0;
      size_t num_wrong = 0;
      for (size_t i = 0; i < got.size(); ++i) {
        num_wrong += std::abs(got[i] - want.p[i]) <= bound ? 0 : 1;  // what is no number is wrong, too
        moved = std::max(moved, std::abs(want.p[i] - Trainer::FirstAt(tensor.offset_elems + static_cast<int64_t>(i))));
      }
      EXPECT_EQ(num_wrong, 0u) << tensor.name;
      EXPECT_GE(moved, 1e-4) << tensor.name;
    }
  }
}

class TensorGroupsEngineTest : public ::testing::TestWithParam<Mode> {};
INSTANTIATE_TEST_SUITE_P(Modes, TensorGroupsEngineTest,
                         ::testing::Values(Mode{ClipMode::kNone}, Mode{ClipMode::kNone, OptimizerRule::kLamb},
                                           Mode{ClipMode::kExact, OptimizerRule::kLamb},
                                           Mode{ClipMode::kPerBlob, OptimizerRule::kLamb},
                                           Mode{ClipMode::kLagged, OptimizerRule::kLamb}));

// What clipping to 0.01 multiplies the blob's gradient with.
double ScaleOf(const Trainer& trainer, ClipMode clip, int64_t step, BlobId blob) {
  const auto scale = [](double norm) { return std::min(1.0, 0.01 / (norm + 1e-6)); };
  switch (clip) {
    case ClipMode::kNone:
      return 1;
    case ClipMode::kExact:
      return scale(trainer.Norm(step));
    case ClipMode::kPerBlob:
      return scale(trainer.Norm(step, blob));
    case ClipMode::kLagged:
      return step == 0 ? 1 : scale(trainer.Norm(step - 1));
  }
  return 1;
}

TEST_P(TensorGroupsEngineTest, EachTensorMovesAsItsGroupAndTheRuleSay) {
  RunConfig run = SmallRun(GetParam(), 0.01);
  run.optimizer.eps = 1e-6;
  run.optimizer.groups = {{{"*.mlp.*"}, 0.25}, {{"*bias*"}, 1, 0.5}, {{"*wte*"}, 2, 0}};
  Trainer trainer(run);
  Reference reference(run);
  for (int64_t step = 0; step < 3; ++step) {
    trainer.SubmitAll(step);
    trainer.WaitForStep(step);
    reference.Step(step, [&](BlobId blob) { return ScaleOf(trainer, GetParam().clip, step, blob); });
    ExpectAgrees(trainer, reference, step + 1);
  }
  if (GetParam().rule != OptimizerRule::kLamb) return;
  // None of which is 1.
  EXPECT_EQ(reference.ratios.size(), 3u * 6u);
  EXPECT_EQ(reference.ratios.count(1), 0u);
}

TEST(TensorGroupsEngineTest, TrustRatiosStopAtTheirBound) {
  RunConfig run = SmallRun(Mode{ClipMode::kNone, OptimizerRule::kLamb});
  run.optimizer.max_trust_ratio = 0.125;
  Trainer trainer(run);
  Reference reference(run);
  trainer.SubmitAll(0);
  trainer.WaitForStep(0);
  reference.Step(0, [](BlobId) { return 1.0; });
  EXPECT_EQ(*reference.ratios.rbegin(), 0.125);
  ExpectAgrees(trainer, reference, 1);
}

TEST(TensorGroupsEngineTest, GroupsOfEveryTensorAreAnotherRateAndDecayOfAnyRule) {
  for (const OptimizerRule rule :
       {OptimizerRule::kAdamW, OptimizerRule::kAdam, OptimizerRule::kLamb, OptimizerRule::kLion, OptimizerRule::kSgd}) {
    for (const double momentum : {0.0, 0.9}) {
      RunConfig grouped = SmallRun(Mode{ClipMode::kExact, rule}, 0.01);
      grouped.optimizer.momentum = momentum;
      RunConfig plain = grouped;
      grouped.optimizer.groups = {{{"*"}, 0.5, 0}};
      plain.optimizer.weight_decay = 0;
      EXPECT_FALSE(Train(grouped, 2, 2) == Train(plain, 2, 2));
      plain.optimizer.peak_learning_rate *= 0.5;
      EXPECT_TRUE(Train(grouped, 2, 2) == Train(plain, 2, 2)) << static_cast<int>(rule) << " " << momentum;
    }
  }
}

// The plain rule, where a tensor has nothing to go by.
TEST(TensorGroupsEngineTest, WithoutMatricesLambIsAdamW) {
  RunConfig lamb = SmallRun(Mode{ClipMode::kNone, OptimizerRule::kLamb}), adamw = SmallRun(ClipMode::kNone);
  for (RunConfig* run : {&lamb, &adamw}) run->model.freeze = {"*.weight", "!*.ln_*"};
  EXPECT_TRUE(Train(lamb, 2, 3) == Train(adamw, 2, 3));
}

}  // namespace
}  // namespace eps::server
