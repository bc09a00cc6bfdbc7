#include "cli/common_flags.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "common/base/control_groups.h"
#include "common/base/exit_code.h"
#include "common/base/flags.h"
#include "common/base/status_macros.h"
#include "common/spec/vector_width.h"

namespace eps::cli {

CLI::Option* RunFlags::AddSetTo(CLI::App& command) {
  return command.add_option("--set", set, "Overrides a field of the RunSpec: --set batch.micro_batch=8")
      ->type_name("FIELD=VALUE")
      ->expected(1)
      ->take_all();
}

CLI::Option* RunFlags::AddTo(CLI::App& command) {
  CLI::Option* spec =
      command.add_option("--run", run, "The RunSpec: a .textproto or .json file")->required()->type_name("FILE");
  AddSetTo(command);
  command.add_option("--steps", steps, "Overrides the RunSpec's steps")
      ->type_name("N")
      ->check(CLI::Range(int64_t{1}, int64_t{1'000'000'000'000}));
  return spec;
}

absl::StatusOr<std::vector<FieldOverride>> RunFlags::Overrides() const {
  std::vector<FieldOverride> overrides;
  for (const std::string& text : set) {
    EPS_ASSIGN_OR_RETURN(FieldOverride field, ParseFieldOverride(text));
    overrides.push_back(std::move(field));
  }
  if (steps > 0) overrides.push_back({"steps", absl::StrCat(steps)});
  return overrides;
}

absl::StatusOr<RunConfig> RunFlags::Load() const {
  EPS_ASSIGN_OR_RETURN(const std::vector<FieldOverride> overrides, Overrides());
  return LoadRunConfig(run, overrides);
}

std::vector<std::string> RunFlags::ToArguments() const {
  std::vector<std::string> arguments = {"--run", run};
  for (const std::string& text : set) {
    arguments.push_back("--set");
    arguments.push_back(text);
  }
  if (steps > 0) {
    arguments.push_back("--steps");
    arguments.push_back(absl::StrCat(steps));
  }
  return arguments;
}

void WorkerFlags::AddTo(CLI::App& command) {
  command.add_option("--device", device, "Each worker's device: cpu, cuda (the GPUs in turn) or cuda:I")
      ->type_name("DEVICE")
      ->capture_default_str();
  command
      .add_option(
          "--device-memory", device_memory_bytes,
          "What each worker's device may hold: 512MiB, 1.5GiB, or bytes. Default: what the plan can use, at "
          "most half of the host's free memory (cpu) or nine tenths of the GPU's (cuda), divided by the workers")
      ->type_name("SIZE")
      ->transform(AsByteSize());
  command.add_option("--threads", threads, "Threads that compute in each worker. Default: cores / workers")
      ->type_name("N")
      ->check(CLI::Range(1, 1024));
  AddVectorsTo(command, vectors);
  AddHostMemoryTo(command, host_memory_bytes);
  AddProfileTo(command, profile);
}

void AddVectorsTo(CLI::App& command, std::string& vectors) {
  command
      .add_option("--vectors", vectors,
                  "The widest vector instructions that the cpu device uses: widest (the processor's), avx512 or avx2. "
                  "Processors held to the same are one device model, and give the same bits")
      ->type_name("WIDTH")
      ->capture_default_str()
      ->check(CLI::IsMember(std::vector<std::string>(kVectorWidths.begin(), kVectorWidths.end())));
}

void AddHostMemoryTo(CLI::App& command, int64_t& host_memory_bytes) {
  command
      .add_option(
          "--host-memory", host_memory_bytes,
          "What each worker may hold of activations in host memory: boundaries, beside them gradients of blocks "
          "that are depth first, and with what is left inner activations that are swapped rather than "
          "recomputed. Default: boundaries alone")
      ->type_name("SIZE")
      ->transform(AsByteSize());
}

void AddProfileTo(CLI::App& command, std::string& profile) {
  command
      .add_option(
          "--profile", profile,
          "What plans are made from: a file that `eps profile` has measured, or \"nominal\" for figures of an "
          "ordinary machine. Default: what `eps profile`, or `eps train` before a long run on a GPU, has kept of this "
          "machine, device, number of threads and vectors; else nominal")
      ->type_name("FILE");
}

void WorkerFlags::SetDefaultMemory(const MemoryRoom& room, int num_workers) {
  workers = num_workers;
  memory_is_default = device_memory_bytes == 0;
  if (memory_is_default && device == "cpu") device_memory_bytes = DefaultDeviceMemoryBytes(room, workers);
}

WorkerFlags WorkerFlags::ForOneMore(const MemoryRoom& room, int others) const {
  WorkerFlags more = *this;
  more.workers = std::max(workers, others + 1);
  if (threads == 0) more.threads = std::max(1, UsableCores() / (others + 1));
  if (memory_is_default && device == "cpu") {
    more.device_memory_bytes = std::min(device_memory_bytes, DefaultDeviceMemoryBytes(room, /*workers=*/1));
  }
  if (profile_is_default) more.profile = worker::ChooseProfile("", device, more.threads, vectors);
  return more;
}

WorkerFlags WorkerFlags::ForSoMany(const MemoryRoom& room, int num_workers) const {
  WorkerFlags other = *this;
  if (num_workers == workers) return other;
  other.workers = num_workers;
  if (memory_is_default && device == "cpu") {
    other.device_memory_bytes = std::min(device_memory_bytes, DefaultDeviceMemoryBytes(room, num_workers));
  }
  const int others_threads = threads > 0 ? threads : std::max(1, UsableCores() / num_workers);
  if (profile_is_default) other.profile = worker::ChooseProfile("", device, others_threads, vectors);
  return other;
}

void WorkerFlags::SetDefaultProfile(int threads_per_worker) {
  profile_is_default = profile.empty();
  profile = worker::ChooseProfile(profile, device, threads_per_worker, vectors);
}

std::vector<std::string> WorkerFlags::ToArguments(const std::string& address, int default_threads, int turn) const {
  std::vector<std::string> arguments = {
      "--connect", address, "--device", device, "--threads", absl::StrCat(threads > 0 ? threads : default_threads)};
  if (device_memory_bytes > 0) {
    arguments.push_back("--device-memory");
    arguments.push_back(absl::StrCat(device_memory_bytes));
  }
  if (device != "cpu" && workers > 1) {
    arguments.insert(arguments.end(), {"--host-workers", absl::StrCat(workers), "--host-turn", absl::StrCat(turn)});
  }
  if (host_memory_bytes > 0) arguments.insert(arguments.end(), {"--host-memory", absl::StrCat(host_memory_bytes)});
  if (vectors != kWidestVectors) arguments.insert(arguments.end(), {"--vectors", vectors});
  if (!profile.empty()) arguments.insert(arguments.end(), {"--profile", profile});
  return arguments;
}

void PrintError(const absl::Status& status) {
  const std::string message(status.message());
  std::fprintf(stderr, "eps: %s\n", message.c_str());
}

int ReportStart(const absl::Status& status) {
  if (!status.ok()) PrintError(status);
  return StartExitCode(status);
}

}  // namespace eps::cli
