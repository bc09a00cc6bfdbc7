#include "cli/child_process.h"

#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/byte_size.h"
#include "common/base/file_util.h"
#include "common/base/status_macros.h"

namespace eps::cli {
namespace {

// Of a child that somebody else has waited for: exit code 1, as waitpid would give it.
constexpr int kUnknownEnd = 1 << 8;
constexpr absl::Duration kAskTime = absl::Milliseconds(50);  // between two looks at a program

// The lines that a file gets while somebody looks.
class NewLines {
 public:
  explicit NewLines(const std::string& path) : file_(path) {}

  // Those that are whole since the last time.
  void Tell(const std::function<void(const std::string& line)>& on_line) {
    file_.clear();  // of the end that was reached
    for (std::string text; std::getline(file_, text);) {
      begun_ += text;
      if (!file_.eof()) on_line(std::exchange(begun_, {}));
    }
  }

 private:
  std::ifstream file_;
  std::string begun_;  // a line whose end is not there yet
};

bool CancelledWithin(const ProgramWatch& watch, absl::Duration time) {
  if (watch.cancelled_within != nullptr) return watch.cancelled_within(time);
  absl::SleepFor(time);
  return false;
}

// What this program has open, or was started with, is none of the child's, but for its input and output.
// Async-signal-safe.
void CloseTheRestAtExec() {
  constexpr rlim_t kMostLookedAt = 4096;  // the lowest free number is taken first, and this program has few
  if (close_range(STDERR_FILENO + 1, ~0U, CLOSE_RANGE_CLOEXEC) == 0) return;
  rlimit limit{};  // before Linux 5.11
  getrlimit(RLIMIT_NOFILE, &limit);
  const int end = static_cast<int>(std::min(limit.rlim_cur, kMostLookedAt));
  for (int fd = STDERR_FILENO + 1; fd < end; ++fd) fcntl(fd, F_SETFD, FD_CLOEXEC);
}

// Between fork and exec: async-signal-safe calls only.
[[noreturn]] void BecomeChild(const SpawnOptions& options, char* const* argv, int log_fd, pid_t parent) {
  setpgid(0, 0);
  // Not as this program has them: what nohup has it ignore, the child is told with.
  sigset_t blocked;
  sigemptyset(&blocked);
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
    signal(number, SIG_DFL);
    if (options.reads_signals) sigaddset(&blocked, number);
  }
  sigprocmask(SIG_SETMASK, &blocked, nullptr);
  if (options.signal_when_parent_dies != 0) {
    prctl(PR_SET_PDEATHSIG, options.signal_when_parent_dies);
    if (getppid() != parent) _exit(127);  // it died before the line above
  }
  const int null_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
  if (null_fd < 0) _exit(127);  // else the terminal would stay its input
  dup2(null_fd, STDIN_FILENO);
  fcntl(STDIN_FILENO, F_SETFD, 0);  // where that is null_fd itself, which would be closed now
  dup2(log_fd, STDOUT_FILENO);
  dup2(log_fd, STDERR_FILENO);
  CloseTheRestAtExec();
  execv(argv[0], argv);
  constexpr char kMessage[] = "cannot execute the program\n";
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, kMessage, sizeof(kMessage) - 1);
  _exit(127);
}

}  // namespace

absl::StatusOr<ChildProcess> Spawn(const SpawnOptions& options) {
  if (access(options.program.c_str(), X_OK) != 0) return FileError(errno, "execute", options.program);
  EPS_ASSIGN_OR_RETURN(const FileDescriptor log, OpenFile(options.log_path, O_WRONLY | O_CREAT | O_APPEND));
  const off_t log_start = lseek(log.get(), 0, SEEK_END);
  if (log_start < 0) return FileError(errno, "find the end of", options.log_path);
  std::vector<std::string> words = {options.program};
  words.insert(words.end(), options.arguments.begin(), options.arguments.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);

  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0) return FileError(errno, "fork for", options.program);
  if (pid == 0) BecomeChild(options, argv.data(), log.get(), parent);
  setpgid(pid, pid);  // here as well, so that it holds before the child has run
  return ChildProcess{
      .name = options.name, .pid = pid, .log_path = options.log_path, .log_start = log_start, .wait_status = {}};
}

void Reap(std::vector<ChildProcess*> children) {
  for (ChildProcess* child : children) {
    int status = 0;
    if (!child->running()) continue;
    const pid_t ended = waitpid(child->pid, &status, WNOHANG);
    if (ended == child->pid) child->wait_status = status;
    if (ended < 0 && errno == ECHILD) child->wait_status = kUnknownEnd;
  }
}

std::string EndOf(const ChildProcess& child) {
  if (!child.wait_status.has_value()) return "still running";
  if (WIFSIGNALED(*child.wait_status)) {
    const int number = WTERMSIG(*child.wait_status);
    return absl::StrCat("signal ", number, " (", strsignal(number), ")");
  }
  return absl::StrCat("exit code ", WEXITSTATUS(*child.wait_status));
}

std::string WhyKilled(const ChildProcess& child, const MemoryRoom& room) {
  const bool is_killed =
      child.wait_status.has_value() && WIFSIGNALED(*child.wait_status) && WTERMSIG(*child.wait_status) == SIGKILL;
  if (!is_killed) return "";
  const std::string most = MostMemoryText(room);
  return absl::StrCat(", perhaps for want of memory", most.empty() ? "" : ": ", most);
}

std::string LastWords(const ChildProcess& child) {
  const std::string program = child.name.substr(0, child.name.find(' ')) + ": ";
  std::ifstream log(child.log_path);
  log.seekg(child.log_start);
  std::string last;
  for (std::string line; std::getline(log, line);) {
    if (absl::StartsWith(line, program)) last = line;
  }
  return last;
}

std::string LogTrouble(const ChildProcess& child) {
  if (!child.wait_status.has_value() || WIFSIGNALED(*child.wait_status)) return "";  // which ends lines anywhere
  std::ifstream log(child.log_path, std::ios::ate);
  const bool is_empty = !log.is_open() || log.tellg() <= child.log_start;
  bool is_cut = false;
  if (!is_empty) {
    log.seekg(-1, std::ios::end);
    is_cut = log.get() != '\n';
  }
  struct statvfs disk {};
  const bool is_known = statvfs(child.log_path.c_str(), &disk) == 0;
  const int64_t free_bytes = static_cast<int64_t>(disk.f_bavail) * static_cast<int64_t>(disk.f_frsize);
  const bool is_full = is_known && free_bytes == 0;
  const bool is_silent = WEXITSTATUS(*child.wait_status) != 0 && LastWords(child).empty();
  if (!is_cut && !(is_silent && (is_empty || is_full))) return "";
  std::string why = is_full ? ": its disk is full" : "";
  if (is_known && !is_full) why = absl::StrCat("; its disk has ", FormatByteSize(free_bytes), " free now");
  return absl::StrCat("its log could not be written to the end", why);
}

absl::StatusOr<ProgramEnd> RunProgram(const std::string& program, std::vector<std::string> arguments,
                                      const ProgramWatch& watch) {
  EPS_ASSIGN_OR_RETURN(std::string log_path, TemporaryFolder());
  log_path += "/eps-log-XXXXXX";
  const FileDescriptor log(mkostemp(log_path.data(), O_CLOEXEC));
  if (!log.is_open()) return FileError(errno, "make", log_path);
  absl::StatusOr<ChildProcess> child = Spawn({.name = program.substr(program.rfind('/') + 1),
                                              .program = program,
                                              .arguments = std::move(arguments),
                                              .log_path = log_path,
                                              .signal_when_parent_dies = SIGKILL});
  int status = 0;
  bool cancelled = false;
  if (child.ok()) {
    const bool is_watched = watch.cancelled_within != nullptr || watch.on_line != nullptr;
    NewLines lines(log_path);
    pid_t ended = 0;
    do {
      ended = waitpid(child->pid, &status, !is_watched || cancelled ? 0 : WNOHANG);
      if (watch.on_line != nullptr) lines.Tell(watch.on_line);
      if (ended != 0) continue;  // its process id may be another's by now
      cancelled = CancelledWithin(watch, kAskTime);
      if (cancelled) kill(child->pid, SIGKILL);
    } while (ended == 0 || (ended < 0 && errno == EINTR));
    if (ended < 0) status = kUnknownEnd;
    child->wait_status = status;
  }
  const std::string last_words = child.ok() ? LastWords(*child) : "";
  unlink(log_path.c_str());
  EPS_RETURN_IF_ERROR(child.status());
  if (cancelled) return absl::CancelledError(absl::StrCat(program, ": cancelled"));
  if (!WIFEXITED(status)) return absl::AbortedError(absl::StrCat(program, ": ", EndOf(*child)));
  return ProgramEnd{.exit_code = WEXITSTATUS(status), .last_words = last_words};
}

absl::StatusOr<std::string> ProgramFolder() {
  char path[4096];
  const ssize_t length = readlink("/proc/self/exe", path, sizeof(path));
  if (length <= 0) return FileError(errno, "read", "/proc/self/exe");
  return DirName(std::string(path, static_cast<size_t>(length)));
}

}  // namespace eps::cli
