// eps import, eps export: a folder as Hugging Face has it, in and out.

#include <memory>
#include <string>

#include "CLI/CLI.hpp"
#include "cli/command.h"
#include "cli/common_flags.h"
#include "cli/export_adapter.h"
#include "cli/export_model.h"
#include "cli/import_adapter.h"
#include "common/base/flags.h"
#include "common/formats/model_folder_writer.h"

namespace eps::cli {
namespace {

CLI::Option* AddShardSize(CLI::App& command, ModelFolderForm& form) {
  return command
      .add_option("--max-shard-size", form.max_shard_bytes,
                  "A model whose tensors take more is written as model-00001-of-0000N.safetensors and so on, with "
                  "model.safetensors.index.json")
      ->type_name("SIZE")
      ->transform(AsByteSize())
      ->default_str("5000000000");
}

}  // namespace

void AddImport(CLI::App& app, int* exit_code) {
  CLI::App* command =
      app.add_subcommand("import",
                         "Checks a Hugging Face folder (GPT-2, Llama, Mistral, Mixtral, Qwen2, Qwen3, BERT) and "
                         "writes it in fp32, ready for a RunSpec's "
                         "model { from: ... }; with --adapter as it is, with a PEFT adapter beside its weights");
  auto from = std::make_shared<std::string>();
  auto out = std::make_shared<std::string>();
  command->add_option("--from", *from, "Folder with config.json and model.safetensors (or shards and their index)")
      ->type_name("DIR")
      ->required();
  command->add_option("--out", *out, "Folder to write; must not be there, or be empty")->type_name("DIR")->required();
  auto form = std::make_shared<ModelFolderForm>();
  CLI::Option* shard_size = AddShardSize(*command, *form);
  auto adapter = std::make_shared<std::string>();
  CLI::Option* with_adapter =
      command
          ->add_option(
              "--adapter", *adapter,
              "Folder with adapter_config.json and adapter_model.safetensors (PEFT): its LoRA is put beside the "
              "model's weights, whose files are linked where they can be")
          ->type_name("DIR")
          ->excludes(shard_size);
  command->callback([=] {
    *exit_code = ReportStart(with_adapter->count() == 0 ? ImportModel(*from, *out, *form)
                                                        : ImportAdapter(*from, *adapter, *out));
  });
}

void AddExport(CLI::App& app, int* exit_code) {
  CLI::App* command =
      app.add_subcommand("export",
                         "Writes a checkpoint as a Hugging Face folder that transformers loads, with adapters "
                         "(model.lora) merged into the weights");
  auto checkpoint = std::make_shared<std::string>();
  auto out = std::make_shared<std::string>();
  auto form = std::make_shared<ModelFolderForm>();
  command->add_option("--checkpoint", *checkpoint, "A step-NNNNNNNN folder, checkpoints/latest, or a run's folder")
      ->type_name("PATH")
      ->required();
  command->add_option("--out", *out, "Folder to write; must not be there, or be empty")->type_name("DIR")->required();
  AddDtypeTo(*command, "--dtype", *form);
  CLI::Option* shard_size = AddShardSize(*command, *form);
  auto is_adapter = std::make_shared<bool>(false);
  auto base = std::make_shared<std::string>();
  CLI::Option* adapter =
      command->add_flag("--adapter", *is_adapter,
                        "The run's adapters alone, as PEFT and vLLM load them on top of the model that it began with: "
                        "adapter_config.json and adapter_model.safetensors, and the tokenizer");
  adapter->excludes(shard_size);
  command
      ->add_option(
          "--base", *base,
          "With --adapter: what others call that model, a folder of theirs or a name (base_model_name_or_path). "
          "Default: the run's model.from")
      ->type_name("NAME")
      ->needs(adapter);
  command->callback([=] {
    *exit_code = ReportStart(*is_adapter ? ExportAdapter(*checkpoint, *out, form->dtype, *base)
                                         : ExportCheckpoint(*checkpoint, *out, *form));
  });
}

}  // namespace eps::cli
