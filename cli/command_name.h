#ifndef EPS_CLI_COMMAND_NAME_H_
#define EPS_CLI_COMMAND_NAME_H_

#include <string>

namespace CLI {
class App;
}  // namespace CLI

namespace eps::cli {

// What is wrong with the command's name in the words that `app` could not parse: the word, and the subcommands that are
// spelt most like it, if any is. "": no word stands where a name should.
//   "trian" is no command; do you mean train? `eps --help` lists them
std::string WrongNameText(const CLI::App& app);

}  // namespace eps::cli

#endif  // EPS_CLI_COMMAND_NAME_H_
