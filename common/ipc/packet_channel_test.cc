#include "common/ipc/packet_channel.h"

#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/testing/status_matchers.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

using absl::StatusCode;

class PacketChannelTest : public testing::Test {
 protected:
  PacketChannelTest() {
    int fds[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
    first_ = FileDescriptor(fds[0]);
    second_ = FileDescriptor(fds[1]);
  }
  static std::unique_ptr<PacketChannel> Channel(FileDescriptor socket, PacketChannel::Options options = {}) {
    return PacketChannel::Create(std::move(socket), std::move(options)).value();
  }
  FileDescriptor first_, second_;
};

TEST_F(PacketChannelTest, PacketsArriveInOrderAlsoThoseThatThePeerTakesLate) {
  constexpr int kPackets = 5000;  // more than a socket holds
  const auto sender = Channel(std::move(first_), {.max_queued = kPackets});
  const auto receiver = Channel(std::move(second_));
  for (int i = 0; i < kPackets; ++i) sender->Send(absl::StrCat("packet ", i));
  std::thread flushes([&] {
    EXPECT_THAT(sender->Run([](absl::string_view) { return absl::OkStatus(); }), StatusIs(StatusCode::kUnavailable));
  });
  int received = 0;
  EXPECT_THAT(receiver->Run([&](absl::string_view packet) {
    EXPECT_EQ(packet, absl::StrCat("packet ", received));
    return ++received == kPackets ? absl::CancelledError("enough") : absl::OkStatus();
  }),
              StatusIs(StatusCode::kCancelled, "enough"));
  flushes.join();
}

TEST_F(PacketChannelTest, APeerThatTakesNothingEndsTheChannelAndBlocksNobody) {
  const auto channel = Channel(std::move(first_), {.max_queued = 10});
  for (int i = 0; i < 10'000; ++i) channel->Send(std::string(64, 'x'));
  EXPECT_THAT(channel->Run([](absl::string_view) { return absl::OkStatus(); }),
              StatusIs(StatusCode::kResourceExhausted));
}

TEST_F(PacketChannelTest, APeerThatIsGoneIsCalledAsTheOwnerCallsIt) {
  const auto channel = Channel(std::move(first_), {.peer = "the daemon"});
  second_ = FileDescriptor();
  EXPECT_EQ(channel->Run([](absl::string_view) { return absl::OkStatus(); }),
            absl::UnavailableError("the daemon is gone"));
}

TEST_F(PacketChannelTest, APacketThatCannotBeSentEndsTheChannel) {
  const auto channel = Channel(std::move(first_));
  std::thread sender([&] { channel->Send(std::string(64 << 20, 'x')); });  // more than any socket takes at once
  EXPECT_THAT(channel->Run([](absl::string_view) { return absl::OkStatus(); }),
              StatusIs(StatusCode::kUnavailable, "a packet of 67108864 bytes cannot be sent: Message too long"));
  sender.join();
}

TEST_F(PacketChannelTest, APacketThatIsTooLongEndsTheChannel) {
  const auto channel = Channel(std::move(first_), {.max_packet_bytes = 64});
  const std::string packet(65, 'x');
  ASSERT_EQ(send(second_.get(), packet.data(), packet.size(), 0), 65);
  EXPECT_THAT(channel->Run([](absl::string_view) { return absl::OkStatus(); }),
              StatusIs(StatusCode::kInvalidArgument, "a packet of 65 bytes, at most 64"));
}

TEST_F(PacketChannelTest, CloseFromAnotherThreadEndsTheRunWithItsReason) {
  const auto channel = Channel(std::move(first_));
  std::thread closer([&] {
    channel->Close(absl::AbortedError("first"));
    channel->Close(absl::InternalError("second"));
  });
  EXPECT_THAT(channel->Run([](absl::string_view) { return absl::OkStatus(); }),
              StatusIs(StatusCode::kAborted, "first"));
  closer.join();
}

TEST_F(PacketChannelTest, TheLastWordArrivesAndThenTheEnd) {
  const auto one = Channel(std::move(first_));
  const auto other = Channel(std::move(second_));
  other->Send("never read");
  one->Close(absl::AbortedError("enough"), "go away");
  one->Send("too late");
  std::vector<std::string> received;
  EXPECT_THAT(other->Run([&](absl::string_view packet) {
    received.emplace_back(packet.data(), packet.size());
    return absl::OkStatus();
  }),
              StatusIs(StatusCode::kUnavailable));
  EXPECT_EQ(received, std::vector<std::string>{"go away"});
}

}  // namespace
}  // namespace eps
