#include "cli/common_flags.h"

#include <cstdio>

#include "absl/strings/str_cat.h"
#include "common/base/byte_size.h"
#include "common/base/status_macros.h"

namespace eps::cli {

void RunFlags::AddTo(CLI::App& command) {
  command.add_option("--run", run, "The RunSpec: a .textproto or .json file")->required()->type_name("FILE");
  command.add_option("--set", set, "Overrides a field of the RunSpec: --set batch.micro_batch=8")
      ->type_name("FIELD=VALUE")
      ->expected(1)
      ->take_all();
  command.add_option("--steps", steps, "Overrides the RunSpec's steps")
      ->type_name("N")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40));
}

absl::StatusOr<RunConfig> RunFlags::Load() const {
  std::vector<FieldOverride> overrides;
  for (const std::string& text : set) {
    const size_t equals = text.find('=');
    if (equals == std::string::npos || equals == 0) {
      return absl::InvalidArgumentError(absl::StrCat("--set ", text, ": not of the form field.path=value"));
    }
    overrides.push_back({text.substr(0, equals), text.substr(equals + 1)});
  }
  if (steps > 0) overrides.push_back({"steps", absl::StrCat(steps)});
  return LoadRunConfig(run, overrides);
}

std::vector<std::string> RunFlags::ToArguments() const {
  std::vector<std::string> arguments = {"--run", run};
  for (const std::string& text : set) {
    arguments.push_back("--set");
    arguments.push_back(text);
  }
  if (steps > 0) {
    arguments.push_back("--steps");
    arguments.push_back(absl::StrCat(steps));
  }
  return arguments;
}

absl::StatusOr<int64_t> ParseDeviceMemory(const std::string& text) {
  if (text.empty()) return 0;
  absl::StatusOr<int64_t> num_bytes = ParseByteSize(text);
  if (!num_bytes.ok()) return Annotate(num_bytes.status(), "--device-memory");
  if (*num_bytes <= 0) return absl::InvalidArgumentError("--device-memory: must be at least 1 byte");
  return num_bytes;
}

void PrintError(const absl::Status& status) {
  const std::string message(status.message());
  std::fprintf(stderr, "eps: %s\n", message.c_str());
}

}  // namespace eps::cli
