#include "common/checkpoint/update_counts.h"

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/base/ids.h"
#include "common/checkpoint/run_state.h"
#include "common/model/model_spec.h"
#include "common/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

using ::testing::IsEmpty;

// wte, wpe, h.0, h.1, h.1.frozen, ln_f
ModelSpec Model() {
  return BuildModel({.num_layers = 2,
                     .d_model = 8,
                     .num_heads = 2,
                     .context = 4,
                     .vocab = 16,
                     .freeze = {"transformer.h.1.ln_1.*"}})
      .value();
}

TEST(UpdateCountsTest, WithoutCountsEveryBlobHadEveryStepThatWasNotSkipped) {
  const RunState state{.version = Version(10), .skipped_steps = 3};
  EXPECT_THAT(UpdatesOfBlobs(state, Model()), IsOkAndHolds(std::vector<int64_t>(6, 7)));
  EXPECT_THAT(UpdatesByName(std::vector<int64_t>(6, 7), state, Model()), IsEmpty());
}

TEST(UpdateCountsTest, CountsThatDifferAreKeptByName) {
  RunState state{.version = Version(10), .skipped_steps = 3};
  const std::vector<int64_t> updates = {7, 7, 5, 4, 7, 7};
  state.updates = UpdatesByName(updates, state, Model());
  EXPECT_EQ(state.updates,
            (std::map<std::string, int64_t>{{"wte", 7}, {"wpe", 7}, {"h.0", 5}, {"h.1", 4}, {"ln_f", 7}}));
  EXPECT_THAT(UpdatesOfBlobs(state, Model()), IsOkAndHolds(updates));
}

TEST(UpdateCountsTest, NamesThatAreNotThoseOfTheModelAreRefused) {
  RunState state{.version = Version(10)};
  state.updates = {{"wte", 7}, {"wpe", 7}, {"h.0", 5}, {"ln_f", 7}};
  EXPECT_THAT(UpdatesOfBlobs(state, Model()), StatusIs(absl::StatusCode::kDataLoss, "updates.h.1: found nothing"));
  state.updates["h.1"] = 3;
  EXPECT_OK(UpdatesOfBlobs(state, Model()));
  state.updates["h.1.frozen"] = 3;
  EXPECT_THAT(UpdatesOfBlobs(state, Model()),
              StatusIs(absl::StatusCode::kDataLoss, "found 6 blobs, the model trains 5"));
}

}  // namespace
}  // namespace eps
