#ifndef EPS_COMMON_FORMATS_ADAPTER_READER_H_
#define EPS_COMMON_FORMATS_ADAPTER_READER_H_

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/formats/safetensors.h"
#include "common/model/model_config.h"
#include "common/model/model_spec.h"

namespace eps {

// What a text of adapter_config.json says of adapters of low rank.
struct AdapterConfig {
  LoraConfig lora;           // without targets: which weights have an adapter its tensors say
  std::string base_model;    // base_model_name_or_path, whatever that names; "": nothing
  bool has_modules = false;  // modules_to_save names some, which its tensors are to have whole
};

// Errors: INVALID_ARGUMENT naming the member, the value found and what is allowed: no LoRA; one that computes, or
//         trains, anything else than scale (x A^T) B^T beside a weight (DoRA, ranks of their own, biases, ...); one
//         that was trained beside other weights than the base's own (PiSSA, ...); or a member that is not known to be
//         none of that
absl::StatusOr<AdapterConfig> ParseAdapterConfig(absl::string_view text);

// A folder as PEFT has it (adapter_folder.h), read for the model that it goes on top of. docs/formats.md, Adapters.
//
// Threads: safe once it is open
class AdapterReader {
 public:
  // Opens and checks everything but the values: the config, and that the tensors, F32, F16 or BF16, are an A and a B of
  // the config's rank for each of some products of `base`'s blocks, and maybe whole tensors of `base` that take the
  // place of its own (modules_to_save), and nothing else. `base` has no adapters; where it is no classifier, and the
  // adapter has what tells classes apart, model() is one.
  // Errors: NOT_FOUND · INVALID_ARGUMENT naming file and member, or tensor and byte, found and wanted
  static absl::StatusOr<std::unique_ptr<AdapterReader>> Open(const std::string& folder, const ModelConfig& base);

  // `base` with these adapters, and none but these: config.lora has targets that name them.
  const ModelSpec& model() const { return model_; }
  // Those of model() that the folder has: adapters, and tensors that take the place of the base's.
  bool has(const TensorSpec& tensor) const { return entries_.contains(tensor.name); }
  // AdapterConfig's.
  const std::string& base_model() const { return base_model_; }
  // AdapterForm's, of an adapter that this program has written; "": its file does not say.
  std::string base_values() const;
  // Fills `values` with elements [first_elem, first_elem + values.size()) of a tensor that it has.
  // Errors: INVALID_ARGUMENT a value is not finite, naming file, tensor, element and byte · the system's
  absl::Status ReadPart(const TensorSpec& tensor, int64_t first_elem, absl::Span<float> values) const;

 private:
  AdapterReader(std::string path, std::unique_ptr<SafetensorsReader> file, std::string base_model)
      : path_(std::move(path)), file_(std::move(file)), base_model_(std::move(base_model)) {}
  absl::Status FindTensors(const ModelConfig& base, const AdapterConfig& config);
  // That an entry is as the tensor of `model` that it is said to be.
  absl::Status CheckEntry(const SafetensorsEntry& entry, const TensorSpec& tensor, const ModelSpec& model) const;
  absl::StatusOr<std::vector<std::string>> TargetsOf(const std::map<std::string, const TensorSpec*>& known,
                                                     const std::set<std::string>& modules) const;
  std::string PlaceOf(const SafetensorsEntry& entry) const;

  const std::string path_;
  const std::unique_ptr<SafetensorsReader> file_;
  const std::string base_model_;
  ModelSpec model_;
  std::map<std::string, const SafetensorsEntry*> entries_;  // by TensorSpec::name
};

}  // namespace eps

#endif  // EPS_COMMON_FORMATS_ADAPTER_READER_H_
