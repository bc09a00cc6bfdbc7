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

// `pages`, the last of which is short, of which `resident` stay in memory.
PagedMemory::Options OptionsOf(const TempDir& dir, int64_t pages, int64_t resident) {
  return {.what = "pages",
          .pages = {{.count = pages - 1, .num_bytes = kPageBytes}, {.count = 1, .num_bytes = 192}},
          .memory_bytes = resident * kPageBytes,
          .folder = dir.path()};
}

int64_t& FirstOf(const std::shared_ptr<std::byte>& page) { return *reinterpret_cast<int64_t*>(page.get()); }

TEST(PagingSizesTest, TheFirstPagesStayInMemoryAsFarAsItReaches) {
  const std::vector<PageRun> pages = {{1, 4096}, {1, 64}, {1, 8192}, {1, 128}};
  const PagingSizes all = ComputePagingSizes(pages, 1 << 20);
  EXPECT_EQ(all.resident_pages, 4);
  EXPECT_EQ(all.disk_bytes, 0);
  EXPECT_EQ(all.memory_bytes(), 12480);
  const PagingSizes some = ComputePagingSizes(pages, 4160);
  EXPECT_EQ(some.resident_pages, 2);
  EXPECT_EQ(some.disk_bytes, 8192 + 4096);
  EXPECT_EQ(some.memory_bytes(), 4160 + 2 * 8192);
  // Not one behind one that has no room, so that which ones stay can be told by a number.
  EXPECT_EQ(ComputePagingSizes(pages, 4096).resident_pages, 1);
  EXPECT_EQ(ComputePagingSizes(pages, 4095).resident_pages, 0);
  const std::vector<PageRun> many = {{1000, 4096}, {7, 64}};
  EXPECT_EQ(ComputePagingSizes(many, 0).num_frames, 32);
  EXPECT_EQ(ComputePagingSizes(many, 998 * 4096 + 4095).resident_pages, 998);
  EXPECT_EQ(ComputePagingSizes(many, 998 * 4096 + 4095).num_frames, 9);
}

TEST(PagedMemoryTest, EachPageKeepsWhatWasWrittenWhateverIsOpenedMeanwhile) {
  const TempDir dir;
  auto options = OptionsOf(dir, 200, 3);
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
  EXPECT_GE(memory->counts().read_bytes, (200 - 3 - 32) * kPageBytes);
  EXPECT_GE(memory->counts().written_bytes, (200 - 3 - 32) * kPageBytes);
  EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
}

TEST(PagedMemoryTest, WhatIsOnlyReadIsNotWritten) {
  const TempDir dir;
  const auto memory = PagedMemory::Create(OptionsOf(dir, 100, 0)).value();
  for (int64_t page = 0; page < 100; ++page) EXPECT_EQ(FirstOf(memory->Open(page, Access::kRead).value()), 0);
  EXPECT_EQ(memory->counts().written_bytes, 0);
  EXPECT_EQ(memory->counts().read_bytes, 0);
}

TEST(PagedMemoryTest, WithAllPagesResidentThereIsNoFile) {
  auto options = OptionsOf(TempDir(), 10, 10);
  options.folder = "/no/such/folder";
  const auto memory = PagedMemory::Create(std::move(options)).value();
  FirstOf(memory->Open(9, Access::kWrite).value()) = 5;
  EXPECT_EQ(FirstOf(memory->Open(9, Access::kRead).value()), 5);
  EXPECT_EQ(memory->counts().read_bytes, 0);
}

// Several threads open the same page, more of them than there are frames wait, and others are read ahead.
TEST(PagedMemoryTest, ManyThreadsFindEachOthersBytes) {
  const TempDir dir;
  constexpr int kThreads = 40, kRounds = 200;
  constexpr int64_t kPages = 90;
  const auto memory = PagedMemory::Create(OptionsOf(dir, kPages, 5)).value();
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
  const auto memory = PagedMemory::Create(OptionsOf(dir, 100, 0)).value();
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
  const auto memory = PagedMemory::Create(OptionsOf(dir, 200, 2)).value();
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
  EXPECT_OK(memory->Open(1, Access::kRead));  // was never on the disk
}

TEST(PagedMemoryTest, AFolderThatIsNotThereAndADiskWithoutRoomAreNamed) {
  const TempDir dir;
  auto options = OptionsOf(dir, 10, 0);
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
