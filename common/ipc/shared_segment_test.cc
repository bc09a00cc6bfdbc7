#include "common/ipc/shared_segment.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "common/testing/status_matchers.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

using absl::StatusCode;

FileDescriptor Duplicate(const SharedSegment& segment) { return FileDescriptor(dup(segment.file().get())); }

std::byte ByteAt(int64_t place) { return static_cast<std::byte>(place * 7 + (place >> 12)); }

// Of this process, in shared memory.
int64_t ResidentSharedKib() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    int64_t kib = 0;
    if (word == "RssShmem:" && status >> kib) return kib;
  }
  return -1;
}

TEST(SharedSegmentTest, WhatTheCreatorWritesTheReceiverReads) {
  auto created = SharedSegment::Create("test", 10'000, SegmentWriter::kCreator);
  ASSERT_THAT(created, IsOk());
  auto received = SharedSegment::Map(Duplicate(*created), 10'000, SegmentWriter::kCreator);
  ASSERT_THAT(received, IsOk());
  EXPECT_EQ(received->bytes().size(), 10'000u);
  EXPECT_EQ(received->bytes()[9'999], std::byte{0});
  created->bytes()[9'999] = std::byte{42};
  EXPECT_EQ(received->bytes()[9'999], std::byte{42});
}

TEST(SharedSegmentTest, WhatTheReceiverWritesTheCreatorReads) {
  auto created = SharedSegment::Create("test", 4096, SegmentWriter::kReceiver);
  ASSERT_THAT(created, IsOk());
  auto received = SharedSegment::Map(Duplicate(*created), 4096, SegmentWriter::kReceiver);
  ASSERT_THAT(received, IsOk());
  received->bytes()[17] = std::byte{7};
  EXPECT_EQ(created->bytes()[17], std::byte{7});
}

TEST(SharedSegmentTest, AReaderCannotWriteInAnyWay) {
  auto created = SharedSegment::Create("test", 4096, SegmentWriter::kCreator);
  ASSERT_THAT(created, IsOk());
  auto file = created->ReadOnlyFile();
  ASSERT_THAT(file, IsOk());
  EXPECT_THAT(SharedSegment::Map(FileDescriptor(dup(file->get())), 4096, SegmentWriter::kBoth),
              StatusIs(StatusCode::kResourceExhausted));
  EXPECT_LT(pwrite(file->get(), "x", 1, 0), 0);
  const std::string again = "/proc/self/fd/" + std::to_string(file->get());
  if (geteuid() != 0) {  // who may open whatever there is
    EXPECT_FALSE(FileDescriptor(open(again.c_str(), O_RDWR | O_CLOEXEC)).is_open());
  }
  auto received = SharedSegment::Map(*std::move(file), 4096, SegmentWriter::kCreator);
  ASSERT_THAT(received, IsOk());
  EXPECT_NE(mprotect(received->bytes().data(), 4096, PROT_READ | PROT_WRITE), 0);
  created->bytes()[17] = std::byte{7};
  EXPECT_EQ(received->bytes()[17], std::byte{7});
}

TEST(SharedSegmentTest, WhoIsGivenTheCreatorsOwnFileMapsItWritable) {
  auto created = SharedSegment::Create("test", 4096, SegmentWriter::kCreator);
  ASSERT_THAT(created, IsOk());
  auto received = SharedSegment::Map(Duplicate(*created), 4096, SegmentWriter::kBoth);
  ASSERT_THAT(received, IsOk());
  received->bytes()[17] = std::byte{7};
  EXPECT_EQ(created->bytes()[17], std::byte{7});
}

TEST(SharedSegmentTest, NobodyChangesItsSizeOrItsSeals) {
  auto created = SharedSegment::Create("test", 8192, SegmentWriter::kReceiver);
  ASSERT_THAT(created, IsOk());
  EXPECT_NE(ftruncate(created->file().get(), 4096), 0);
  EXPECT_NE(ftruncate(created->file().get(), 16384), 0);
  EXPECT_NE(fcntl(created->file().get(), F_ADD_SEALS, F_SEAL_WRITE), 0);
}

TEST(SharedSegmentTest, AnotherSizeIsRefused) {
  auto created = SharedSegment::Create("test", 8192, SegmentWriter::kCreator);
  ASSERT_THAT(created, IsOk());
  EXPECT_THAT(SharedSegment::Map(Duplicate(*created), 8191, SegmentWriter::kCreator),
              StatusIs(StatusCode::kInvalidArgument, "shared memory: 8192 bytes, want 8191"));
}

TEST(SharedSegmentTest, AFileThatMayShrinkIsRefused) {
  FileDescriptor file(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(file.get(), 4096), 0);
  EXPECT_THAT(SharedSegment::Map(std::move(file), 4096, SegmentWriter::kCreator),
              StatusIs(StatusCode::kInvalidArgument, "shared memory: not sealed against shrinking"));
}

TEST(SharedSegmentTest, WhatIsReadIsWhatThePeerWroteAndIsNotResident) {
  constexpr int64_t kBytes = int64_t{16} << 20;
  auto created = SharedSegment::Create("test", kBytes, SegmentWriter::kReceiver);
  ASSERT_THAT(created, IsOk());
  const pid_t child = fork();  // so that no page of it is mapped here
  if (child == 0) {
    auto received = SharedSegment::Map(Duplicate(*created), kBytes, SegmentWriter::kReceiver);
    if (!received.ok()) _exit(1);
    for (int64_t i = 0; i < kBytes; ++i) received->bytes()[static_cast<size_t>(i)] = ByteAt(i);
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  ASSERT_EQ(status, 0);

  std::vector<std::byte> to(static_cast<size_t>(kBytes));
  std::memset(to.data(), 1, to.size());
  const int64_t before_kib = ResidentSharedKib();
  ASSERT_OK(created->Read(0, absl::MakeSpan(to)));
  EXPECT_LT(ResidentSharedKib(), before_kib + 1024);
  for (int64_t i = 0; i < kBytes; ++i) ASSERT_EQ(to[static_cast<size_t>(i)], ByteAt(i)) << i;
  // The last bytes, from a place that no page begins at.
  ASSERT_OK(created->Read(kBytes - 4099, absl::MakeSpan(to).subspan(0, 4099)));
  for (int64_t i = 0; i < 4099; ++i) ASSERT_EQ(to[static_cast<size_t>(i)], ByteAt(kBytes - 4099 + i)) << i;
  EXPECT_OK(created->Read(kBytes, {}));
}

TEST(SharedSegmentTest, AnImpossibleSizeIsRefusedWithWhatWasNeeded) {
  EXPECT_THAT(SharedSegment::Create("test", int64_t{1} << 62, SegmentWriter::kCreator),
              StatusIs(StatusCode::kResourceExhausted));
}

TEST(SharedSegmentTest, TheMemoryOutlivesTheProcessThatMadeIt) {
  auto created = SharedSegment::Create("test", 4096, SegmentWriter::kReceiver);
  ASSERT_THAT(created, IsOk());
  const pid_t child = fork();
  if (child == 0) {
    auto received = SharedSegment::Map(Duplicate(*created), 4096, SegmentWriter::kReceiver);
    if (received.ok()) std::memset(received->bytes().data(), 5, 4096);
    kill(getpid(), SIGKILL);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(created->bytes()[4095], std::byte{5});
}

}  // namespace
}  // namespace eps
