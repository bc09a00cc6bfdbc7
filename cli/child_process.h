#ifndef EPS_CLI_CHILD_PROCESS_H_
#define EPS_CLI_CHILD_PROCESS_H_

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/memory_room.h"

namespace eps::cli {

// A direct child, in a process group of its own (a Ctrl-C in the terminal does not reach it), its output in a log file.
struct ChildProcess {
  std::string name;  // "eps_server", "gpu_worker 1"; for people
  pid_t pid = -1;
  std::string log_path;
  int64_t log_start = 0;           // where its own part of the log begins: behind what earlier ones have written
  std::optional<int> wait_status;  // as waitpid gives it, once it has ended

  bool running() const { return pid > 0 && !wait_status.has_value(); }
  bool ended_well() const { return wait_status.has_value() && *wait_status == 0; }
};

struct SpawnOptions {
  std::string name;
  std::string program;                 // path
  std::vector<std::string> arguments;  // without the program
  std::string log_path;                // appended to
  int signal_when_parent_dies = 0;     // 0: none
  // Signals that ask it to end wait until it reads them, as a SignalWatcher does, however early they come.
  bool reads_signals = false;
};

// Errors: INTERNAL or the system's, naming the program
absl::StatusOr<ChildProcess> Spawn(const SpawnOptions& options);

// Notes which of `children` have ended since. Never blocks.
void Reap(std::vector<ChildProcess*> children);

// "exit code 1", "signal 9 (Killed)", "still running".
std::string EndOf(const ChildProcess& child);

// Of a child that SIGKILL ended, as the kernel does who takes more memory than there is: ", perhaps for want of memory: "
// and MostMemoryText; "" of any other end.
std::string WhyKilled(const ChildProcess& child, const MemoryRoom& room);

// The last line of the child's own part of its log that starts with "PROGRAM: ", which is how our programs say why
// they end; "" if none.
std::string LastWords(const ChildProcess& child);

// Why LastWords may lack what the child said, for people; "" where nothing speaks for it: its own part of the log ends in
// the middle of a line, or it has failed without a word in it and the log is empty or its disk full.
std::string LogTrouble(const ChildProcess& child);

struct ProgramEnd {
  int exit_code = 0;
  std::string last_words;  // LastWords
};
// What happens beside a program that runs.
struct ProgramWatch {
  // Whether somebody asks for its end, within so long; null: nobody does.
  std::function<bool(absl::Duration)> cancelled_within;
  // Each whole line that it has written, within a tenth of a second or so; null: nobody looks.
  std::function<void(const std::string& line)> on_line;
};
// Runs a program to its end; what it writes is not shown. Blocks. It is killed when it is cancelled.
// Errors: Spawn's · ABORTED it was ended by a signal · CANCELLED
absl::StatusOr<ProgramEnd> RunProgram(const std::string& program, std::vector<std::string> arguments,
                                      const ProgramWatch& watch = {});

// The folder of this program's own binary, where the others lie too.
absl::StatusOr<std::string> ProgramFolder();

}  // namespace eps::cli

#endif  // EPS_CLI_CHILD_PROCESS_H_
