#include "cli/doctor/checks.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/byte_size.h"
#include "common/base/control_groups.h"
#include "common/base/memory_room.h"
#include "common/base/memory_speed.h"
#include "common/base/open_files.h"
#include "common/grpc/thread_needs.h"

namespace eps::cli {
namespace {

// "key: value" lines, as in /proc/meminfo and /proc/cpuinfo; the first one of `key`.
std::optional<std::string> ValueOf(const std::string& text, absl::string_view key) {
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    const std::pair<absl::string_view, absl::string_view> pair = absl::StrSplit(line, absl::MaxSplits(':', 1));
    if (absl::StripAsciiWhitespace(pair.first) == key) return std::string(absl::StripAsciiWhitespace(pair.second));
  }
  return std::nullopt;
}

std::string Trimmed(const std::optional<std::string>& text) {
  return text.has_value() ? std::string(absl::StripAsciiWhitespace(*text)) : "";
}

TextReader ReaderOf(const Machine& machine) {
  return [&machine](const std::string& path) { return machine.ReadText(path); };
}

// "always [madvise] never" -> "madvise"
std::string Chosen(const std::string& text) {
  const size_t open = text.find('['), close = text.find(']');
  return open == std::string::npos || close == std::string::npos || close < open
             ? ""
             : text.substr(open + 1, close - open - 1);
}

std::string Gigabytes(double bytes_per_second) { return absl::StrFormat("%.2f GB/s", bytes_per_second / 1e9); }

std::string LimitText(int64_t limit) { return limit == Machine::kUnlimited ? "unlimited" : absl::StrCat(limit); }

Finding CheckVectors(const Machine& machine) {
  const std::string text = machine.ReadText("/proc/cpuinfo").value_or("");
  const std::string model = ValueOf(text, "model name").value_or("unknown");
  const std::optional<std::string> listed = ValueOf(text, "flags");
  if (!listed.has_value()) {  // not an x86
    return {Verdict::kNote, "cpu", absl::StrCat(model, "; its vector instructions are not known"),
            "eps_server and gpu_worker say at their start whether they suffice"};
  }
  const std::vector<std::string> list = absl::StrSplit(*listed, ' ', absl::SkipEmpty());
  const std::set<std::string> flags(list.begin(), list.end());
  // What kernels, optimizer and oneDNN are compiled for: AVX2 with FMA, which the bits need, and AVX-512's first form.
  std::vector<std::string> has, lacks, lacks_needed;
  for (const char* flag : {"avx2", "fma"}) (flags.count(flag) > 0 ? has : lacks_needed).push_back(flag);
  for (const char* flag : {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}) {
    (flags.count(flag) > 0 ? has : lacks).push_back(flag);
  }
  const bool runs = lacks_needed.empty(), has_all = lacks.empty();
  lacks.insert(lacks.begin(), lacks_needed.begin(), lacks_needed.end());
  const std::string found = absl::StrCat(model, "; has ", has.empty() ? "none" : absl::StrJoin(has, " "), " of the ",
                                         "vector instructions that are used",
                                         lacks.empty() ? "" : absl::StrCat(", not ", absl::StrJoin(lacks, " ")));
  if (!runs) {
    return {Verdict::kProblem, "cpu", found,
            "daemon and worker start only with AVX2 and FMA: in a virtual machine, ask for the host's CPU model"};
  }
  if (!has_all) return {Verdict::kNote, "cpu", found, "none needed; AVX-512 would be faster"};
  return {Verdict::kOk, "cpu", found, ""};
}

Finding CheckCores(const Machine& machine) {
  const int cores = machine.Cores();
  const double allowed = ControlGroupCores(ReaderOf(machine));
  if (allowed == 0 || allowed >= cores) return {Verdict::kOk, "cores", absl::StrCat(cores), ""};
  const int whole = UsableCores(machine);
  return {Verdict::kNote, "cores",
          absl::StrFormat("%d, of which the control group allows the time of %.1f", cores, allowed),
          absl::StrCat("unless told otherwise the daemon takes ", whole, whole == 1 ? " thread" : " threads",
                       ", and so do the workers together; more would only wait")};
}

Finding CheckNuma(const Machine& machine) {
  int nodes = 0;
  for (const std::string& name : machine.List("/sys/devices/system/node")) {
    int number = 0;
    if (absl::StartsWith(name, "node") && absl::SimpleAtoi(name.substr(4), &number)) ++nodes;
  }
  if (nodes <= 1) return {Verdict::kOk, "numa", "one node", ""};
  return {Verdict::kNote, "numa", absl::StrCat(nodes, " nodes"),
          "numactl --interleave=all eps train ...   (the model's memory on all of them)"};
}

Finding CheckHugePages(const Machine& machine, const std::string& check, const std::string& file,
                       const std::vector<std::string>& good, const std::string& wanted) {
  const std::string path = "/sys/kernel/mm/transparent_hugepage/" + file;
  const std::string mode = Chosen(machine.ReadText(path).value_or(""));
  if (mode.empty()) return {Verdict::kNote, check, "not known to this kernel", ""};
  if (std::find(good.begin(), good.end(), mode) != good.end()) return {Verdict::kOk, check, mode, ""};
  return {Verdict::kNote, check, mode, absl::StrCat("echo ", wanted, " | sudo tee ", path)};
}

Finding CheckExplicitHugePages(const Machine& machine) {
  const std::string text = machine.ReadText("/proc/meminfo").value_or("");
  const std::string total = ValueOf(text, "HugePages_Total").value_or("0");
  const std::string free = ValueOf(text, "HugePages_Free").value_or("0");
  return {Verdict::kOk, "huge pages",
          absl::StrCat(free, " of ", total, " free, of ", ValueOf(text, "Hugepagesize").value_or("unknown size"),
                       "; none is needed"),
          ""};
}

Finding CheckLibrary(const Machine& machine, const std::string& check, const std::vector<std::string>& names,
                     const std::string& mend) {
  std::vector<std::string> everywhere = names;
  for (const std::string& name : names) {
    for (const char* folder : {"/usr/local/cuda/lib64/", "/usr/local/cuda/targets/x86_64-linux/lib/"}) {
      everywhere.push_back(folder + name);
    }
  }
  if (const auto library = machine.FindLibrary(everywhere); library.has_value()) {
    return {Verdict::kOk, check, library->path, ""};
  }
  return {Verdict::kNote, check, absl::StrCat("not found: ", absl::StrJoin(names, ", ")), mend};
}

Finding CheckDriver(const Machine& machine) {
  const std::string version = Trimmed(machine.ReadText("/proc/driver/nvidia/version"));
  const std::string module = version.empty() ? "no kernel module" : std::string(version.substr(0, version.find('\n')));
  const std::optional<CudaDriver> driver = machine.AskCudaDriver();
  const char kInstall[] = "sudo apt-get install nvidia-driver   (Debian's non-free), then reboot";
  if (!driver.has_value()) {
    return {Verdict::kNote, "nvidia driver", absl::StrCat(module, ", no libcuda.so.1"), kInstall};
  }
  if (driver->init_error != 0) {
    return {Verdict::kNote, "nvidia driver",
            absl::StrCat(module, ", libcuda.so.1 is there, cuInit says ", driver->init_error),
            version.empty() ? kInstall : "nvidia-smi   (says why; in a container: is it started with --gpus all?)"};
  }
  return {driver->devices > 0 ? Verdict::kOk : Verdict::kNote, "nvidia driver",
          absl::StrCat(module, ", CUDA ", driver->version / 1000, ".", driver->version % 1000 / 10, ", ",
                       driver->devices, " devices"),
          driver->devices > 0 ? "" : "nvidia-smi -L   (in a container: is it started with --gpus all?)"};
}

// Whoever asks for a GPU is refused where it does not start; to others it is no more than good to know.
Finding CheckCudaDevice(const Machine& machine, const std::string& device) {
  const bool is_wanted = device != "cpu";
  const absl::Status status = machine.StartDevice(is_wanted ? device : "cuda");
  if (status.ok()) {
    return {Verdict::kOk, "cuda device",
            is_wanted ? absl::StrCat("a worker can start ", device) : "a worker can start it", ""};
  }
  return {is_wanted ? Verdict::kProblem : Verdict::kNote, "cuda device", std::string(status.message()),
          "what the lines above it say, or eps train --device cpu   (the default)"};
}

// Of a disk that others write to as well, a run's next checkpoint among them: a small part of what is free.
Finding CheckDiskSpeed(const Machine& machine, const std::string& out, int64_t room_bytes) {
  constexpr double kSlowDisk = 50e6;  // a checkpoint of 10 GB would take over three minutes
  const int64_t most_bytes = std::min(int64_t{512} << 20, room_bytes / 8);
  if (most_bytes < Machine::kLeastDiskBytes) {
    return {Verdict::kNote, "disk speed",
            absl::StrCat("not measured: an eighth of ", FormatByteSize(room_bytes), " is too little for that"),
            "make room, if its speed is to be known"};
  }
  const absl::StatusOr<double> speed = machine.MeasureDiskBytesPerSecond(out, most_bytes);
  if (absl::IsUnavailable(speed.status())) {  // somebody else was quicker
    return {Verdict::kNote, "disk speed", absl::StrCat("not measured: ", speed.status().message()),
            "make room, if its speed is to be known"};
  }
  if (!speed.ok()) {
    return {Verdict::kProblem, "disk speed", std::string(speed.status().message()),
            "give a folder that can be written: --out DIR"};
  }
  return {*speed < kSlowDisk ? Verdict::kNote : Verdict::kOk, "disk speed",
          absl::StrCat(Gigabytes(*speed), " written and synced"),
          *speed < kSlowDisk ? "checkpoints are slow: a larger checkpoint.every_steps, or another --out" : ""};
}

std::vector<Finding> CheckDisk(const Machine& machine, const std::string& out, bool measure) {
  const absl::StatusOr<int64_t> room = machine.DiskRoomBytes(out);
  if (!room.ok()) {
    return {{Verdict::kProblem, "disk", std::string(room.status().message()), "give another folder: --out DIR"}};
  }
  if (const absl::Status writable = machine.CheckWritable(out); !writable.ok()) {
    return {
        {Verdict::kProblem, "disk", std::string(writable.message()), "give a folder that can be written: --out DIR"}};
  }
  std::vector<Finding> findings = {{Verdict::kOk, "disk", absl::StrCat(FormatByteSize(*room), " free for ", out), ""}};
  if (measure) findings.push_back(CheckDiskSpeed(machine, out, *room));
  return findings;
}

// docs/finetune.md says what each of them costs and saves.
std::string WhatTakesLessMemory(const Needs& needs, const MemoryRoom& room) {
  const char* less = needs.daemon_bytes <= room.available_bytes
                         ? "a smaller --device-memory or fewer --workers"
                         : "a host with more of it, as the daemon alone is too large, or less for the daemon: "
                           "model.lora, model.freeze, precision.moments: BF16 or FP8, precision.wire_versions: 1, "
                           "precision.frozen: MXINT8 or NF4, clip LAGGED in place of EXACT, or optimizer_offload, on "
                           "a disk (docs/finetune.md)";
  return absl::StrCat(less, "; `eps plan` shows every byte");
}

Finding CheckOffload(const Machine& machine, const Needs& needs) {
  constexpr char kCheck[] = "run: offload",
                 kMend[] = "another optimizer_offload.path, or a larger memory_bytes beside it";
  if (!machine.IsFolder(needs.offload_path)) {
    return {Verdict::kProblem, kCheck, absl::StrCat("there is no folder ", needs.offload_path),
            absl::StrCat("mkdir -p ", needs.offload_path,
                         "   (unless a file is there; or another optimizer_offload.path)")};
  }
  if (const absl::Status writable = machine.CheckWritable(needs.offload_path); !writable.ok()) {
    return {Verdict::kProblem, kCheck, std::string(writable.message()), kMend};
  }
  const absl::StatusOr<int64_t> room = machine.DiskRoomBytes(needs.offload_path);
  if (!room.ok()) return {Verdict::kProblem, kCheck, std::string(room.status().message()), kMend};
  const bool enough = needs.offload_bytes <= *room;
  return {enough ? Verdict::kOk : Verdict::kProblem, kCheck,
          absl::StrCat("needs ", FormatByteSize(needs.offload_bytes), " in ", needs.offload_path, ", has ",
                       FormatByteSize(*room)),
          enough ? "" : kMend};
}

}  // namespace

absl::string_view VerdictName(Verdict verdict) {
  switch (verdict) {
    case Verdict::kOk:
      return "OK";
    case Verdict::kNote:
      return "NOTE";
    case Verdict::kProblem:
      return "PROBLEM";
  }
  return "PROBLEM";
}

MemoryRoom FindMemoryRoom(const Machine& machine) { return eps::FindMemoryRoom(ReaderOf(machine)); }

int UsableCores(const Machine& machine) { return eps::UsableCores(ReaderOf(machine), machine.Cores()); }

std::vector<Finding> CheckProcessor(const Machine& machine) {
  return {CheckVectors(machine), CheckCores(machine), CheckNuma(machine)};
}

std::vector<Finding> CheckMemory(const Machine& machine) {
  std::vector<Finding> findings;
  const MemoryRoom room = FindMemoryRoom(machine);
  findings.push_back({room.total_bytes > 0 ? Verdict::kOk : Verdict::kNote, "memory",
                      absl::StrCat(FormatByteSize(room.total_bytes), ", of which ",
                                   FormatByteSize(room.available_bytes), " can be had"),
                      ""});
  if (room.group_limit_bytes != MemoryRoom::kNoLimit) {
    findings.push_back({Verdict::kNote, "memory limit",
                        absl::StrCat("the control group allows ", FormatByteSize(room.group_limit_bytes), ", ",
                                     FormatByteSize(room.group_room_bytes), " of it is free (", room.group_file, ")"),
                        "raise it where the container is started, for instance: docker run --memory 64g"});
  } else {
    findings.push_back({Verdict::kOk, "memory limit", "no control group sets one", ""});
  }
  findings.push_back(CheckHugePages(machine, "thp", "enabled", {"always", "madvise"}, "madvise"));
  findings.push_back(
      CheckHugePages(machine, "thp shmem", "shmem_enabled", {"always", "advise", "within_size", "force"}, "advise"));
  findings.push_back(CheckExplicitHugePages(machine));
  return findings;
}

std::vector<Finding> CheckLimits(const Machine& machine, int workers) {
  std::vector<Finding> findings;
  const Machine::Limit memory = machine.LockedMemory();
  if (memory.soft == Machine::kUnlimited) {
    findings.push_back({Verdict::kOk, "memlock", "unlimited", ""});
  } else {
    findings.push_back({Verdict::kNote, "memlock", FormatByteSize(memory.soft),
                        "ulimit -l unlimited   (only for memory that is pinned for a GPU; systemd: LimitMEMLOCK)"});
  }
  // The soft limit is nobody's concern: the daemon raises its own.
  const int threads = RunThreads(workers, std::max(1, UsableCores(machine) / workers));
  if (const absl::Status started = machine.StartThreads(threads); started.ok()) {
    findings.push_back({Verdict::kOk, "threads", absl::StrCat("the ", threads, " of a run start"), ""});
  } else {
    findings.push_back({Verdict::kProblem, "threads", std::string(started.message()),
                        absl::StrCat("ulimit -u ", 4 * threads,
                                     "   (systemd: TasksMax=; docker run --pids-limit=", 4 * threads, ")")});
  }
  const Machine::Limit files = machine.OpenFiles();
  const int64_t wanted = NeededOpenFiles(DefaultConnections(workers));
  const int64_t least = NeededOpenFiles(LeastConnections(workers));
  const bool unlimited = files.hard == Machine::kUnlimited;
  const bool enough = unlimited || files.hard >= wanted;
  findings.push_back({enough                              ? Verdict::kOk
                      : !unlimited && files.hard >= least ? Verdict::kNote
                                                          : Verdict::kProblem,
                      "open files",
                      absl::StrCat("at most ", LimitText(files.hard), "; the daemon asks for ", wanted,
                                   ", and starts with ", least, " or more"),
                      enough ? ""
                             : absl::StrCat("sudo prlimit --pid $$ --nofile=", wanted, ":", wanted,
                                            "   (systemd: LimitNOFILE; docker run --ulimit nofile=", wanted, ")")});
  return findings;
}

std::vector<Finding> CheckSpeed(const Machine& machine, const std::string& out, bool measure) {
  std::vector<Finding> findings = CheckDisk(machine, out, measure);
  if (!measure) return findings;
  const MemorySpeed memory = machine.MeasureMemorySpeed();
  findings.push_back({Verdict::kOk, "memory speed",
                      absl::StrCat(Gigabytes(memory.bytes_per_second), " read and written by a plain loop on ",
                                   memory.threads, memory.threads == 1 ? " thread" : " threads"),
                      ""});
  return findings;
}

std::vector<Finding> CheckNvidia(const Machine& machine, const std::string& device) {
  // From NVIDIA's own repository for Debian and Ubuntu, whose package cuda-keyring adds it.
  const auto install = [](const std::string& package) {
    return absl::StrCat("only for the cuda device: sudo apt-get install ", package,
                        "   (NVIDIA's repository; or add its folder to LD_LIBRARY_PATH)");
  };
  return {CheckDriver(machine), CheckLibrary(machine, "cublas", {"libcublasLt.so.13"}, install("libcublas-13-0")),
          CheckLibrary(machine, "cudnn", {"libcudnn.so.9"}, install("libcudnn9-cuda-13")),
          CheckLibrary(machine, "nccl", {"libnccl.so.2"}, install("libnccl2")), CheckCudaDevice(machine, device)};
}

std::vector<Finding> CheckRun(const Machine& machine, const std::string& out, const Needs& needs) {
  std::vector<Finding> findings;
  const MemoryRoom room = FindMemoryRoom(machine);
  const int64_t memory = needs.daemon_bytes + needs.workers * needs.worker_bytes;
  const bool fits = memory <= room.available_bytes;
  findings.push_back(
      {fits ? Verdict::kOk : Verdict::kProblem, "run: memory",
       absl::StrCat("needs ", FormatByteSize(memory), " (the daemon ", FormatByteSize(needs.daemon_bytes), ", ",
                    needs.workers, needs.workers == 1 ? " worker of " : " workers of ",
                    FormatByteSize(needs.worker_bytes), "), has ", FormatByteSize(room.available_bytes),
                    room.limited_by_group ? " in its control group" : ""),
       fits ? "" : WhatTakesLessMemory(needs, room)});
  if (const absl::StatusOr<int64_t> disk = machine.DiskRoomBytes(out); disk.ok()) {
    const bool enough = needs.checkpoints_bytes <= *disk;
    findings.push_back(
        {enough ? Verdict::kOk : Verdict::kProblem, "run: disk",
         absl::StrCat("needs ", FormatByteSize(needs.checkpoints_bytes), " for ", needs.keep,
                      " checkpoints and one that is written, has ", FormatByteSize(*disk)),
         enough ? "" : "another --out, a smaller checkpoint.keep, or a larger checkpoint.keep_every_steps"});
  }
  if (needs.offload_bytes > 0) findings.push_back(CheckOffload(machine, needs));
  return findings;
}

}  // namespace eps::cli
