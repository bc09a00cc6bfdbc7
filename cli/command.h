#ifndef EPS_CLI_COMMAND_H_
#define EPS_CLI_COMMAND_H_

namespace CLI {
class App;
}  // namespace CLI

namespace eps::cli {

// Each adds its subcommand and flags to `app`. When the subcommand is the one given, CLI11 calls its callback, which
// does the work and puts the program's exit code into *exit_code. `app` and *exit_code outlive the parse.
void AddTrain(CLI::App& app, int* exit_code);
void AddStatus(CLI::App& app, int* exit_code);
void AddProfile(CLI::App& app, int* exit_code);
void AddPlan(CLI::App& app, int* exit_code);
void AddImport(CLI::App& app, int* exit_code);
void AddExport(CLI::App& app, int* exit_code);
void AddGrow(CLI::App& app, int* exit_code);
void AddBranch(CLI::App& app, int* exit_code);
void AddSample(CLI::App& app, int* exit_code);
void AddEvaluate(CLI::App& app, int* exit_code);
void AddCheckpoint(CLI::App& app, int* exit_code);
void AddStop(CLI::App& app, int* exit_code);
void AddDrain(CLI::App& app, int* exit_code);
void AddResize(CLI::App& app, int* exit_code);
void AddTop(CLI::App& app, int* exit_code);
void AddDoctor(CLI::App& app, int* exit_code);
void AddKeys(CLI::App& app, int* exit_code);
void AddTrace(CLI::App& app, int* exit_code);
void AddVerify(CLI::App& app, int* exit_code);
void AddTokenize(CLI::App& app, int* exit_code);

}  // namespace eps::cli

#endif  // EPS_CLI_COMMAND_H_
