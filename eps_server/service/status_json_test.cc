#include "eps_server/service/status_json.h"

#include <limits>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/escaping.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/testing/status_matchers.h"
#include "eps_server/membership/membership.h"
#include "eps_server/step/expert_load.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace eps::server {
namespace {

const DaemonIdentity kIdentity = {.incarnation = 66, .page_incarnation = 77, .folder = "runs/books", .run = "books"};

nlohmann::json Parse(const DaemonView& view) {
  const absl::StatusOr<std::string> text = StatusJson(kIdentity, view);
  EXPECT_OK(text.status());
  return nlohmann::json::parse(text.ok() ? *text : "{}");
}

TEST(StatusJsonTest, HasTheFieldsOfStatusReply) {
  DaemonView view{.phase = "training"};
  view.status.phase = RunPhase::kTraining;
  view.status.step = 41;
  view.status.loss_curve = {5, std::numeric_limits<double>::quiet_NaN()};
  view.status.blobs_updated = {false, true, true};
  view.status.model_flops_per_second = 2.5e12;
  WorkerStatus& worker = view.status.workers.emplace_back();
  worker.id = WorkerId(3);
  worker.state = WorkerState::kRunning;
  worker.info.device_model = "cpu A";
  worker.memory.device_outside_bytes = 350;
  const nlohmann::json json = Parse(view);
  EXPECT_EQ(json["state"], "training");
  EXPECT_EQ(json["run"], "books");
  EXPECT_EQ(json["incarnation"], "77");
  EXPECT_EQ(json["step"], "41");
  EXPECT_EQ(json["loss_curve"], nlohmann::json::parse(R"([5, "NaN"])"));
  EXPECT_EQ(json["blobs_updated"], nlohmann::json::parse("[false, true, true]"));
  EXPECT_EQ(json["blobs_pending"], "1");
  EXPECT_EQ(json["model_flops_per_second"], 2.5e12);
  EXPECT_EQ(json["workers"][0]["worker_id"], "3");
  EXPECT_EQ(json["workers"][0]["device_model"], "cpu A");
  EXPECT_EQ(json["workers"][0]["device_outside_bytes"], "350");
  EXPECT_EQ(json["checkpoint_failures"], "0");  // also what is zero
  EXPECT_FALSE(json.contains("start_work"));
}

TEST(StatusJsonTest, SaysWhatGoesOnBesideStepsOnlyWhileItDoes) {
  DaemonView view{.phase = "training"};
  nlohmann::json json = Parse(view);
  EXPECT_FALSE(json.contains("evaluating"));
  EXPECT_EQ(json["checkpoint_writing_step"], "-1");
  EXPECT_EQ(json["checkpoint_writing_seconds"], 0);
  EXPECT_EQ(json["learning_rate"], -1);
  EXPECT_EQ(json["workers_expected"], 0);
  EXPECT_EQ(json["start_in_seconds"], -1);
  EXPECT_EQ(json["updates_wait_for_norm"], false);

  view.status.evaluating = {.version = Version(40), .share = 0.25, .seconds = 3.5};
  view.status.checkpoint_writing_step = 12;
  view.status.checkpoint_writing_seconds = 9.5;
  view.status.workers_expected = 3;
  view.status.start_in_seconds = 41;
  view.status.updates_wait_for_norm = true;
  view.status.blobs_summed = 5;
  view.status.counted = "samples";
  view.status.workers.emplace_back().state = WorkerState::kLeft;
  json = Parse(view);
  EXPECT_EQ(json["evaluating"], nlohmann::json::parse(R"({"step": "40", "share": 0.25, "seconds": 3.5})"));
  EXPECT_EQ(json["checkpoint_writing_step"], "12");
  EXPECT_EQ(json["checkpoint_writing_seconds"], 9.5);
  EXPECT_EQ(json["workers_expected"], 3);
  EXPECT_EQ(json["start_in_seconds"], 41);
  EXPECT_EQ(json["updates_wait_for_norm"], true);
  EXPECT_EQ(json["blobs_summed"], "5");
  EXPECT_EQ(json["counted"], "samples");
  EXPECT_EQ(json["workers"][0]["state"], "left");
}

TEST(StatusJsonTest, HasAByteForTheLoadOfEachExpert) {
  DaemonView view{.phase = "training"};
  EXPECT_FALSE(Parse(view).contains("expert_load"));
  ExpertLoad load = *LoadOf({32, 1, 31, 0, 0, 0, 0, 0, 0}, {.blocks = 3, .experts = 3, .per_token = 1});
  load.load[3] = 1e-6f;
  load.load[4] = 100;
  load.load[5] = 0;
  view.status.expert_load = load;
  const nlohmann::json json = Parse(view)["expert_load"];
  EXPECT_EQ(json["blocks"], "3");
  EXPECT_EQ(json["experts"], "3");
  EXPECT_EQ(json["busiest"], 1.5);
  EXPECT_EQ(json["busiest_block"], "0");
  EXPECT_EQ(json["busiest_expert"], "0");
  EXPECT_EQ(json["mean_busiest"], 1.5);
  EXPECT_EQ(json["idle"], "0");
  EXPECT_EQ(json["running"], "3");
  std::string map;
  ASSERT_TRUE(absl::Base64Unescape(json["map"].get<std::string>(), &map));
  // In 32nds of an even share, but for what has few rows, or has many, or was left out.
  EXPECT_EQ(map, "\x30\x02\x2f\x01\xfe" + std::string(1, '\0') + "\xff\xff\xff");
}

TEST(StatusJsonTest, OfPreferencesItHasAccuracyAndRewards) {
  DaemonView view{.phase = "training"};
  view.status.evaluation = {.version = Version(3), .accuracy = 0.5};
  EXPECT_FALSE(Parse(view).contains("pairs"));
  EXPECT_FALSE(Parse(view)["evaluation"].contains("pairs"));
  view.status.pairs = {.accuracy = 0.75, .rewards = {.chosen = 0.25, .rejected = -0.5}};
  view.status.evaluation->rewards = {.chosen = 2, .rejected = 1};
  const nlohmann::json json = Parse(view);
  EXPECT_EQ(json["pairs"], nlohmann::json({{"accuracy", 0.75}, {"chosen_reward", 0.25}, {"rejected_reward", -0.5}}));
  EXPECT_EQ(json["evaluation"]["pairs"]["accuracy"], 0.5);
  EXPECT_EQ(json["evaluation"]["pairs"]["chosen_reward"], 2);
}

TEST(StatusJsonTest, OfADaemonThatStartsItSaysWhatThatIsAt) {
  const nlohmann::json json =
      Parse({.start_work = {.what = "reading the checkpoint", .done_bytes = 3, .total_bytes = 4, .seconds = 1.5}});
  EXPECT_EQ(json["state"], "starting");
  EXPECT_EQ(json["run"], "books");
  EXPECT_EQ(json["start_work"]["what"], "reading the checkpoint");
  EXPECT_EQ(json["start_work"]["total_bytes"], "4");
  EXPECT_EQ(json["eta_seconds"], -1);
  EXPECT_EQ(json["learning_rate"], -1);
  EXPECT_EQ(json["checkpoint_writing_step"], "-1");
  EXPECT_EQ(json["start_in_seconds"], -1);
}

TEST(StatusJsonTest, SaysNoFolders) {
  DaemonView view{.phase = "failed"};
  view.status.failure = "/home/ann/books/data.bin: cannot be read, as /home/ann/other/x";
  view.status.checkpoint_error = "runs/books/checkpoints/step-60/b\xff.safetensors: Input/output error";
  view.status.newest_checkpoint = "runs/books/checkpoints/step-00000040";
  view.keys.not_reloaded = "/etc/eps/server.key: is not the key of /etc/eps/server.crt";
  const nlohmann::json json = Parse(view);
  EXPECT_EQ(json["failure"], "data.bin: cannot be read, as x");
  EXPECT_EQ(json["checkpoint_error"], "checkpoints/step-60/b\uFFFD.safetensors: Input/output error");
  EXPECT_EQ(json["newest_checkpoint"], "step-00000040");
  EXPECT_EQ(json["keys"]["not_reloaded"], "server.key: is not the key of server.crt");
  EXPECT_EQ(Parse({.start_work = {.what = "tokenizing \"merger/books.txt\""}})["start_work"]["what"],
            "tokenizing \"books.txt\"");
}

TEST(StatusJsonTest, SaysHowLongCertificatesLastWhereThereAreSome) {
  DaemonView view{.phase = "training"};
  EXPECT_FALSE(Parse(view).contains("keys"));
  view.keys.expires = absl::Now() + absl::Hours(2);
  const double left = Parse(view)["keys"]["expires_in_seconds"];
  EXPECT_LE(left, 7200);
  EXPECT_GT(left, 3600);
}

TEST(StatusJsonTest, OfOneThatServesOrHasEndedItSaysThat) {
  EXPECT_EQ(Parse({.phase = "serving"})["state"], "serving");
  EXPECT_EQ(Parse({.phase = "finished"})["state"], "finished");
}

}  // namespace
}  // namespace eps::server
