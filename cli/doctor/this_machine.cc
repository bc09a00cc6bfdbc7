#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "cli/device_probe.h"
#include "cli/doctor/machine.h"
#include "common/base/control_groups.h"
#include "common/base/file_util.h"
#include "common/base/memory_speed.h"
#include "common/base/status_macros.h"
#include "common/base/thread.h"
#include "common/spec/vector_width.h"

namespace eps::cli {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kMaxTextBytes = 1 << 24;
constexpr size_t kPieceBytes = size_t{8} << 20;  // two of them are Machine::kLeastDiskBytes
constexpr double kDiskSeconds = 1.0;
constexpr absl::Duration kMemoryTime = absl::Milliseconds(500);

double SecondsSince(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

Machine::Limit GetLimit(int resource) {
  rlimit limit{};
  getrlimit(static_cast<__rlimit_resource>(resource), &limit);
  const auto convert = [](rlim_t value) {
    return value == RLIM_INFINITY ? Machine::kUnlimited : static_cast<int64_t>(value);
  };
  return {convert(limit.rlim_cur), convert(limit.rlim_max)};
}

// The folder itself or the nearest one above it that is there.
std::string NearestFolder(const std::string& folder) {
  std::error_code error;
  std::filesystem::path path = std::filesystem::absolute(folder, error);
  while (!std::filesystem::is_directory(path, error) && path.has_relative_path()) path = path.parent_path();
  return path.string();
}

// A file in `folder` that has no name, so that it goes with whoever has it open, however that one ends.
absl::StatusOr<FileDescriptor> OpenNameless(const std::string& folder) {
  absl::StatusOr<FileDescriptor> file = OpenFile(folder, O_WRONLY | O_TMPFILE);
  if (file.ok()) return file;
  const std::string path = absl::StrCat(folder, "/.eps-doctor-", getpid());  // not every file system can do that
  file = OpenFile(path, O_WRONLY | O_CREAT | O_EXCL);
  if (file.ok()) unlink(path.c_str());
  return file;
}

// Of at most `most_bytes`. Errors name `folder`.
absl::StatusOr<double> WriteForAWhile(const std::string& folder, int64_t most_bytes) {
  EPS_ASSIGN_OR_RETURN(const FileDescriptor file, OpenNameless(folder));
  const std::string piece(kPieceBytes, 'e');
  const auto piece_bytes = static_cast<int64_t>(piece.size());
  const Clock::time_point start = Clock::now();
  int64_t written = 0;
  do {
    EPS_RETURN_IF_ERROR(WriteAt(file, folder, written, piece));
    written += piece_bytes;
    if (fdatasync(file.get()) != 0) return FileError(errno, "sync a file in", folder);
  } while (SecondsSince(start) < kDiskSeconds && written + piece_bytes <= most_bytes);
  return static_cast<double>(written) / SecondsSince(start);
}

class RealMachine final : public Machine {
 public:
  std::optional<std::string> ReadText(const std::string& path) const override {
    absl::StatusOr<std::string> text = ReadFile(path, kMaxTextBytes);
    if (!text.ok()) return std::nullopt;
    return *std::move(text);
  }

  std::vector<std::string> List(const std::string& folder) const override {
    std::vector<std::string> names;
    std::error_code error;
    for (std::filesystem::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
      names.push_back(it->path().filename().string());
    }
    std::sort(names.begin(), names.end());
    return names;
  }

  Limit LockedMemory() const override { return GetLimit(RLIMIT_MEMLOCK); }
  Limit OpenFiles() const override { return GetLimit(RLIMIT_NOFILE); }
  absl::Status StartThreads(int threads) const override { return CheckThreadRoom(threads); }

  int Cores() const override { return SchedulableCores(); }

  bool IsFolder(const std::string& path) const override {
    std::error_code error;
    return std::filesystem::is_directory(path, error);
  }

  absl::StatusOr<int64_t> DiskRoomBytes(const std::string& folder) const override {
    const std::string there = NearestFolder(folder);
    struct statvfs info {};
    if (statvfs(there.c_str(), &info) != 0) return FileError(errno, "ask for the room in", there);
    return static_cast<int64_t>(info.f_bavail) * static_cast<int64_t>(info.f_frsize);
  }

  absl::Status CheckWritable(const std::string& folder) const override {
    const std::string there = NearestFolder(folder);
    struct statvfs info {};
    if (statvfs(there.c_str(), &info) != 0) return FileError(errno, "ask for the room in", there);
    if ((info.f_flag & ST_RDONLY) != 0) return FileError(EROFS, "write in", there);
    if (access(there.c_str(), W_OK | X_OK) != 0) return FileError(errno, "write in", there);
    return absl::OkStatus();
  }

  absl::StatusOr<double> MeasureDiskBytesPerSecond(const std::string& folder, int64_t most_bytes) const override {
    return WriteForAWhile(NearestFolder(folder), most_bytes);
  }

  MemorySpeed MeasureMemorySpeed() const override { return eps::MeasureMemorySpeed(Cores(), kMemoryTime); }

  std::optional<LoadedLibrary> FindLibrary(const std::vector<std::string>& names) const override {
    for (const std::string& name : names) {
      void* library = dlopen(name.c_str(), RTLD_LAZY | RTLD_LOCAL);
      if (library == nullptr) continue;
      LoadedLibrary found{name};
      const link_map* map = nullptr;
      if (dlinfo(library, RTLD_DI_LINKMAP, &map) == 0 && map != nullptr) found.path = map->l_name;
      return found;  // never closed: NVIDIA's would leave memory behind
    }
    return std::nullopt;
  }

  std::optional<CudaDriver> AskCudaDriver() const override {
    void* library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
    if (library == nullptr) return std::nullopt;
    CudaDriver driver;
    // Never closed: the driver starts threads of its own.
    const auto init = reinterpret_cast<int (*)(unsigned)>(dlsym(library, "cuInit"));
    const auto version = reinterpret_cast<int (*)(int*)>(dlsym(library, "cuDriverGetVersion"));
    const auto count = reinterpret_cast<int (*)(int*)>(dlsym(library, "cuDeviceGetCount"));
    if (init == nullptr || version == nullptr || count == nullptr) {
      driver.init_error = -1;  // no driver library at all, whatever its name
      return driver;
    }
    driver.init_error = init(0);
    version(&driver.version);
    if (driver.init_error == 0) count(&driver.devices);
    return driver;
  }

  absl::Status StartDevice(const std::string& device) const override { return ProbeDevice(device, kWidestVectors); }
};

}  // namespace

const Machine& ThisMachine() {
  static const RealMachine machine;
  return machine;
}

}  // namespace eps::cli
