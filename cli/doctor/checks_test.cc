#include "cli/doctor/checks.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "cli/doctor/machine.h"
#include "common/base/memory_speed.h"
#include "common/base/open_files.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace eps::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr int64_t kGib = int64_t{1} << 30;

// A machine on which nothing is wrong, unless a test says so.
struct FakeMachine final : Machine {
  std::map<std::string, std::string> files = {
      {"/proc/cpuinfo",
       "processor\t: 0\nmodel name\t: Fast 9000\nflags\t\t: fpu avx2 fma avx512f avx512bw avx512cd avx512dq "
       "avx512vl\n\n"},
      {"/proc/meminfo",
       "MemTotal:       67108864 kB\nMemFree:  1 kB\nMemAvailable:   50331648 kB\nHugePages_Total:       4\n"
       "HugePages_Free:        3\nHugepagesize:       2048 kB\n"},
      {"/proc/self/cgroup", "0::/\n"},
      {"/sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n"},
      {"/sys/kernel/mm/transparent_hugepage/shmem_enabled", "always within_size [advise] never deny force\n"},
  };
  std::map<std::string, std::vector<std::string>> folders = {{"/sys/devices/system/node", {"has_cpu", "node0"}}};
  Limit locked_memory = {kUnlimited, kUnlimited};
  Limit open_files = {1024, 4096};
  absl::Status threads;
  int cores = 8;
  std::set<std::string> disks;  // folders for an offload
  absl::StatusOr<int64_t> disk_room = 100 * kGib;
  absl::Status writable;
  absl::StatusOr<double> disk_speed = 1e9;
  mutable int64_t most_disk_bytes = 0;  // that MeasureDiskBytesPerSecond was allowed
  std::map<std::string, std::string> libraries;
  std::optional<CudaDriver> driver;
  std::string asked_for = "cuda";  // of StartDevice
  absl::Status device = absl::InvalidArgumentError("gpu_worker: no NVIDIA driver is found");

  std::optional<std::string> ReadText(const std::string& path) const override {
    const auto it = files.find(path);
    return it == files.end() ? std::nullopt : std::optional(it->second);
  }
  std::vector<std::string> List(const std::string& folder) const override {
    const auto it = folders.find(folder);
    return it == folders.end() ? std::vector<std::string>() : it->second;
  }
  Limit LockedMemory() const override { return locked_memory; }
  Limit OpenFiles() const override { return open_files; }
  absl::Status StartThreads(int) const override { return threads; }
  int Cores() const override { return cores; }
  bool IsFolder(const std::string& path) const override { return disks.contains(path); }
  absl::StatusOr<int64_t> DiskRoomBytes(const std::string&) const override { return disk_room; }
  absl::Status CheckWritable(const std::string&) const override { return writable; }
  absl::StatusOr<double> MeasureDiskBytesPerSecond(const std::string&, int64_t most_bytes) const override {
    most_disk_bytes = most_bytes;
    return disk_speed;
  }
  MemorySpeed MeasureMemorySpeed() const override { return {.bytes_per_second = 20e9, .threads = 8}; }
  std::optional<LoadedLibrary> FindLibrary(const std::vector<std::string>& names) const override {
    for (const std::string& name : names) {
      if (const auto it = libraries.find(name); it != libraries.end()) return LoadedLibrary{it->second};
    }
    return std::nullopt;
  }
  std::optional<CudaDriver> AskCudaDriver() const override { return driver; }
  absl::Status StartDevice(const std::string& name) const override {
    EXPECT_EQ(name, asked_for);
    return device;
  }
};

Finding Only(const std::vector<Finding>& findings, const std::string& check) {
  const auto it = std::find_if(findings.begin(), findings.end(), [&](const Finding& f) { return f.check == check; });
  if (it == findings.end()) {
    ADD_FAILURE() << "no finding " << check;
    return {};
  }
  return *it;
}

void ExpectFinding(const Finding& finding, Verdict verdict, const std::string& found, const std::string& mend) {
  EXPECT_EQ(VerdictName(finding.verdict), VerdictName(verdict)) << finding.check << ": " << finding.found;
  EXPECT_THAT(finding.found, HasSubstr(found));
  if (mend.empty()) {
    EXPECT_EQ(finding.mend, "");
  } else {
    EXPECT_THAT(finding.mend, HasSubstr(mend));
  }
}

TEST(DoctorTest, OnAGoodMachineNothingIsToBeDoneButForTheDeviceThatThisBuildLacks) {
  const FakeMachine machine;
  for (const auto& findings :
       {CheckProcessor(machine), CheckMemory(machine), CheckLimits(machine, 1), CheckSpeed(machine, "runs", true)}) {
    for (const Finding& finding : findings) {
      EXPECT_EQ(finding.verdict, Verdict::kOk) << finding.check << ": " << finding.found;
      EXPECT_EQ(finding.mend, "") << finding.check;
    }
  }
}

TEST(DoctorTest, ANoteOrAProblemAlwaysSaysWhatToDo) {
  FakeMachine machine;
  machine.files.clear();
  machine.open_files = {10, 10};
  machine.locked_memory = {65536, 65536};
  machine.disk_speed = absl::PermissionDeniedError("cannot create \"runs\"");
  for (const auto& findings : {CheckLimits(machine, 1), CheckSpeed(machine, "runs", true), CheckNvidia(machine, "cpu"),
                               CheckRun(machine, "runs", {.daemon_bytes = 1})}) {
    for (const Finding& finding : findings) {
      EXPECT_TRUE(finding.verdict == Verdict::kOk || !finding.mend.empty()) << finding.check << ": " << finding.found;
    }
  }
}

TEST(DoctorTest, ThingsThatCannotBeReadAreNoProblem) {
  FakeMachine machine;
  machine.files.clear();
  machine.folders.clear();
  for (const auto& findings : {CheckProcessor(machine), CheckMemory(machine), CheckNvidia(machine, "cpu")}) {
    for (const Finding& finding : findings) EXPECT_NE(finding.verdict, Verdict::kProblem) << finding.check;
  }
}

TEST(DoctorTest, VectorInstructionsAreNamed) {
  FakeMachine machine;
  ExpectFinding(Only(CheckProcessor(machine), "cpu"), Verdict::kOk, "Fast 9000; has avx2 fma avx512f avx512bw", "");
  machine.files["/proc/cpuinfo"] = "model name : Older\nflags : avx2 fma\n";
  ExpectFinding(Only(CheckProcessor(machine), "cpu"), Verdict::kNote, "has avx2 fma of", "AVX-512");
  ExpectFinding(Only(CheckProcessor(machine), "cpu"), Verdict::kNote, "not avx512f avx512bw avx512cd avx512dq avx512vl",
                "AVX-512");
}

TEST(DoctorTest, AProcessorOnWhichNothingStartsIsAProblem) {
  FakeMachine machine;
  machine.files["/proc/cpuinfo"] = "model name : Oldest\nflags : sse2 not_avx2\n";
  ExpectFinding(Only(CheckProcessor(machine), "cpu"), Verdict::kProblem, "has none of", "virtual machine");
  machine.files["/proc/cpuinfo"] = "model name : Half\nflags : avx2\n";
  ExpectFinding(Only(CheckProcessor(machine), "cpu"), Verdict::kProblem, "not fma", "virtual machine");
}

TEST(DoctorTest, AProcessorThatListsNoFlagsIsNotJudged) {
  FakeMachine machine;
  machine.files["/proc/cpuinfo"] = "processor : 0\nFeatures : fp asimd evtstrm\nCPU part : 0xd0c\n";
  ExpectFinding(Only(CheckProcessor(machine), "cpu"), Verdict::kNote, "not known", "at their start");
}

TEST(DoctorTest, AControlGroupsShareOfTheProcessorsIsSeen) {
  FakeMachine machine;
  machine.files["/proc/self/cgroup"] = "0::/user/run\n";
  machine.files["/sys/fs/cgroup/user/cpu.max"] = "250000 100000\n";
  machine.files["/sys/fs/cgroup/user/run/cpu.max"] = "max 100000\n";
  ExpectFinding(Only(CheckProcessor(machine), "cores"), Verdict::kNote,
                "8, of which the control group allows the time of 2.5", "the daemon takes 2 threads");
  machine.files["/sys/fs/cgroup/user/cpu.max"] = "800000 100000\n";
  ExpectFinding(Only(CheckProcessor(machine), "cores"), Verdict::kOk, "8", "");
  machine.files["/sys/fs/cgroup/user/cpu.max"] = "50000 100000\n";
  ExpectFinding(Only(CheckProcessor(machine), "cores"), Verdict::kNote, "0.5", "the daemon takes 1 thread,");
}

TEST(DoctorTest, SeveralNumaNodesAreANote) {
  FakeMachine machine;
  machine.folders["/sys/devices/system/node"] = {"node0", "node1", "nodes_other", "possible"};
  ExpectFinding(Only(CheckProcessor(machine), "numa"), Verdict::kNote, "2 nodes", "numactl --interleave=all");
}

TEST(DoctorTest, TheTightestControlGroupBoundsMemory) {
  FakeMachine machine;
  EXPECT_EQ(FindMemoryRoom(machine).total_bytes, 64 * kGib);
  EXPECT_EQ(FindMemoryRoom(machine).available_bytes, 48 * kGib);
  EXPECT_FALSE(FindMemoryRoom(machine).limited_by_group);
  machine.files["/proc/self/cgroup"] = "12:memory:/old\n0::/a/b\n";
  machine.files["/sys/fs/cgroup/a/b/memory.max"] = "max\n";
  machine.files["/sys/fs/cgroup/a/memory.max"] = "8589934592\n";
  machine.files["/sys/fs/cgroup/a/memory.current"] = "1073741824\n";
  machine.files["/sys/fs/cgroup/memory.max"] = "34359738368\n";
  EXPECT_EQ(FindMemoryRoom(machine).available_bytes, 7 * kGib);
  EXPECT_TRUE(FindMemoryRoom(machine).limited_by_group);
  ExpectFinding(Only(CheckMemory(machine), "memory limit"), Verdict::kNote,
                "allows 8.0 GiB, 7.0 GiB of it is free (/sys/fs/cgroup/a/memory.max)", "docker run --memory");
  machine.files["/sys/fs/cgroup/a/memory.current"] = "9000000000\n";  // above it while it is being reclaimed
  EXPECT_EQ(FindMemoryRoom(machine).available_bytes, 0);
}

TEST(DoctorTest, HugePagesThatAreOffAreANoteWithTheCommand) {
  FakeMachine machine;
  machine.files["/sys/kernel/mm/transparent_hugepage/enabled"] = "always madvise [never]\n";
  machine.files["/sys/kernel/mm/transparent_hugepage/shmem_enabled"] = "always within_size advise [never] deny force\n";
  ExpectFinding(Only(CheckMemory(machine), "thp"), Verdict::kNote, "never",
                "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled");
  ExpectFinding(Only(CheckMemory(machine), "thp shmem"), Verdict::kNote, "never",
                "echo advise | sudo tee /sys/kernel/mm/transparent_hugepage/shmem_enabled");
  ExpectFinding(Only(CheckMemory(machine), "huge pages"), Verdict::kOk, "3 of 4 free, of 2048 kB", "");
}

TEST(DoctorTest, LimitsThatAreTooLowAreNamed) {
  FakeMachine machine;
  machine.locked_memory = {8 << 20, 8 << 20};
  ExpectFinding(Only(CheckLimits(machine, 1), "memlock"), Verdict::kNote, "8.0 MiB", "ulimit -l unlimited");
}

TEST(DoctorTest, OpenFilesAreJudgedAsTheDaemonWill) {
  FakeMachine machine;
  machine.open_files = {16, Machine::kUnlimited};  // it raises the soft limit itself
  ExpectFinding(Only(CheckLimits(machine, 1), "open files"), Verdict::kOk, "at most unlimited", "");
  const int64_t needed = NeededOpenFiles(DefaultConnections(1));
  machine.open_files = {16, needed};
  ExpectFinding(Only(CheckLimits(machine, 1), "open files"), Verdict::kOk, absl::StrCat("asks for ", needed), "");
  machine.open_files = {needed - 1, needed - 1};  // it makes do with fewer connections
  ExpectFinding(Only(CheckLimits(machine, 1), "open files"), Verdict::kNote, absl::StrCat("at most ", needed - 1),
                absl::StrCat("--nofile=", needed, ":", needed));
  machine.open_files.hard = NeededOpenFiles(LeastConnections(1)) - 1;
  EXPECT_EQ(Only(CheckLimits(machine, 1), "open files").verdict, Verdict::kProblem);
  machine.open_files = {needed, needed};
  EXPECT_EQ(Only(CheckLimits(machine, 4096), "open files").verdict, Verdict::kProblem);
}

TEST(DoctorTest, ThreadsThatMayNotStartAreAProblem) {
  FakeMachine machine;
  EXPECT_EQ(Only(CheckLimits(machine, 2), "threads").verdict, Verdict::kOk);
  machine.threads = absl::UnavailableError("needs 70 threads, and may start 12");
  ExpectFinding(Only(CheckLimits(machine, 2), "threads"), Verdict::kProblem, "may start 12", "ulimit -u");
}

TEST(DoctorTest, ADiskThatCannotBeWrittenIsAProblemAndASlowOneANote) {
  FakeMachine machine;
  machine.disk_speed = 20e6;
  ExpectFinding(Only(CheckSpeed(machine, "runs", true), "disk speed"), Verdict::kNote, "0.02 GB/s",
                "checkpoint.every_steps");
  machine.disk_speed = absl::PermissionDeniedError("cannot create \"runs/x\": Permission denied");
  ExpectFinding(Only(CheckSpeed(machine, "runs", true), "disk speed"), Verdict::kProblem, "Permission denied",
                "--out DIR");
  EXPECT_EQ(CheckSpeed(machine, "runs", false).size(), 1u);
  machine.disk_room = absl::NotFoundError("cannot ask");
  ExpectFinding(Only(CheckSpeed(machine, "runs", true), "disk"), Verdict::kProblem, "cannot ask", "--out DIR");
}

TEST(DoctorTest, AFolderThatCannotBeWrittenIsAProblemMeasuredOrNot) {
  FakeMachine machine;
  machine.writable = absl::UnavailableError("cannot write in \"/ro\": Read-only file system");
  for (const bool measure : {false, true}) {
    ExpectFinding(Only(CheckSpeed(machine, "/ro/run", measure), "disk"), Verdict::kProblem, "Read-only file system",
                  "--out DIR");
  }
  EXPECT_EQ(machine.most_disk_bytes, 0) << "it tried to write";
}

TEST(DoctorTest, ADiskIsMeasuredWithASmallPartOfItsRoomAndAFullOneIsNoProblem) {
  FakeMachine machine;
  CheckSpeed(machine, "runs", true);
  EXPECT_EQ(machine.most_disk_bytes, kGib / 2);
  machine.disk_room = kGib;
  CheckSpeed(machine, "runs", true);
  EXPECT_EQ(machine.most_disk_bytes, kGib / 8);
  machine.disk_speed = absl::UnavailableError("cannot write \"runs\": No space left on device");
  ExpectFinding(Only(CheckSpeed(machine, "runs", true), "disk speed"), Verdict::kNote, "No space left", "make room");
  machine.disk_room = 100'000'000;
  machine.most_disk_bytes = 0;
  ExpectFinding(Only(CheckSpeed(machine, "runs", true), "disk speed"), Verdict::kNote, "not measured", "make room");
  EXPECT_EQ(machine.most_disk_bytes, 0) << "it was measured all the same";
}

TEST(DoctorTest, WhyCudaWouldNotStartIsSaidStepByStep) {
  FakeMachine machine;
  ExpectFinding(Only(CheckNvidia(machine, "cpu"), "nvidia driver"), Verdict::kNote, "no kernel module, no libcuda.so.1",
                "apt-get install nvidia-driver");
  ExpectFinding(Only(CheckNvidia(machine, "cpu"), "nccl"), Verdict::kNote, "not found: libnccl.so.2",
                "apt-get install libnccl2");
  ExpectFinding(Only(CheckNvidia(machine, "cpu"), "cudnn"), Verdict::kNote, "not found",
                "apt-get install libcudnn9-cuda-13");
  ExpectFinding(Only(CheckNvidia(machine, "cpu"), "cublas"), Verdict::kNote, "not found", "libcublas-13-0");
  ExpectFinding(Only(CheckNvidia(machine, "cpu"), "cuda device"), Verdict::kNote, "no NVIDIA driver is found",
                "--device cpu");

  machine.files["/proc/driver/nvidia/version"] = "NVRM version: 550.54\nGCC version: 12\n";
  machine.driver = CudaDriver{.init_error = 999};
  ExpectFinding(Only(CheckNvidia(machine, "cpu"), "nvidia driver"), Verdict::kNote, "cuInit says 999", "nvidia-smi");
  machine.driver = CudaDriver{.init_error = 0, .version = 12040, .devices = 0};
  ExpectFinding(Only(CheckNvidia(machine, "cpu"), "nvidia driver"), Verdict::kNote, "0 devices", "nvidia-smi -L");
  machine.driver = CudaDriver{.init_error = 0, .version = 12040, .devices = 2};
  ExpectFinding(Only(CheckNvidia(machine, "cpu"), "nvidia driver"), Verdict::kOk,
                "NVRM version: 550.54, CUDA 12.4, 2 devices", "");

  machine.libraries = {{"/usr/local/cuda/lib64/libcublasLt.so.13", "/usr/local/cuda/lib64/libcublasLt.so.13"},
                       {"libcudnn.so.9", "/usr/lib/libcudnn.so.9"}};
  ExpectFinding(Only(CheckNvidia(machine, "cpu"), "cublas"), Verdict::kOk, "/usr/local/cuda/lib64/libcublasLt.so.13",
                "");
  ExpectFinding(Only(CheckNvidia(machine, "cpu"), "cudnn"), Verdict::kOk, "/usr/lib/libcudnn.so.9", "");

  machine.device = absl::OkStatus();
  ExpectFinding(Only(CheckNvidia(machine, "cpu"), "cuda device"), Verdict::kOk, "can start it", "");
}

TEST(DoctorTest, AGpuThatIsAskedForAndDoesNotStartIsAProblem) {
  FakeMachine machine;
  for (const char* device : {"cuda", "cuda:3"}) {
    machine.asked_for = device;
    ExpectFinding(Only(CheckNvidia(machine, device), "cuda device"), Verdict::kProblem, "no NVIDIA driver is found",
                  "--device cpu");
  }
  machine.device = absl::OkStatus();
  ExpectFinding(Only(CheckNvidia(machine, "cuda:3"), "cuda device"), Verdict::kOk, "can start cuda:3", "");
}

TEST(DoctorTest, ARunIsHeldAgainstMemoryAndDisk) {
  FakeMachine machine;
  const Needs needs = {
      .daemon_bytes = 20 * kGib, .worker_bytes = 14 * kGib, .workers = 2, .checkpoints_bytes = 90 * kGib, .keep = 2};
  ExpectFinding(Only(CheckRun(machine, "runs", needs), "run: memory"), Verdict::kOk,
                "needs 48.0 GiB (the daemon 20.0 GiB, 2 workers of 14.0 GiB), has 48.0 GiB", "");
  ExpectFinding(Only(CheckRun(machine, "runs", needs), "run: disk"), Verdict::kOk,
                "needs 90.0 GiB for 2 checkpoints and one that is written, has 100.0 GiB", "");
  machine.files["/sys/fs/cgroup/memory.max"] = "34359738368\n";
  machine.disk_room = 89 * kGib;
  ExpectFinding(Only(CheckRun(machine, "runs", needs), "run: memory"), Verdict::kProblem,
                "has 32.0 GiB in its control group", "a smaller --device-memory or fewer --workers; ");
  ExpectFinding(Only(CheckRun(machine, "runs", needs), "run: disk"), Verdict::kProblem, "has 89.0 GiB",
                "checkpoint.keep");
}

TEST(DoctorTest, TheDiskOfAnOffloadedStateIsLookedAt) {
  FakeMachine machine;
  machine.disks = {"/disk"};
  Needs needs = {.daemon_bytes = kGib, .offload_path = "/disk", .offload_bytes = 90 * kGib};
  ExpectFinding(Only(CheckRun(machine, "runs", needs), "run: offload"), Verdict::kOk,
                "needs 90.0 GiB in /disk, has 100.0 GiB", "");
  machine.disk_room = 89 * kGib;
  ExpectFinding(Only(CheckRun(machine, "runs", needs), "run: offload"), Verdict::kProblem, "has 89.0 GiB",
                "optimizer_offload.path");
  needs.offload_path = "/dsik";
  ExpectFinding(Only(CheckRun(machine, "runs", needs), "run: offload"), Verdict::kProblem, "there is no folder /dsik",
                "mkdir -p /dsik");
}

TEST(DoctorTest, OfADaemonThatIsTooLargeAloneItIsToldWhatMakesThatSmaller) {
  const FakeMachine machine;
  const Finding finding =
      Only(CheckRun(machine, "runs", {.daemon_bytes = 49 * kGib, .worker_bytes = kGib}), "run: memory");
  ExpectFinding(finding, Verdict::kProblem, "needs 50.0 GiB (the daemon 49.0 GiB, 1 worker of 1.0 GiB), has 48.0 GiB",
                "less for the daemon: model.lora, model.freeze, precision.moments: BF16 or FP8, precision.wire_");
  EXPECT_THAT(finding.mend, Not(HasSubstr("--workers")));
}

}  // namespace
}  // namespace eps::cli
