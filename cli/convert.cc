// eps import, eps export: a folder as Hugging Face has it, in and out.

#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "cli/command.h"
#include "cli/common_flags.h"
#include "common/base/flags.h"
#include "common/base/status_macros.h"
#include "common/checkpoint/checkpoint_files.h"
#include "common/checkpoint/manifest.h"
#include "common/formats/model_folder.h"
#include "common/formats/model_folder_writer.h"

namespace eps::cli {
namespace {

absl::Status Copy(const std::string& from, const std::string& to, const ModelFolderForm& form) {
  EPS_ASSIGN_OR_RETURN(const std::unique_ptr<ModelFolder> source, ModelFolder::Open(from));
  EPS_RETURN_IF_ERROR(WriteModelFolder(to, source->model(), form,
                                       [&source](const TensorSpec& tensor, int64_t first, absl::Span<float> values) {
                                         return source->ReadPart(tensor, first, values);
                                       }));
  std::printf("%s: %lld parameters, %s, %lld layers, %lld wide\n", to.c_str(),
              static_cast<long long>(source->model().num_parameters()), form.dtype.c_str(),
              static_cast<long long>(source->model().config.num_layers),
              static_cast<long long>(source->model().config.d_model));
  return absl::OkStatus();
}

// What a folder has beside its weights, for those who load it.
constexpr const char* kCompanions[] = {"tokenizer.json",
                                       "tokenizer.model",
                                       "tokenizer_config.json",
                                       "special_tokens_map.json",
                                       "added_tokens.json",
                                       "vocab.json",
                                       "merges.txt",
                                       "vocab.txt",
                                       "chat_template.jinja",
                                       "chat_template.json",
                                       "generation_config.json",
                                       "spiece.model"};

// Those of them that `from` has; whatever cannot be copied is said, and the folder is good without.
void CopyCompanions(const std::string& from, const std::string& to) {
  if (from.empty()) return;
  for (const char* name : kCompanions) {
    std::error_code error;
    if (!std::filesystem::is_regular_file(from + "/" + name, error)) continue;
    std::filesystem::copy_file(from + "/" + name, to + "/" + name, error);
    if (error) std::fprintf(stderr, "eps: %s/%s is left out: %s\n", from.c_str(), name, error.message().c_str());
  }
}

absl::Status RunImport(const std::string& from, const std::string& out, const ModelFolderForm& form) {
  EPS_RETURN_IF_ERROR(Copy(from, out, form));
  CopyCompanions(from, out);
  return absl::OkStatus();
}

absl::Status RunExport(const std::string& checkpoint, const std::string& out, const ModelFolderForm& form) {
  EPS_ASSIGN_OR_RETURN(const std::string folder, FindCheckpointFolder(checkpoint));
  EPS_RETURN_IF_ERROR(VerifyCheckpointFolder(folder));
  EPS_RETURN_IF_ERROR(Copy(folder, out, form));
  // The folder that the run began with.
  const absl::StatusOr<Manifest> manifest = ReadManifest(folder);
  CopyCompanions(manifest.ok() ? manifest->run.model_from : folder, out);
  return absl::OkStatus();
}

void AddShardSize(CLI::App& command, ModelFolderForm& form) {
  command
      .add_option("--max-shard-size", form.max_shard_bytes,
                  "A model whose tensors take more is written as model-00001-of-0000N.safetensors and so on, with "
                  "model.safetensors.index.json")
      ->type_name("SIZE")
      ->transform(AsByteSize())
      ->default_str("5000000000");
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
  auto form = std::make_shared<ModelFolderForm>();
  AddShardSize(*command, *form);
  command->callback([=] { *exit_code = ReportStart(RunImport(*from, *out, *form)); });
}

void AddExport(CLI::App& app, int* exit_code) {
  CLI::App* command =
      app.add_subcommand("export", "Writes a checkpoint as a Hugging Face folder that transformers loads");
  auto checkpoint = std::make_shared<std::string>();
  auto out = std::make_shared<std::string>();
  auto form = std::make_shared<ModelFolderForm>();
  command->add_option("--checkpoint", *checkpoint, "A step-NNNNNNNN folder, checkpoints/latest, or a run's folder")
      ->type_name("PATH")
      ->required();
  command->add_option("--out", *out, "Folder to write; must not be there, or be empty")->type_name("DIR")->required();
  command->add_option("--dtype", form->dtype, "F32, BF16 or F16; 16-bit forms round to nearest even")
      ->check(CLI::IsMember({"F32", "BF16", "F16"}))
      ->capture_default_str();
  AddShardSize(*command, *form);
  command->callback([=] { *exit_code = ReportStart(RunExport(*checkpoint, *out, *form)); });
}

}  // namespace eps::cli
