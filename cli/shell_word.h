#ifndef EPS_CLI_SHELL_WORD_H_
#define EPS_CLI_SHELL_WORD_H_

#include <string>

namespace eps::cli {

// `text` as one word of a command that is printed to be copied: as it is where a shell takes it so, else in quotes.
std::string ShellWord(const std::string& text);

}  // namespace eps::cli

#endif  // EPS_CLI_SHELL_WORD_H_
