#ifndef EPS_COMMON_BASE_FLAGS_H_
#define EPS_COMMON_BASE_FLAGS_H_

#include <string>

#include "CLI/CLI.hpp"

// What CLI11 has no check for. Given to check() or, where it says so, to transform(); a refusal names the option.
namespace eps {

// For transform(): "512MiB" -> "536870912", so that the option can be an int64_t of bytes. At least 1 byte.
CLI::Validator AsByteSize();

// A number in [lowest, highest]. CLI::Range takes NaN for one.
CLI::Validator NumberIn(double lowest, double highest);

// Not "", which a shell makes of a variable that is not set.
CLI::Validator NotEmpty();

// A file's name that says what is written to it: ".svg".
CLI::Validator EndsIn(std::string ending);

// HOST:PORT with a port in [1, 65535].
CLI::Validator IsAddress();

}  // namespace eps

#endif  // EPS_COMMON_BASE_FLAGS_H_
