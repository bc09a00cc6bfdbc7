#include "gpu_worker/group/shared_memory_group.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/ipc/unix_socket.h"
#include "common/testing/status_matchers.h"
#include "gpu_worker/device/cpu/cpu_device.h"
#include "gpu_worker/group/group_conformance.h"
#include "gpu_worker/group/shared_ring.h"
#include "gtest/gtest.h"

namespace eps::worker {
namespace {

using absl::StatusCode;

INSTANTIATE_TEST_SUITE_P(
    SharedMemory, GroupConformanceTest,
    testing::ValuesIn(GroupCases({.name = "shared_memory",
                                  .new_maker = &NewSharedMemoryGroupMaker,
                                  .new_device =
                                      [](int64_t arena_bytes) {
                                        return NewCpuDevice({.arena_bytes = arena_bytes, .threads = 1}).value();
                                      }})),
    testing::PrintToStringParamName());

TEST(SharedRingTest, WhatDoesNotFitWaitsAndNothingIsLostAtTheSeam) {
  const auto ring = std::make_unique<SharedRing>();
  std::vector<std::byte> sent(3 * SharedRing::kDataBytes + 77), got(sent.size());
  for (size_t i = 0; i < sent.size(); ++i) sent[i] = static_cast<std::byte>(i * 31 + i / 257);
  size_t written = 0, read = 0;
  EXPECT_EQ(ring->Read(absl::MakeSpan(got)), 0u);
  while (read < got.size()) {
    written += ring->Write(absl::MakeConstSpan(sent).subspan(written));
    EXPECT_LE(written - read, SharedRing::kDataBytes);
    EXPECT_EQ(ring->Write(absl::MakeConstSpan(sent).subspan(written)), 0u) << "full, or all is written";
    read += ring->Read(absl::MakeSpan(got).subspan(read, std::min<size_t>(50001, got.size() - read)));
  }
  EXPECT_EQ(std::memcmp(sent.data(), got.data(), sent.size()), 0);
}

TEST(SharedMemoryGroupTest, StrangersAreTurnedAwayAndTheMembersStillJoin) {
  const auto maker = NewSharedMemoryGroupMaker();
  Joined first, second, stranger;
  std::string token;
  auto zero = maker->Found({.id = 5, .rank = 0, .size = 2, .on_joined = [&](absl::Status s) { first.Set(s); }}, token);
  ASSERT_OK(zero);
  auto other =
      maker->Join({.id = 6, .rank = 1, .size = 2, .on_joined = [&](absl::Status s) { stranger.Set(s); }}, token);
  ASSERT_OK(other);
  EXPECT_THAT(stranger.Wait(), StatusIs(StatusCode::kAborted));
  // One that connects and says nothing sensible.
  ASSERT_OK_AND_ASSIGN(FileDescriptor socket, ConnectLocal(token));
  ASSERT_OK(SendPacket(socket, "who are you?", {}, absl::Seconds(5)));
  auto one = maker->Join({.id = 5, .rank = 1, .size = 2, .on_joined = [&](absl::Status s) { second.Set(s); }}, token);
  ASSERT_OK(one);
  EXPECT_OK(first.Wait());
  EXPECT_OK(second.Wait());
}

TEST(SharedMemoryGroupTest, ATokenThatLeadsNowhereIsToldAtJoining) {
  const auto maker = NewSharedMemoryGroupMaker();
  Joined joined;
  auto group = maker->Join({.id = 5, .rank = 1, .size = 2, .on_joined = [&](absl::Status s) { joined.Set(s); }},
                           "/nowhere/data");
  ASSERT_OK(group);
  EXPECT_THAT(joined.Wait(), StatusIs(StatusCode::kAborted, "/nowhere/data"));
}

TEST(SharedMemoryGroupTest, OfALongReasonTheOthersAreToldTheEnd) {
  const auto maker = NewSharedMemoryGroupMaker();
  Joined first, second;
  std::string token;
  auto zero = maker->Found({.id = 5, .rank = 0, .size = 2, .on_joined = [&](absl::Status s) { first.Set(s); }}, token);
  ASSERT_OK(zero);
  auto one = maker->Join({.id = 5, .rank = 1, .size = 2, .on_joined = [&](absl::Status s) { second.Set(s); }}, token);
  ASSERT_OK(one);
  ASSERT_OK(first.Wait());
  ASSERT_OK(second.Wait());
  (*zero)->End(absl::InternalError(std::string(5000, 'x') + ": no memory"));
  while ((*one)->status().ok()) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_THAT((*one)->status(), StatusIs(StatusCode::kAborted, "the group has ended: member 0: xxx"));
  EXPECT_THAT((*one)->status(), StatusIs(StatusCode::kAborted, "xxx: no memory"));
}

// A process that is killed while the others wait for it, as after the out-of-memory killer.
TEST(SharedMemoryGroupTest, AMemberThatIsKilledEndsTheGroupOfTheOthers) {
  int pipe_of_token[2];
  ASSERT_EQ(pipe(pipe_of_token), 0);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    char token[256] = {};
    if (read(pipe_of_token[0], token, sizeof(token) - 1) <= 0) _exit(1);
    const auto maker = NewSharedMemoryGroupMaker();
    auto group = maker->Join({.id = 9, .rank = 1, .size = 2, .on_joined = [](absl::Status) {}}, token);
    while (group.ok()) pause();
    _exit(1);
  }
  const auto device = NewCpuDevice({.arena_bytes = 1 << 20, .threads = 1}).value();
  const auto maker = NewSharedMemoryGroupMaker();
  Joined joined;
  std::string token;
  auto group = maker->Found(
      {.id = 9, .rank = 0, .size = 2, .device = device.get(), .on_joined = [&](absl::Status s) { joined.Set(s); }},
      token);
  ASSERT_OK(group);
  ASSERT_EQ(write(pipe_of_token[1], token.data(), token.size()), static_cast<ssize_t>(token.size()));
  ASSERT_OK(joined.Wait());
  std::byte* memory = static_cast<std::byte*>(device->Address({.offset_bytes = 0, .num_bytes = 512}).value());
  Exchange exchange{.gives = {{}, {absl::MakeSpan(memory, 256)}}, .gets = {{}, {absl::MakeSpan(memory + 256, 256)}}};
  (*group)->Enqueue(GroupLane::kPush, std::move(exchange));
  ASSERT_EQ(kill(child, SIGKILL), 0);
  EXPECT_THAT(device->stream(StreamId::kOut).Synchronize(), StatusIs(StatusCode::kAborted, "member 1 is gone"));
  device->Recover();
  EXPECT_EQ(waitpid(child, nullptr, 0), child);
  close(pipe_of_token[0]);
  close(pipe_of_token[1]);
}

}  // namespace
}  // namespace eps::worker
