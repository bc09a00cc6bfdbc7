#ifndef EPS_CLI_DOCTOR_CHECKS_H_
#define EPS_CLI_DOCTOR_CHECKS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "cli/doctor/machine.h"
#include "common/base/memory_room.h"

// What `eps doctor` looks at: each check is a function of a Machine, and says what it found and what to do.
namespace eps::cli {

enum class Verdict {
  kOk,
  kNote,     // a run works, and would work better, or something that is not needed is missing
  kProblem,  // a run would be refused, or fail
};
absl::string_view VerdictName(Verdict verdict);  // "OK", "NOTE", "PROBLEM"

struct Finding {
  Verdict verdict = Verdict::kOk;
  std::string check;  // "cpu", "disk", ...
  std::string found;
  std::string mend;  // a command, or what to change; "" where there is nothing to do
};

// What the processes of this user may still take.
MemoryRoom FindMemoryRoom(const Machine& machine);
int UsableCores(const Machine& machine);

// What a run wants of this machine. All zero: no run is asked about.
struct Needs {
  int64_t daemon_bytes = 0;  // eps plan's total of the daemon
  int64_t worker_bytes = 0;  // each worker's on the host; on the cpu device its arena too
  int workers = 1;
  int64_t checkpoints_bytes = 0;  // on disk, of those that stay and of one more, which is there while it is written
  int64_t keep = 0;               // checkpoints that stay
  std::string offload_path;       // optimizer_offload.path; "": the state lies in memory
  int64_t offload_bytes = 0;      // that its file takes there
};

std::vector<Finding> CheckProcessor(const Machine& machine);
std::vector<Finding> CheckMemory(const Machine& machine);
// workers: how many a daemon would be started for.
std::vector<Finding> CheckLimits(const Machine& machine, int workers);
// Whether `out` can be written, and its room. With `measure`, a file is written and memory is copied, for about a second
// each; of the disk's room an eighth is written at most.
std::vector<Finding> CheckSpeed(const Machine& machine, const std::string& out, bool measure);
// device: that the workers would have; a GPU among them that does not start is a problem.
std::vector<Finding> CheckNvidia(const Machine& machine, const std::string& device);
// Of `out` the nearest folder that is there is looked at; optimizer_offload.path itself has to be there.
std::vector<Finding> CheckRun(const Machine& machine, const std::string& out, const Needs& needs);

}  // namespace eps::cli

#endif  // EPS_CLI_DOCTOR_CHECKS_H_
