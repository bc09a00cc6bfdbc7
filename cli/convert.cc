// eps import, eps export: a folder as Hugging Face has it, in and out.

#include <cstdio>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "cli/command.h"
#include "cli/common_flags.h"
#include "common/base/status_macros.h"
#include "common/checkpoint/checkpoint_files.h"
#include "common/formats/model_folder.h"

namespace eps::cli {
namespace {

absl::Status Copy(const std::string& from, const std::string& to, const std::string& dtype) {
  EPS_ASSIGN_OR_RETURN(const std::unique_ptr<ModelFolder> source, ModelFolder::Open(from));
  EPS_RETURN_IF_ERROR(WriteModelFolder(
      to, source->model(), dtype,
      [&source](const TensorSpec& tensor, absl::Span<float> values) { return source->Read(tensor, values); }));
  std::printf("%s: %lld parameters, %s, %lld layers, %lld wide\n", to.c_str(),
              static_cast<long long>(source->model().num_parameters()), dtype.c_str(),
              static_cast<long long>(source->model().config.num_layers),
              static_cast<long long>(source->model().config.d_model));
  return absl::OkStatus();
}

absl::Status RunExport(const std::string& checkpoint, const std::string& out, const std::string& dtype) {
  EPS_ASSIGN_OR_RETURN(const std::string folder, FindCheckpointFolder(checkpoint));
  EPS_RETURN_IF_ERROR(VerifyCheckpointFolder(folder));
  return Copy(folder, out, dtype);
}

}  // namespace

void AddImport(CLI::App& app, int* exit_code) {
  CLI::App* command = app.add_subcommand(
      "import",
      "Checks a Hugging Face folder (GPT-2, Llama, Mistral, Qwen2, Qwen3) and writes it in fp32, ready for a RunSpec's "
      "model { from: ... }");
  auto from = std::make_shared<std::string>();
  auto out = std::make_shared<std::string>();
  command->add_option("--from", *from, "Folder with config.json and model.safetensors (or shards and their index)")
      ->type_name("DIR")
      ->required();
  command->add_option("--out", *out, "Folder to write; must not be there, or be empty")->type_name("DIR")->required();
  command->callback([from, out, exit_code] { *exit_code = ReportStart(Copy(*from, *out, "F32")); });
}

void AddExport(CLI::App& app, int* exit_code) {
  CLI::App* command =
      app.add_subcommand("export", "Writes a checkpoint as a Hugging Face folder that transformers loads");
  auto checkpoint = std::make_shared<std::string>();
  auto out = std::make_shared<std::string>();
  auto dtype = std::make_shared<std::string>("F32");
  command->add_option("--checkpoint", *checkpoint, "A step-NNNNNNNN folder, checkpoints/latest, or a run's folder")
      ->type_name("PATH")
      ->required();
  command->add_option("--out", *out, "Folder to write; must not be there, or be empty")->type_name("DIR")->required();
  command->add_option("--dtype", *dtype, "F32, BF16 or F16; 16-bit forms round to nearest even")
      ->check(CLI::IsMember({"F32", "BF16", "F16"}))
      ->capture_default_str();
  command->callback([=] { *exit_code = ReportStart(RunExport(*checkpoint, *out, *dtype)); });
}

}  // namespace eps::cli
