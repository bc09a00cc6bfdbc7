#include "common/base/command_line.h"

#include <string>
#include <vector>

#include "common/base/exit_code.h"
#include "common/base/program_output.h"

namespace eps {
namespace {

// The first; "": there is none.
std::string UnknownFlag(const CLI::App& app) {
  for (const std::string& word : app.remaining(/*recurse=*/true)) {
    if (word.size() > 1 && word.front() == '-' && word != "--") return word.substr(0, word.find('='));
  }
  return "";
}

}  // namespace

int EndOfParsing(const char* program, const CLI::App& app, const CLI::ParseError& error) {
  if (error.get_exit_code() == 0) {
    app.exit(error);
    return FlushOutput(program) ? kExitDone : kExitFailed;
  }
  const std::string unknown = UnknownFlag(app);
  app.exit(unknown.empty() ? error : CLI::ExtrasError({unknown}));
  return kExitBadInput;
}

}  // namespace eps
