#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "gpu_worker/transport/control.h"
#include "gpu_worker/transport/control_messages.h"
#include "gpu_worker/transport/control_messages_input.h"
#include "gtest/gtest.h"
#include "proto/control.pb.h"

// A fuzzer whose seeds are refused at their first field finds nothing behind it.

namespace eps::worker {
namespace {

constexpr char kSeeds[] = "gpu_worker/transport/testdata/control_messages_fuzz";

std::map<std::string, std::string> ReadSeeds() {
  std::map<std::string, std::string> seeds;
  for (const auto& entry : std::filesystem::directory_iterator(kSeeds)) {
    std::ifstream file(entry.path(), std::ios::binary);
    seeds[entry.path().filename()] = std::string((std::istreambuf_iterator<char>(file)), {});
  }
  return seeds;
}

bool IsBad(const std::string& name) { return absl::StartsWith(name, "bad_"); }

absl::StatusOr<Order> OrderOf(const std::string& seed) {
  proto::DaemonEvent event;
  EXPECT_TRUE(event.ParseFromString(seed.substr(1)));
  return ToOrder(event, *FuzzedAttachment(static_cast<uint8_t>(seed[0])));
}

TEST(ControlMessagesSeedsTest, SeedsAreTakenButForThoseThatAreCalledBad) {
  for (const auto& [name, seed] : ReadSeeds()) {
    SCOPED_TRACE(name);
    ASSERT_FALSE(seed.empty());
    absl::Status taken;
    if (FuzzedAttachment(static_cast<uint8_t>(seed[0])) == nullptr) {
      proto::AttachReply reply;
      ASSERT_TRUE(reply.ParseFromString(seed.substr(1)));
      taken = ToAttachment(reply).status();
    } else {
      taken = OrderOf(seed).status();
    }
    EXPECT_EQ(taken.ok(), !IsBad(name)) << taken;
  }
}

TEST(ControlMessagesSeedsTest, ThereIsOneOfEachKindAndOfWhatAnAssignmentMayHave) {
  std::vector<Order> orders;
  for (const auto& [name, seed] : ReadSeeds()) {
    if (IsBad(name) || FuzzedAttachment(static_cast<uint8_t>(seed[0])) == nullptr) continue;
    if (auto order = OrderOf(seed); order.ok()) orders.push_back(*std::move(order));
  }
  for (size_t kind = 0; kind < std::variant_size_v<Order>; ++kind) {
    EXPECT_TRUE(std::any_of(orders.begin(), orders.end(), [&](const Order& order) { return order.index() == kind; }))
        << kind;
  }
  const auto some_assignment = [&](auto has) {
    return std::any_of(orders.begin(), orders.end(), [&](const Order& order) {
      const auto* assignment = std::get_if<Assignment>(&order);
      return assignment != nullptr && has(*assignment);
    });
  };
  EXPECT_TRUE(some_assignment([](const Assignment& a) { return a.group.has_value(); }));
  EXPECT_TRUE(some_assignment([](const Assignment& a) { return !a.dropped.empty(); }));
  EXPECT_TRUE(some_assignment([](const Assignment& a) {
    return a.evaluation_round.has_value() && a.step.value() == FuzzedAttachment(0)->run.steps;
  }));
  EXPECT_TRUE(some_assignment([](const Assignment& a) { return !a.vnodes.front().document_first.empty(); }));
  EXPECT_TRUE(some_assignment([](const Assignment& a) { return !a.vnodes.front().types.empty(); }));
  const auto some_group = [&](bool founds) {
    return std::any_of(orders.begin(), orders.end(), [&](const Order& order) {
      const auto* form = std::get_if<FormGroupOrder>(&order);
      return form != nullptr && (form->rank == 0) == founds;
    });
  };
  EXPECT_TRUE(some_group(true));
  EXPECT_TRUE(some_group(false));
}

}  // namespace
}  // namespace eps::worker
