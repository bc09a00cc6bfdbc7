#ifndef EPS_CLI_DOCTOR_MACHINE_H_
#define EPS_CLI_DOCTOR_MACHINE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/memory_speed.h"

namespace eps::cli {

// A shared library that the loader found.
struct LoadedLibrary {
  std::string path;
};

// The NVIDIA driver, as its library answers.
struct CudaDriver {
  int init_error = 0;  // cuInit's; 0: it works
  int version = 0;     // 12040: CUDA 12.4 at most
  int devices = 0;
};

// What a check may ask a machine. The real one asks the system; a test's answers what the test says.
//
// Threads: one
class Machine {
 public:
  virtual ~Machine() = default;

  // A file of /proc or /sys, whole; nullopt if it cannot be read.
  virtual std::optional<std::string> ReadText(const std::string& path) const = 0;
  // Names in a folder, sorted; none if it cannot be read.
  virtual std::vector<std::string> List(const std::string& folder) const = 0;

  struct Limit {
    int64_t soft = 0;
    int64_t hard = 0;  // kUnlimited: none
  };
  static constexpr int64_t kUnlimited = -1;
  virtual Limit LockedMemory() const = 0;
  virtual Limit OpenFiles() const = 0;
  virtual int Cores() const = 0;  // that this process may run on
  // Errors: CheckThreadRoom's
  virtual absl::Status StartThreads(int threads) const = 0;

  virtual bool IsFolder(const std::string& path) const = 0;
  // Room for files in the folder, or where it would be made. Errors: the system's
  virtual absl::StatusOr<int64_t> DiskRoomBytes(const std::string& folder) const = 0;
  // Whether files can be made in the folder, or where it would be made. Writes nothing. Errors: the system's
  virtual absl::Status CheckWritable(const std::string& folder) const = 0;
  // Writes and syncs a file there for about a second, of at most `most_bytes`, which must be kLeastDiskBytes or more.
  // Nothing is left of it, even by a process that is killed.
  // Errors: the system's, UNAVAILABLE of a disk that has become full meanwhile
  virtual absl::StatusOr<double> MeasureDiskBytesPerSecond(const std::string& folder, int64_t most_bytes) const = 0;
  static constexpr int64_t kLeastDiskBytes = int64_t{16} << 20;
  // Of the cores that this process may run on, or as many of them as eps::MeasureMemorySpeed takes; about half a
  // second.
  virtual MemorySpeed MeasureMemorySpeed() const = 0;

  // The first of `names` that the loader finds.
  virtual std::optional<LoadedLibrary> FindLibrary(const std::vector<std::string>& names) const = 0;
  // nullopt: no libcuda.so.1
  virtual std::optional<CudaDriver> AskCudaDriver() const = 0;
  // Whether a worker can start the device; eps::cli::ProbeDevice.
  virtual absl::Status StartDevice(const std::string& device) const = 0;
};

// This machine. Lives as long as the program.
const Machine& ThisMachine();

}  // namespace eps::cli

#endif  // EPS_CLI_DOCTOR_MACHINE_H_
