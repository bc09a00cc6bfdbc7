#ifndef EPS_COMMON_FORMATS_MODEL_FOLDER_H_
#define EPS_COMMON_FORMATS_MODEL_FOLDER_H_

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/formats/safetensors.h"
#include "common/formats/shard_index.h"
#include "common/model/families.h"
#include "common/model/model_spec.h"
#include "common/tensor/dtype.h"

namespace eps {

// A folder of Hugging Face's form: config.json of any of our families, and model.safetensors, whole or sharded with
// model.safetensors.index.json. Tensors are found with or without the family's prefix ("transformer.", "model."), and by
// older names. A tensor that the model does not have is refused, but for leftovers that nobody needs
// (Family::ignored_suffixes), and for a head (Family::tied_head_name) that config.json ties, if it is the same bytes as the
// token embedding.
//
// Threads: safe once it is open
class ModelFolder {
 public:
  // Opens and checks everything: config, every tensor of the model there and no other, of its shape, F32, F16 or BF16,
  // in the file where an index places it.
  // Errors: NOT_FOUND · INVALID_ARGUMENT naming file, tensor, and what was found and wanted
  static absl::StatusOr<std::unique_ptr<ModelFolder>> Open(const std::string& folder);
  // The same for a run, whose model may be a classifier of other classes than config.json says. What tells those apart
  // is new then; and where config.json is not of a classifier, all that a head needs and the files do not have.
  static absl::StatusOr<std::unique_ptr<ModelFolder>> Open(const std::string& folder, const ModelConfig& wanted);

  const ModelSpec& model() const { return model_; }
  const std::string& folder() const { return folder_; }
  // A tensor as it lies in the files.
  struct StoredTensor {
    std::string name, file;  // as the file calls it, and the file's own name in folder()
    int64_t num_bytes = 0;
  };
  // All of them, what is none of the model's too.
  std::vector<StoredTensor> StoredTensors() const;
  // Whether the tensor, one of model()'s, is not in the files: it cannot be read, but only initialised.
  bool is_new(const TensorSpec& tensor) const { return !places_.contains(tensor.name); }
  // What the file calls the tensor, one of model()'s, and not new.
  const std::string& NameInFile(const TensorSpec& tensor) const { return places_.at(tensor.name).entry->name; }
  // Of the model's tensors, as they lie in the files.
  int64_t tensor_bytes() const;
  bool IsAllBf16() const;
  // Fills `values` (the tensor's num_elems) as fp32. `tensor` is one of model()'s, and not new.
  absl::Status Read(const TensorSpec& tensor, absl::Span<float> values) const;
  // As Read, of elements [first_elem, first_elem + values.size()) alone.
  absl::Status ReadPart(const TensorSpec& tensor, int64_t first_elem, absl::Span<float> values) const;
  // That every one of `values`, which ReadPart gave, can be computed with: it is finite, and stays so when it is rounded
  // to `wire` (precision.wire).
  // Cost: one pass over `values`
  // Errors: INVALID_ARGUMENT naming file, tensor, element, byte and value, and what to do
  absl::Status CheckValues(const TensorSpec& tensor, int64_t first_elem, absl::Span<const float> values,
                           Dtype wire) const;
  // ReadPart, and CheckValues of what it gave.
  absl::Status ReadChecked(const TensorSpec& tensor, int64_t first_elem, absl::Span<float> values,
                           Dtype wire = Dtype::kF32) const;

 private:
  struct File {
    std::string path;
    std::unique_ptr<SafetensorsReader> reader;
  };
  struct Place {
    const File* file;
    const SafetensorsEntry* entry;
  };
  enum class Head {
    kOwn,       // all of it is in the files
    kMayBeNew,  // each part of it is there as a whole, or new
    kReplaced,  // kMayBeNew, but that what tells classes apart is new in any case
  };
  static Head HeadFor(const ModelConfig& found, const ModelConfig& wanted);
  static absl::StatusOr<std::unique_ptr<ModelFolder>> OpenWith(const std::string& folder, const ModelConfig* wanted);

  ModelFolder() = default;
  const Family& family() const;
  absl::Status OpenFiles();
  absl::Status OpenShards(const std::string& index_path);
  absl::Status OpenFile(const std::string& path);
  // That what lies in the files, and what the index says of it, is the same.
  absl::Status CheckIndex(const std::string& index_path, const ShardIndex& index) const;
  // The tensors of the files' own classes are none of the model's.
  void ForgetClasses();
  absl::Status FindTensors(Head head);
  std::string OwnName(absl::string_view name) const;
  absl::Status CheckNoOther() const;
  absl::Status CheckHead() const;

  ModelSpec model_;
  std::string folder_;
  std::vector<std::unique_ptr<File>> files_;
  std::map<std::string, Place> stored_;  // by the name in the file, less the family's prefix
  std::map<std::string, Place> places_;  // by TensorSpec::name
};

}  // namespace eps

#endif  // EPS_COMMON_FORMATS_MODEL_FOLDER_H_
