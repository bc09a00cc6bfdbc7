#include "gpu_worker/relay/assignment_check.h"

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/base/ids.h"
#include "common/model/model_spec.h"
#include "common/schedule/vnode_batch.h"
#include "common/spec/run_config.h"
#include "common/tensor/dtype.h"
#include "common/testing/status_matchers.h"
#include "gpu_worker/layers/layer_shape.h"
#include "gtest/gtest.h"

namespace eps::worker {
namespace {

// Two vnodes of one micro-batch of two samples.
class AssignmentCheckTest : public ::testing::Test {
 protected:
  AssignmentCheckTest() {
    run_.model = {.num_layers = 3, .d_model = 8, .num_heads = 2, .context = 4, .vocab = 10};
    run_.batch = {.virtual_nodes = 2, .micro_batches = 1, .micro_batch = 2};
    good_ = {.step = StepId(7), .counted_tokens = 16};
    for (const int vnode : {0, 1}) {
      good_.vnodes.push_back(
          {.vnode = vnode, .tokens = std::vector<int32_t>(8, 3), .labels = std::vector<int32_t>(8, 4)});
    }
  }
  absl::Status Check(const Assignment& assignment) const {
    const ModelSpec model = BuildModel(run_.model).value();
    return CheckAssignment(assignment, model, run_, MakeLayerShape(model, shape_, Dtype::kF32, Dtype::kF32));
  }
  template <typename Change>
  void ExpectRefused(Change change, const std::string& message) const {
    Assignment bad = good_;
    change(bad);
    EXPECT_THAT(Check(bad), StatusIs(absl::StatusCode::kInvalidArgument, message));
  }

  RunConfig run_;
  BatchShape shape_ = {.micro_batch = 2};
  Assignment good_;
};

TEST_F(AssignmentCheckTest, WhatFitsIsAccepted) {
  EXPECT_OK(Check(good_));
  good_.vnodes.erase(good_.vnodes.begin());
  EXPECT_OK(Check(good_));
  good_.vnodes.clear();
  EXPECT_OK(Check(good_));
}

TEST_F(AssignmentCheckTest, VnodesRiseWithinTheRun) {
  ExpectRefused([](Assignment& a) { a.vnodes[1].vnode = 0; }, "vnode 0 after 0: must rise, below 2");
  ExpectRefused([](Assignment& a) { a.vnodes[1].vnode = 2; }, "vnode 2 after 0: must rise, below 2");
  ExpectRefused([](Assignment& a) { a.vnodes[0].vnode = -1; }, "vnode -1 after -1");
  ExpectRefused([](Assignment& a) { a.counted_tokens = -1; }, "counted tokens -1, must be >= 0");
}

TEST_F(AssignmentCheckTest, EachVnodeHasItsTokens) {
  ExpectRefused([](Assignment& a) { a.vnodes[1].tokens.pop_back(); }, "vnode 1: 7 tokens and 8 labels, want 8 and 8");
  ExpectRefused([](Assignment& a) { a.vnodes[0].labels.push_back(0); }, "vnode 0: 8 tokens and 9 labels");
  ExpectRefused([](Assignment& a) { a.vnodes[0].tokens[5] = 10; }, "vnode 0: token 5: id 10, the vocabulary has 10");
  ExpectRefused([](Assignment& a) { a.vnodes[0].tokens[0] = -1; }, "vnode 0: token 0: id -1");
  ExpectRefused([](Assignment& a) { a.vnodes[0].types.assign(8, 0); }, "vnode 0: 8 types of tokens, want 0");
}

TEST_F(AssignmentCheckTest, DocumentsAreThereWhereTheRunPacksThem) {
  ExpectRefused([](Assignment& a) { a.vnodes[0].document_first.assign(8, 0); }, "8 tokens with documents, want 0");
  shape_.has_documents = true;
  ExpectRefused([](Assignment&) {}, "vnode 0: 0 tokens with documents, want 8");
  for (VnodeBatch& batch : good_.vnodes) batch.document_first = {0, 0, 2, 2, 0, 1, 1, 1};
  EXPECT_OK(Check(good_));
  ExpectRefused([](Assignment& a) { a.vnodes[1].document_first[3] = 1; }, "vnode 1");
}

// Who drops others is another program, and would train another model.
TEST_F(AssignmentCheckTest, LayersAreDroppedAsTheRunSays) {
  ExpectRefused([](Assignment& a) { a.dropped = {LayerId(2)}; },
                "the daemon says {2}, depth.drop of the run gives {}; use worker and daemon of one version");
  run_.layer_drop.share = 0.9;
  for (int step = 0; Check(good_).ok(); ++step) {
    ASSERT_LT(step, 20);
    good_.step = StepId(step);
  }
  good_.evaluation_round = 0;  // which drops none
  EXPECT_OK(Check(good_));
}

}  // namespace
}  // namespace eps::worker
