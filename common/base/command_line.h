#ifndef EPS_COMMON_BASE_COMMAND_LINE_H_
#define EPS_COMMON_BASE_COMMAND_LINE_H_

#include "CLI/CLI.hpp"

namespace eps {

// For a program that ends with the parsing of its command line: prints the help or the version that was asked for, or what
// is wrong with what was typed, and returns the exit code. A flag that is not known is named before all else: one that is
// missing may be that one, mistyped, and an argument that is out of place its value.
int EndOfParsing(const char* program, const CLI::App& app, const CLI::ParseError& error);

}  // namespace eps

#endif  // EPS_COMMON_BASE_COMMAND_LINE_H_
