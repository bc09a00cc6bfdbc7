#include "eps_server/store/paged_memory.h"

#include <sys/resource.h>

#include <csignal>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "common/testing/status_matchers.h"
#include "common/testing/temp_dir.h"
#include "eps_server/store/scratch_file.h"
#include "eps_server/store/scratch_speed.h"
#include "gtest/gtest.h"

namespace eps::server {
namespace {

using Access = PagedMemory::Access;

constexpr int64_t kPageBytes = 64 << 10;

// `pages`, the last of which is short.
PagedMemory::Options OptionsOf(const TempDir& dir, int64_t pages) {
  return {.what = "pages",
          .pages = {{.count = pages - 1, .num_bytes = kPageBytes}, {.count = 1, .num_bytes = 192}},
          .folder = dir.path()};
}

int64_t& FirstOf(const std::shared_ptr<std::byte>& page) { return *reinterpret_cast<int64_t*>(page.get()); }

TEST(PagingSizesTest, PagesTakeWholeBlocksOfTheDiskAndAFewOfThemMemory) {
  const PagingSizes few = ComputePagingSizes(std::vector<PageRun>{{1, 4096}, {1, 64}, {2, 8192}});
  EXPECT_EQ(few.disk_bytes, 4096 + 4096 + 2 * 8192);
  EXPECT_EQ(few.memory_bytes(), 4 * 8192);
  const PagingSizes many = ComputePagingSizes(std::vector<PageRun>{{int64_t{1} << 40, 4096}});
  EXPECT_EQ(many.memory_bytes(), 32 * 4096);
  EXPECT_EQ(ComputePagingSizes({}).memory_bytes(), 0);
}

TEST(PagedMemoryTest, EachPageKeepsWhatWasWrittenWhateverIsOpenedMeanwhile) {
  const TempDir dir;
  auto options = OptionsOf(dir, 200);
  options.initialize = [](int64_t page, std::byte* memory) { *reinterpret_cast<int64_t*>(memory) = -page; };
  const auto memory = PagedMemory::Create(std::move(options)).value();
  for (int64_t page = 0; page < 200; ++page) {
    const auto opened = memory->Open(page, Access::kWrite).value();
    EXPECT_EQ(FirstOf(opened), -page);
    EXPECT_EQ(opened.get()[191], std::byte{0});
    FirstOf(opened) = page * page;
    opened.get()[191] = static_cast<std::byte>(page);
  }
  for (int64_t page = 199; page >= 0; --page) {
    const auto opened = memory->Open(page, Access::kRead).value();
    EXPECT_EQ(FirstOf(opened), page * page);
    EXPECT_EQ(opened.get()[191], static_cast<std::byte>(page));
  }
  EXPECT_GE(memory->counts().read_bytes, (200 - 32) * kPageBytes);
  EXPECT_GE(memory->counts().written_bytes, (200 - 32) * kPageBytes);
  EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
}

TEST(PagedMemoryTest, WhatIsOnlyReadIsNotWritten) {
  const TempDir dir;
  const auto memory = PagedMemory::Create(OptionsOf(dir, 100)).value();
  for (int64_t page = 0; page < 100; ++page) EXPECT_EQ(FirstOf(memory->Open(page, Access::kRead).value()), 0);
  EXPECT_EQ(memory->counts().written_bytes, 0);
  EXPECT_EQ(memory->counts().read_bytes, 0);
}

// Several threads open the same page, more of them than there are frames wait, and others are read ahead.
TEST(PagedMemoryTest, ManyThreadsFindEachOthersBytes) {
  const TempDir dir;
  constexpr int kThreads = 40, kRounds = 200;
  constexpr int64_t kPages = 90;
  const auto memory = PagedMemory::Create(OptionsOf(dir, kPages)).value();
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&memory, t] {
      std::mt19937 random(static_cast<unsigned>(t));
      std::map<int64_t, unsigned char> wrote;  // by page; this thread's byte is its own
      for (int round = 0; round < kRounds; ++round) {
        const int64_t page = random() % kPages;
        memory->Prefetch(random() % kPages);
        const auto access = random() % 2 == 0 ? Access::kRead : Access::kWrite;
        const auto opened = memory->Open(page, access).value();
        auto& byte = reinterpret_cast<unsigned char*>(opened.get())[64 + t];
        ASSERT_EQ(byte, wrote[page]) << t << " " << page;
        if (access == Access::kWrite) byte = wrote[page] = static_cast<unsigned char>(round + 1);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(PagedMemoryTest, WhatIsReadAheadIsThereWhenItIsOpened) {
  const TempDir dir;
  const auto memory = PagedMemory::Create(OptionsOf(dir, 100)).value();
  for (int64_t page = 0; page < 100; ++page) FirstOf(memory->Open(page, Access::kWrite).value()) = page;
  memory->Prefetch(1);
  // Waits for what is under way, or finds it there: either way it is read once.
  while (memory->counts().read_bytes == 0) std::this_thread::yield();
  EXPECT_EQ(FirstOf(memory->Open(1, Access::kRead).value()), 1);
  EXPECT_EQ(memory->counts().read_bytes, kPageBytes);
}

// What a write says that a disk refuses, whatever opens a page next says: nothing is taken for kept that is not.
TEST(PagedMemoryTest, AfterAnErrorNoPageIsOpened) {
  const TempDir dir;
  const auto memory = PagedMemory::Create(OptionsOf(dir, 200)).value();
  struct rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  signal(SIGXFSZ, SIG_IGN);
  struct rlimit short_files = before;
  short_files.rlim_cur = 16 * kPageBytes;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &short_files), 0);
  absl::Status status;
  for (int64_t page = 0; page < 200 && status.ok(); ++page) status = memory->Open(page, Access::kWrite).status();
  EXPECT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kUnavailable, "File too large"));
  EXPECT_EQ(memory->Open(150, Access::kRead).status(), status);
}

TEST(PagedMemoryTest, AFolderThatIsNotThereAndADiskWithoutRoomAreNamed) {
  const TempDir dir;
  auto options = OptionsOf(dir, 10);
  options.folder = dir.File("gone");
  EXPECT_THAT(PagedMemory::Create(options).status(), StatusIs(absl::StatusCode::kNotFound, "gone"));
  EXPECT_THAT(ScratchFile::Create(dir.path(), int64_t{1} << 43).status(),
              StatusIs(absl::StatusCode::kUnavailable, "take 8.0 TiB in"));
  EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
}

TEST(ScratchSpeedTest, IsThatOfTheFoldersDisk) {
  const TempDir dir;
  ASSERT_OK_AND_ASSIGN(const double speed, MeasureScratchBytesPerSecond(dir.path()));
  EXPECT_GT(speed, 1e5);
  EXPECT_LT(speed, 1e12);
  EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
  EXPECT_THAT(MeasureScratchBytesPerSecond(dir.File("gone")).status(), StatusIs(absl::StatusCode::kNotFound, "gone"));
}

TEST(ScratchFileTest, WhatIsBeyondItsEndIsAnErrorWithItsOffset) {
  const TempDir dir;
  const ScratchFile file = ScratchFile::Create(dir.path(), 8192).value();
  alignas(4096) static std::byte bytes[8192];
  std::memset(bytes, 7, sizeof(bytes));
  EXPECT_OK(file.Write(4096, {bytes, 4096}));
  EXPECT_OK(file.Read(0, {bytes, 8192}));
  EXPECT_EQ(bytes[0], std::byte{0});
  EXPECT_EQ(bytes[4096], std::byte{7});
  EXPECT_THAT(file.Read(4096, {bytes, 8192}), StatusIs(absl::StatusCode::kDataLoss, "ends at byte 8192"));
}

}  // namespace
}  // namespace eps::server
