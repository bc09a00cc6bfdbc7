#ifndef EPS_CLI_LOG_NOTES_H_
#define EPS_CLI_LOG_NOTES_H_

#include <fstream>
#include <string>
#include <vector>

namespace eps::cli {

// What of a program's log people should see who look at a run: its warnings and errors, what its data are, and
// what it reads in place of files that are gone.
//
// Threads: none of its own; one caller
class LogNotes {
 public:
  // Of warnings, and of all others: what goes on for hours must not bury a run's progress.
  static constexpr int kMostNotes = 20;

  // `path`: of a log that grows; from `start_byte` on. One that is not there has nothing to say.
  LogNotes(const std::string& path, std::streamoff start_byte);

  // A line each of what has come since the call before, without its time.
  std::vector<std::string> Next();

 private:
  const std::string path_;
  std::ifstream log_;
  std::string begun_;  // a line that is not complete yet
  int warnings_ = 0, others_ = 0;
};

}  // namespace eps::cli

#endif  // EPS_CLI_LOG_NOTES_H_
