#include "common/ipc/unix_socket.h"

#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/testing/environment_variable.h"
#include "common/testing/status_matchers.h"
#include "common/testing/temp_dir.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

using absl::StatusCode;

constexpr absl::Duration kSoon = absl::Seconds(5);

class UnixSocketTest : public testing::Test {
 protected:
  // Paths below gtest's own folder may be too long for a socket.
  UnixSocketTest() : folder_("/tmp/eps-socket-test-XXXXXX") {
    EXPECT_NE(mkdtemp(folder_.data()), nullptr);
    runtime_dir_.Set(folder_.c_str());
  }
  ~UnixSocketTest() override { std::filesystem::remove_all(folder_); }

  int NumEntries() const {
    int count = 0;
    for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder_)) ++count;
    return count;
  }
  // Both ends of a connection.
  std::pair<FileDescriptor, FileDescriptor> Connected() {
    const auto listener = LocalListener::Create().value();
    FileDescriptor client = ConnectLocal(listener.path()).value();
    return {std::move(client), AcceptLocal(listener.socket()).value()};
  }

  std::string folder_;
  EnvironmentVariable runtime_dir_{"XDG_RUNTIME_DIR", nullptr};
};

TEST_F(UnixSocketTest, FolderAndSocketBelongToTheUserAloneAndAreRemoved) {
  {
    const auto listener = LocalListener::Create();
    ASSERT_THAT(listener, IsOk());
    struct stat status = {};
    ASSERT_EQ(stat(listener->path().c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 0777, 0600u);
    ASSERT_EQ(stat(DirName(listener->path()).c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 0777, 0700u);
    EXPECT_EQ(DirName(DirName(listener->path())), folder_);
  }
  EXPECT_EQ(NumEntries(), 0);
}

TEST_F(UnixSocketTest, WhatAKilledProcessLeftIsRemovedAtTheNextStartAndALivingOneIsLeftAlone) {
  const auto living = LocalListener::Create();
  ASSERT_THAT(living, IsOk());
  {
    const auto dead = LocalListener::Create();
    ASSERT_THAT(dead, IsOk());
    // A socket file that outlived its socket.
    const std::string left = folder_ + absl::StrCat("/eps-", getuid(), "-left");
    std::filesystem::create_directory(left);
    std::filesystem::rename(dead->path(), left + "/data");
  }
  EXPECT_EQ(NumEntries(), 2);
  const auto next = LocalListener::Create();
  ASSERT_THAT(next, IsOk());
  EXPECT_EQ(NumEntries(), 2);
  EXPECT_THAT(ConnectLocal(living->path()), IsOk());
  EXPECT_THAT(ConnectLocal(next->path()), IsOk());
}

TEST_F(UnixSocketTest, APathThatIsTooLongIsRefusedAndNothingIsLeft) {
  const std::string longer = folder_ + "/" + std::string(100, 'x');
  std::filesystem::create_directory(longer);
  runtime_dir_.Set(longer.c_str());
  EXPECT_THAT(LocalListener::Create(), StatusIs(StatusCode::kInvalidArgument));
  EXPECT_TRUE(std::filesystem::is_empty(longer));
}

TEST_F(UnixSocketTest, WithoutARuntimeFolderTheTemporaryOneIsTaken) {
  runtime_dir_.Set((folder_ + "/none").c_str());
  const EnvironmentVariable temporary("TMPDIR", folder_.c_str());
  const auto listener = LocalListener::Create();
  ASSERT_THAT(listener, IsOk());
  EXPECT_EQ(DirName(DirName(listener->path())), folder_);
}

TEST_F(UnixSocketTest, NobodyListensThere) {
  EXPECT_THAT(ConnectLocal(folder_ + "/none"), StatusIs(StatusCode::kNotFound));
}

TEST_F(UnixSocketTest, PacketsAndDescriptorsArrive) {
  auto [client, server] = Connected();
  EXPECT_THAT(CheckPeerUser(server), IsOk());
  int fds[2];
  ASSERT_EQ(pipe(fds), 0);
  FileDescriptor read_end(fds[0]), write_end(fds[1]);
  EXPECT_THAT(SendPacket(client, "one", {write_end.get()}, kSoon), IsOk());
  EXPECT_THAT(SendPacket(client, "two", {}, kSoon), IsOk());
  auto first = ReceivePacket(server, 64, kSoon);
  ASSERT_THAT(first, IsOk());
  EXPECT_EQ(first->bytes, "one");
  ASSERT_EQ(first->files.size(), 1u);
  EXPECT_EQ(write(first->files[0].get(), "x", 1), 1);
  char byte = 0;
  EXPECT_EQ(read(read_end.get(), &byte, 1), 1);
  auto second = ReceivePacket(server, 64, kSoon);
  ASSERT_THAT(second, IsOk());
  EXPECT_EQ(second->bytes, "two");
  EXPECT_TRUE(second->files.empty());
}

TEST_F(UnixSocketTest, APacketThatIsTooLongIsRefusedWhole) {
  auto [client, server] = Connected();
  EXPECT_THAT(SendPacket(client, std::string(65, 'x'), {}, kSoon), IsOk());
  EXPECT_THAT(ReceivePacket(server, 64, kSoon), StatusIs(StatusCode::kInvalidArgument));
}

TEST_F(UnixSocketTest, APeerThatSaysNothingIsNotWaitedForEver) {
  auto [client, server] = Connected();
  EXPECT_THAT(ReceivePacket(server, 64, absl::Milliseconds(20)), StatusIs(StatusCode::kDeadlineExceeded));
}

TEST_F(UnixSocketTest, APeerThatTakesNothingIsNotWaitedForEver) {
  auto [client, server] = Connected();
  absl::Status status;
  for (int i = 0; status.ok() && i < 100'000; ++i) {
    status = SendPacket(client, std::string(64, 'x'), {}, absl::Milliseconds(5));
  }
  EXPECT_THAT(status, StatusIs(StatusCode::kDeadlineExceeded));
}

TEST_F(UnixSocketTest, TheEndOfThePeerIsSeenAfterItsLastWordEvenIfItReadNothing) {
  auto [client, server] = Connected();
  EXPECT_THAT(SendPacket(client, "never read", {}, kSoon), IsOk());
  EXPECT_THAT(SendPacket(server, "go away", {}, kSoon), IsOk());
  { const FileDescriptor closed = std::move(server); }
  auto last = ReceivePacket(client, 64, kSoon);
  ASSERT_THAT(last, IsOk());
  EXPECT_EQ(last->bytes, "go away");
  EXPECT_THAT(ReceivePacket(client, 64, kSoon), StatusIs(StatusCode::kUnavailable));
}

}  // namespace
}  // namespace eps
