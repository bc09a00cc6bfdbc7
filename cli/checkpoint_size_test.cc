#include "cli/checkpoint_size.h"

#include "common/model/model_spec.h"
#include "common/spec/moment_format.h"
#include "common/spec/run_config.h"
#include "gtest/gtest.h"

namespace eps::cli {
namespace {

constexpr int kWidth = 60;  // no multiple of what blobs are aligned to: their padding is in no file

TEST(CheckpointSizeTest, MastersAreInFp32AndMomentsAsTheyAreKept) {
  const ModelSpec model =
      BuildModel({.num_layers = 2, .d_model = kWidth, .num_heads = 1, .context = 64, .vocab = 64}).value();
  RunConfig run;
  EXPECT_EQ(SizeOfCheckpoints(model, run).bytes_of(1), 12 * model.num_parameters());  // AdamW
  run.precision.moments = MomentFormat::kBf16;
  EXPECT_EQ(SizeOfCheckpoints(model, run).bytes_of(1), 8 * model.num_parameters());
  run.optimizer.rule = OptimizerRule::kSgd;
  EXPECT_EQ(SizeOfCheckpoints(model, run).bytes_of(1), 4 * model.num_parameters());
}

TEST(CheckpointSizeTest, OfFrozenTensorsTheWireFormIsAllAndIsThereOnce) {
  const ModelSpec model = BuildModel({.num_layers = 2,
                                      .d_model = kWidth,
                                      .num_heads = 1,
                                      .context = 64,
                                      .vocab = 64,
                                      .freeze = {"*", "!transformer.wpe.weight"}})
                              .value();
  const int64_t trained = 64 * kWidth;
  const int64_t frozen = model.num_parameters() - trained;
  EXPECT_EQ(SizeOfCheckpoints(model, {}).bytes_of(1), 12 * trained + 2 * frozen);
  EXPECT_EQ(SizeOfCheckpoints(model, {}).bytes_of(3), 3 * 12 * trained + 2 * frozen);
}

TEST(CheckpointSizeTest, QuantizedTensorsHave16BitsInAnyWire) {
  RunConfig run;
  run.model = {.num_layers = 2, .d_model = kWidth, .num_heads = 1, .context = 64, .vocab = 64, .freeze = {"*.h.*"}};
  run.model.frozen_format = QuantizedFormat::kMxInt8;
  run.precision.wire = Dtype::kF32;
  const ModelSpec model = BuildModel(run.model).value();
  const int64_t trained = model.num_trainable_parameters(), matrices = 2 * 12 * kWidth * kWidth;
  EXPECT_EQ(SizeOfCheckpoints(model, run).bytes_of(1),
            12 * trained + 2 * matrices + 4 * (model.num_parameters() - trained - matrices));
}

TEST(CheckpointSizeTest, ThoseThatAreKeptForGoodAddUp) {
  RunConfig run;
  run.steps = 100;
  run.checkpoint = {.every_steps = 10, .keep = 2};
  EXPECT_EQ(CheckpointsThatStay(run), 2);
  run.checkpoint.keep_every_steps = 20;
  EXPECT_EQ(CheckpointsThatStay(run), 2 + 4);
}

TEST(CheckpointSizeTest, ARoomThatIsTooSmallForOneIsToldWithBothFigures) {
  EXPECT_EQ(CheckpointRoomWarning(2 << 20, 2 << 20, "out/x"), "");
  EXPECT_EQ(CheckpointRoomWarning((2 << 20) + 1, 64 << 10, "out/x"),
            "the next checkpoint of this run takes 2.0 MiB, and there are 64.0 KiB free for out/x: make room before "
            "one is due, or what is trained is lost");
}

}  // namespace
}  // namespace eps::cli
