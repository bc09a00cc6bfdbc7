#include "eps_server/store/paged_memory.h"

#include <sys/resource.h>

#include <chrono>
#include <csignal>
#include <cstring>
#include <deque>
#include <filesystem>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/testing/status_matchers.h"
#include "common/testing/temp_dir.h"
#include "eps_server/store/scratch_file.h"
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

// It was said to be opened while a frame had it, and lost that before.
TEST(PagedMemoryTest, WhatWasNeverWrittenIsAsItBeganWhenItIsReadAhead) {
  const TempDir dir;
  PagedMemory::Options options = OptionsOf(dir, 10);
  options.frames = 2;
  options.initialize = [](int64_t page, std::byte* memory) { *reinterpret_cast<int64_t*>(memory) = -page; };
  const auto memory = PagedMemory::Create(std::move(options)).value();
  for (int round = 0; round < 100; ++round) {
    for (int64_t page = 0; page < 10; ++page) {
      EXPECT_EQ(FirstOf(memory->Open(page, Access::kRead).value()), -page);
      memory->Prefetch(page);
    }
  }
  EXPECT_EQ(memory->counts().read_bytes, 0);
}

TEST(PagedMemoryTest, WhatIsOnlyReadIsNotWritten) {
  const TempDir dir;
  const auto memory = PagedMemory::Create(OptionsOf(dir, 100)).value();
  for (int64_t page = 0; page < 100; ++page) EXPECT_EQ(FirstOf(memory->Open(page, Access::kRead).value()), 0);
  EXPECT_EQ(memory->counts().written_bytes, 0);
  EXPECT_EQ(memory->counts().read_bytes, 0);
}

// Frames, and threads: fewer threads than frames, so that pages are read ahead; more, so that they wait for frames.
class PagingThreadsTest : public ::testing::TestWithParam<std::pair<int, int>> {};
INSTANTIATE_TEST_SUITE_P(FramesAndThreads, PagingThreadsTest,
                         ::testing::Values(std::pair(2, 2), std::pair(3, 2), std::pair(4, 3), std::pair(4, 9),
                                           std::pair(12, 2), std::pair(32, 40)));

// Each thread has a byte of its own in every page. Most open what they said before that they would.
TEST_P(PagingThreadsTest, FindEachOthersBytes) {
  const auto [frames, num_threads] = GetParam();
  constexpr int kRounds = 400;
  constexpr int64_t kPages = 60;
  const TempDir dir;
  PagedMemory::Options options = OptionsOf(dir, kPages);
  options.frames = frames;
  const auto memory = PagedMemory::Create(std::move(options)).value();
  std::vector<std::thread> threads;
  for (int t = 0; t < num_threads; ++t) {
    threads.emplace_back([&memory, t] {
      std::mt19937 random(static_cast<unsigned>(t));
      std::map<int64_t, unsigned char> wrote;  // by page
      std::deque<int64_t> said;
      for (int round = 0; round < kRounds; ++round) {
        for (int i = 0; i < 2; ++i) {
          said.push_back(random() % kPages);
          memory->Prefetch(said.back());
        }
        const int64_t page = random() % 4 == 0 ? static_cast<int64_t>(random() % kPages) : said.front();
        said.pop_front();
        const auto access = random() % 2 == 0 ? Access::kRead : Access::kWrite;
        const auto opened = memory->Open(page, access).value();
        auto& byte = reinterpret_cast<unsigned char*>(opened.get())[64 + t];
        ASSERT_EQ(byte, wrote[page]) << t << " " << page;
        if (access == Access::kWrite) byte = wrote[page] = static_cast<unsigned char>(round + 1);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(memory->counts().read_bytes, 0);
}

// Pages are opened in one order and said in another, as updates of a step are whose gradients come from the last layer on.
TEST(PagedMemoryTest, WhatIsWantedIsKeptUntilItIsOpened) {
  const TempDir dir;
  const auto memory = PagedMemory::Create(OptionsOf(dir, 100)).value();
  for (int step = 0; step < 5; ++step) {
    for (int64_t page = 99; page >= 0; --page) {
      memory->Prefetch(page);
      if (page % 10 != 0) continue;
      for (int64_t i = page; i < page + 10; ++i) {
        const auto opened = memory->Open(i, Access::kWrite).value();
        EXPECT_EQ(FirstOf(opened), step);
        FirstOf(opened) = step + 1;
      }
    }
  }
  // Each page once a step, but for the first, and for what frames still had.
  EXPECT_LE(memory->counts().read_bytes, 4 * 100 * kPageBytes);
}

TEST(PagedMemoryTest, WhatIsReadAheadIsThereWhenItIsOpened) {
  const TempDir dir;
  const auto memory = PagedMemory::Create(OptionsOf(dir, 100)).value();
  for (int64_t page = 0; page < 100; ++page) FirstOf(memory->Open(page, Access::kWrite).value()) = page;
  memory->Prefetch(1);
  const auto begin = std::chrono::steady_clock::now();
  while (memory->counts().read_bytes == 0) {
    ASSERT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(50));
    std::this_thread::yield();
  }
  EXPECT_EQ(FirstOf(memory->Open(1, Access::kRead).value()), 1);
  EXPECT_EQ(memory->counts().read_bytes, kPageBytes);  // once
}

// What a write says that a disk refuses, whatever opens a page next says: nothing is taken for kept that is not.
TEST(PagedMemoryTest, AfterAnErrorNoPageIsOpened) {
  const TempDir dir;
  const auto memory = PagedMemory::Create(OptionsOf(dir, 200)).value();
  struct rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = signal(SIGXFSZ, SIG_IGN);
  struct rlimit short_files = before;
  short_files.rlim_cur = 16 * kPageBytes;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &short_files), 0);
  absl::Status status;
  for (int64_t page = 0; page < 200 && status.ok(); ++page) status = memory->Open(page, Access::kWrite).status();
  EXPECT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  signal(SIGXFSZ, handler);
  EXPECT_EQ(memory->status(), status);
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kUnavailable, "File too large"));
  EXPECT_EQ(memory->Open(150, Access::kRead).status(), status);
}

TEST(PagedMemoryTest, AFolderThatIsNotThereAndADiskWithoutRoomAreNamed) {
  const TempDir dir;
  auto options = OptionsOf(dir, 10);
  options.folder = dir.File("gone");
  EXPECT_THAT(PagedMemory::Create(options).status(), StatusIs(absl::StatusCode::kNotFound, "gone"));
  EXPECT_THAT(ScratchFile::Create(dir.path(), int64_t{1} << 62).status(),
              StatusIs(absl::StatusCode::kUnavailable, "take 4194304.0 TiB in"));
  EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
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
