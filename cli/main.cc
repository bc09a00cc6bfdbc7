// eps: the command line. One file per subcommand; this one only gathers them.

#include <csignal>
#include <cstdio>
#include <string>

#include "CLI/CLI.hpp"
#include "cli/command.h"
#include "cli/command_name.h"
#include "common/base/command_line.h"
#include "common/base/exit_code.h"
#include "common/base/program_output.h"
#include "common/base/version.h"

int main(int argc, char** argv) {
  eps::HoldStandardStreams();
  std::signal(SIGCHLD, SIG_DFL);  // children are waited for, whoever started us ignores his
  std::signal(SIGPIPE, SIG_IGN);  // `| head` ends the output and nothing else
  std::signal(SIGXFSZ, SIG_IGN);  // a file beyond the limit is an error of its write, as on a full disk
  CLI::App app{
      "eps: trains large neural networks on devices far too small for them.\n"
      "The model lives in the memory of a daemon; workers hold a layer at a time."};
  app.name("eps");
  app.require_subcommand(1);
  app.set_version_flag("--version", eps::VersionText("eps"));
  int exit_code = eps::kExitDone;
  eps::cli::AddTrain(app, &exit_code);
  eps::cli::AddStatus(app, &exit_code);
  eps::cli::AddTop(app, &exit_code);
  eps::cli::AddProfile(app, &exit_code);
  eps::cli::AddPlan(app, &exit_code);
  eps::cli::AddTrace(app, &exit_code);
  eps::cli::AddImport(app, &exit_code);
  eps::cli::AddExport(app, &exit_code);
  eps::cli::AddGrow(app, &exit_code);
  eps::cli::AddBranch(app, &exit_code);
  eps::cli::AddTokenize(app, &exit_code);
  eps::cli::AddSample(app, &exit_code);
  eps::cli::AddEvaluate(app, &exit_code);
  eps::cli::AddCheckpoint(app, &exit_code);
  eps::cli::AddStop(app, &exit_code);
  eps::cli::AddResize(app, &exit_code);
  eps::cli::AddDrain(app, &exit_code);
  eps::cli::AddDoctor(app, &exit_code);
  eps::cli::AddKeys(app, &exit_code);
  eps::cli::AddVerify(app, &exit_code);
  // Behind the commands, which would inherit it.
  app.footer(
      "Exit codes: 0 done, 1 the run failed, 2 bad usage, config or input, 3 does not fit the device memory,\n"
      "130 or 143 ended by a signal after its checkpoint. `eps COMMAND --help` says more.");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    const std::string wrong = error.get_exit_code() == 0 ? "" : eps::cli::WrongNameText(app);  // --help is no mistake
    if (wrong.empty()) return eps::EndOfParsing("eps", app, error);
    std::fprintf(stderr, "eps: %s\n", wrong.c_str());
    return eps::kExitBadInput;
  }
  // What training is for lies in its folder, whoever reads of it.
  const bool is_told = eps::FlushOutput("eps") || app.got_subcommand("train");
  if (!is_told && exit_code == eps::kExitDone) return eps::kExitFailed;
  return exit_code;
}
