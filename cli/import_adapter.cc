#include "cli/import_adapter.h"

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "cli/export_files.h"
#include "common/base/byte_size.h"
#include "common/base/file_util.h"
#include "common/base/shown_text.h"
#include "common/base/status_macros.h"
#include "common/checkpoint/checkpoint_files.h"
#include "common/checkpoint/manifest.h"
#include "common/checkpoint/model_source.h"
#include "common/formats/adapted_folder.h"
#include "common/formats/adapter_reader.h"
#include "common/formats/model_folder.h"
#include "common/formats/model_folder_files.h"
#include "common/formats/new_folder.h"
#include "common/model/hf_config.h"
#include "common/model/model_spec.h"
#include "common/numeric/quantized.h"

namespace eps::cli {
namespace {

// The model's, with the adapter's tokenizer, as it was trained with that. `left_out`: of the adapter's, what means
// nothing without a vocabulary of its own.
absl::StatusOr<ModelFiles> FilesBeside(const std::string& from, const std::string& adapter,
                                       std::vector<std::string>& left_out) {
  EPS_ASSIGN_OR_RETURN(ModelFiles files, ReadModelFiles(from));
  EPS_ASSIGN_OR_RETURN(const ModelFiles own, ReadModelFiles(adapter));
  if (HasTokenizer(own)) {
    PutTokenizer(own, adapter, HasTokenizer(files) ? from : "", files);
  } else {
    for (const char* name : TokenizerFileNames()) {
      if (own.contains(name)) left_out.push_back(name);
    }
  }
  EPS_RETURN_IF_ERROR_WITH(CheckExportFiles(files), absl::StrCat(from, " with ", adapter));
  return files;
}

// Of a model that adapters can go on top of.
absl::StatusOr<ModelConfig> ReadBaseConfig(const std::string& from) {
  if (IsStepFolder(from)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--from: ", from, " is a run's checkpoint; export it first (eps export), and go on top of that folder"));
  }
  const std::string path = absl::StrCat(from, "/", kConfigFile);
  EPS_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  absl::StatusOr<ModelConfig> config = ModelConfigFromJson(text);
  EPS_RETURN_IF_ERROR_WITH(config.status(), path);
  if (!config->lora.is_on()) return config;
  return absl::InvalidArgumentError(absl::StrCat(
      "--from: ", from, " has adapters already; merge them first (eps export), and go on top of that folder"));
}

// The field by which a run has such values; "": the word is not one of ours.
std::string HowToHave(absl::string_view values) {
  for (const QuantizedFormat format : {QuantizedFormat::kMxInt8, QuantizedFormat::kNf4}) {
    if (values == NameOf(format)) return absl::StrCat(": precision.frozen=", values, " has the very same values");
  }
  for (const absl::string_view wire : {"FP32", "BF16", "FP16"}) {
    if (values == wire) return absl::StrCat(": precision.wire=", values, " has the very same values");
  }
  return "";
}

void Say(const std::string& out, const std::string& from, const AdapterReader& adapter, int64_t copied_bytes,
         absl::Span<const std::string> left_out) {
  int64_t adapters = 0, num_parameters = 0;
  std::vector<std::string> whole;
  for (const BlobSpec& blob : adapter.model().blobs) {
    for (const TensorSpec& tensor : blob.tensors) {
      adapters += tensor.lora == LoraPart::kA;
      if (tensor.lora != LoraPart::kNone) continue;
      if (adapter.has(tensor)) whole.push_back(tensor.name);
      num_parameters += tensor.num_elems();
    }
  }
  const LoraConfig& lora = adapter.model().config.lora;
  std::printf(
      "%s: %lld parameters of %s, %s, and adapters of rank %lld beside %lld weights\n", out.c_str(),
      static_cast<long long>(num_parameters), from.c_str(),
      copied_bytes == 0 ? "whose files are linked" : absl::StrCat(FormatByteSize(copied_bytes), " copied").c_str(),
      static_cast<long long>(lora.rank), static_cast<long long>(adapters));
  std::printf("  alpha %g%s, dropout %g; %s\n", lora.alpha, lora.rank_stabilized ? ", rank-stabilized" : "",
              lora.dropout, lora.targets.empty() ? "beside all products that take any" : SomeOf(lora.targets).c_str());
  if (!whole.empty()) std::printf("  and in the place of the model's own: %s\n", SomeOf(whole).c_str());
  if (!adapter.base_model().empty()) {
    std::printf("  they were trained beside %s, as adapter_config.json has it\n", adapter.base_model().c_str());
  }
  if (!adapter.base_values().empty()) {
    std::printf("  beside blocks in %s%s\n", adapter.base_values().c_str(), HowToHave(adapter.base_values()).c_str());
  }
  if (!left_out.empty()) {
    std::printf("  left out, as the adapter has no vocabulary of its own: %s\n", absl::StrJoin(left_out, ", ").c_str());
  }
}

}  // namespace

absl::Status ImportAdapter(const std::string& from, const std::string& adapter, const std::string& out) {
  if (adapter.empty()) return absl::InvalidArgumentError("--adapter: is empty");
  EPS_RETURN_IF_ERROR(CheckNewFolder(out));
  EPS_ASSIGN_OR_RETURN(const ModelConfig config, ReadBaseConfig(from));
  EPS_ASSIGN_OR_RETURN(const std::unique_ptr<AdapterReader> reader, AdapterReader::Open(adapter, config));
  // As the adapter makes it: one that has what tells classes apart goes on top of a model without a head, too.
  EPS_ASSIGN_OR_RETURN(const std::unique_ptr<ModelFolder> base, ModelFolder::Open(from, reader->model().config));
  std::vector<std::string> left_out;
  EPS_ASSIGN_OR_RETURN(const ModelFiles files, FilesBeside(from, adapter, left_out));
  EPS_ASSIGN_OR_RETURN(const int64_t copied_bytes, WriteAdaptedFolder(out, *base, *reader, files));
  Say(out, from, *reader, copied_bytes, left_out);
  return absl::OkStatus();
}

}  // namespace eps::cli
