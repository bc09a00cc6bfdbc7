#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "common/model/model_spec.h"
#include "common/spec/run_config.h"
#include "common/spec/run_spec_check.h"
#include "common/spec/run_spec_text.h"

namespace {

// Stands for a folder `model.from`, so that no file is read.
absl::StatusOr<eps::ModelConfig> ReadModel(const std::string&) {
  return eps::ModelConfig{.num_layers = 2, .d_model = 8, .num_heads = 2, .context = 4, .vocab = 16};
}

}  // namespace

// JSON if it starts with a brace, else textproto; a last line "--set FIELD=VALUE" is an override. A run that is taken
// survives being written and read, and its model can be laid out.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
  std::string text(reinterpret_cast<const char*>(data), num_bytes);
  eps::FieldOverride override;
  if (const size_t at = text.rfind("\n--set "); at != std::string::npos) {
    const std::string set = text.substr(at + 7);
    const size_t equals = set.find('=');
    if (equals != std::string::npos) override = {set.substr(0, equals), set.substr(equals + 1)};
    text.resize(at);
  }
  auto spec = !text.empty() && text[0] == '{' ? eps::RunSpecFromJson(text) : eps::RunSpecFromTextproto(text, "fuzz");
  if (!spec.ok()) return 0;
  if (!override.path.empty() && !eps::ApplyOverride(override, *spec).ok()) return 0;
  const auto run = eps::CheckRunSpec(
      *spec, {.absolute_path = [](const std::string& path) { return "/" + path; }, .read_model = ReadModel});
  if (!run.ok()) return 0;
  const auto again = eps::ParseRunConfig(eps::SerializeRunConfig(*run));
  if (!again.ok() || !(*again == *run) || !eps::DifferencesThatMatter(*run, *again).empty()) abort();
  if (run->model.num_layers <= 64 && !eps::BuildModel(run->model).ok()) abort();
  return 0;
}
