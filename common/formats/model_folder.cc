#include "common/formats/model_folder.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <set>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/file_util.h"
#include "common/base/status_macros.h"
#include "common/model/families.h"
#include "common/model/hf_config.h"
#include "common/model/tensor_roles.h"

namespace eps {
namespace {

constexpr int64_t kMaxIndexBytes = int64_t{1} << 26;  // 64 MiB: half a million tensors

// `name` as the file has it. A suffix begins with a dot; files that leave the prefix out may have nothing before it.
bool IsIgnored(const Family& family, absl::string_view name) {
  return std::any_of(family.ignored_suffixes.begin(), family.ignored_suffixes.end(), [&](absl::string_view suffix) {
    return absl::EndsWith(name, suffix) || name == suffix.substr(1);
  });
}

// The first magnitude, as bits, that is no finite number of `dtype` when it is rounded to it (common/numeric).
uint32_t TooLargeFrom(Dtype dtype) {
  switch (dtype) {
    case Dtype::kF16:
      return 0x477FF000u;  // 65520: halfway from the largest binary16 to the next power
    case Dtype::kBf16:
      return 0x7F7F8000u;  // likewise: 255.5 * 2^120
    case Dtype::kF32:
      return 0x7F800000u;  // infinity; NaNs lie above it
  }
  return 0;
}

uint32_t Magnitude(float value) { return std::bit_cast<uint32_t>(value) & 0x7FFFFFFFu; }

// The index of the first value from `limit` on, values.size() if there is none. Every weight of a model comes by, so that
// the usual case is one loop without a branch.
size_t FindMagnitude(absl::Span<const float> values, uint32_t limit) {
  uint32_t largest = 0;
  for (const float value : values) largest = std::max(largest, Magnitude(value));
  if (largest < limit) return values.size();
  const auto found =
      std::find_if(values.begin(), values.end(), [limit](float value) { return Magnitude(value) >= limit; });
  return static_cast<size_t>(found - values.begin());
}

std::string WhyUnusable(float value, Dtype wire) {
  if (!std::isfinite(value)) {
    return "must be finite: this is of a run that diverged, or of a damaged file; take an earlier checkpoint, or get "
           "the folder anew";
  }
  return wire == Dtype::kF16 ? "is too large for precision.wire: FP16, whose largest number is 65504; set "
                               "precision.wire: BF16 or FP32"
                             : "is too large for precision.wire: BF16, whose largest number is 3.3895e38; set "
                               "precision.wire: FP32";
}

}  // namespace

absl::StatusOr<std::unique_ptr<ModelFolder>> ModelFolder::Open(const std::string& folder) {
  return OpenWith(folder, nullptr);
}

absl::StatusOr<std::unique_ptr<ModelFolder>> ModelFolder::Open(const std::string& folder, const ModelConfig& wanted) {
  return OpenWith(folder, &wanted);
}

ModelFolder::Head ModelFolder::HeadFor(const ModelConfig& found, const ModelConfig& wanted) {
  if (!wanted.is_classifier()) return Head::kOwn;
  if (!found.is_classifier()) return Head::kMayBeNew;
  const bool is_renamed = !found.class_names.empty() && found.class_names != wanted.class_names;
  return is_renamed || found.num_classes != wanted.num_classes ? Head::kReplaced : Head::kOwn;
}

absl::StatusOr<std::unique_ptr<ModelFolder>> ModelFolder::OpenWith(const std::string& folder,
                                                                   const ModelConfig* wanted) {
  const std::string config_path = absl::StrCat(folder, "/config.json");
  EPS_ASSIGN_OR_RETURN(const std::string config_text, ReadFile(config_path));
  absl::StatusOr<ModelConfig> config = ModelConfigFromJson(config_text);
  if (!config.ok()) return Annotate(config.status(), config_path);
  const Head head = wanted == nullptr ? Head::kOwn : HeadFor(*config, *wanted);
  if (wanted != nullptr && wanted->is_classifier()) {
    config->num_classes = wanted->num_classes;
    config->class_names = wanted->class_names;
  }
  auto result = std::unique_ptr<ModelFolder>(new ModelFolder);
  result->folder_ = folder;
  EPS_ASSIGN_OR_RETURN(result->model_, BuildModel(*config));
  EPS_RETURN_IF_ERROR(result->OpenFiles());
  if (head == Head::kReplaced) result->ForgetClasses();
  EPS_RETURN_IF_ERROR(result->FindTensors(head));
  EPS_RETURN_IF_ERROR(result->CheckNoOther());
  EPS_RETURN_IF_ERROR(result->CheckHead());
  return result;
}

const Family& ModelFolder::family() const { return FamilyOf(model_.config.family); }

absl::Status ModelFolder::OpenFiles() {
  const std::string index_path = absl::StrCat(folder_, "/model.safetensors.index.json");
  const std::string whole_path = absl::StrCat(folder_, "/model.safetensors");
  std::error_code ignored;  // what cannot be looked at cannot be opened either: opening says why
  if (std::filesystem::exists(index_path, ignored)) return OpenShards(index_path);
  if (std::filesystem::exists(whole_path, ignored)) return OpenFile(whole_path);
  for (const char* other : {"pytorch_model.bin", "pytorch_model.bin.index.json"}) {  // whole, or in shards
    if (!std::filesystem::exists(absl::StrCat(folder_, "/", other), ignored)) continue;
    return absl::NotFoundError(absl::StrCat(whole_path, ": not there; ", other,
                                            " is not read: save the model as safetensors (save_pretrained)"));
  }
  return OpenFile(whole_path);
}

absl::Status ModelFolder::OpenShards(const std::string& index_path) {
  EPS_ASSIGN_OR_RETURN(const std::string text, ReadFile(index_path, kMaxIndexBytes));
  const absl::StatusOr<ShardIndex> index = ParseShardIndex(text);
  if (!index.ok()) return Annotate(index.status(), index_path);
  std::set<std::string> names;
  for (const auto& [tensor, file] : *index) names.insert(file);
  const std::string whole_path = absl::StrCat(folder_, "/model.safetensors");
  std::error_code ignored;
  // Other programs take the one or the other: nobody could say which weights were meant.
  if (!names.contains("model.safetensors") && std::filesystem::exists(whole_path, ignored)) {
    return absl::InvalidArgumentError(absl::StrCat(index_path, ": names shards, and ", whole_path,
                                                   " is there as well: remove what is not the model"));
  }
  for (const std::string& name : names) {
    EPS_RETURN_IF_ERROR_WITH(OpenFile(absl::StrCat(folder_, "/", name)), index_path);
  }
  return CheckIndex(index_path, *index);
}

absl::Status ModelFolder::OpenFile(const std::string& path) {
  EPS_ASSIGN_OR_RETURN(std::unique_ptr<SafetensorsReader> reader, SafetensorsReader::Open(path));
  const File* file = files_.emplace_back(std::make_unique<File>(File{path, std::move(reader)})).get();
  for (const SafetensorsEntry& entry : file->reader->entries()) {
    const std::string name = OwnName(entry.name);
    const auto [there, is_new] = stored_.emplace(name, Place{file, &entry});
    if (is_new) continue;
    return absl::InvalidArgumentError(absl::StrCat(path, ": tensor ", entry.name, " at byte ", entry.offset_bytes,
                                                   " is there twice, also as ", there->second.entry->name, " in ",
                                                   there->second.file->path));
  }
  return absl::OkStatus();
}

absl::Status ModelFolder::CheckIndex(const std::string& index_path, const ShardIndex& index) const {
  std::set<std::string> found;  // as the files have them
  for (const auto& [stripped, place] : stored_) {
    const std::string& name = place.entry->name;
    found.insert(name);
    const auto placed = index.find(name);
    if (placed == index.end() && IsIgnored(family(), name)) continue;
    if (placed != index.end() && place.file->path == absl::StrCat(folder_, "/", placed->second)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(place.file->path, ": tensor ", name, " at byte ", place.entry->offset_bytes, ": ", index_path,
                     placed == index.end() ? " does not list it" : absl::StrCat(" places it in ", placed->second)));
  }
  for (const auto& [name, file] : index) {
    if (found.contains(name) || IsIgnored(family(), name)) continue;
    // A tied head is often dropped from the files alone.
    if (name == family().tied_head_name && TiedTable(model_) != nullptr) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(index_path, ": places tensor ", name, " in ", file, ", which does not have it"));
  }
  return absl::OkStatus();
}

std::string ModelFolder::OwnName(absl::string_view name) const {
  name = absl::StripPrefix(name, family().name_prefix);
  for (const auto& [older, now] : family().older_suffixes) {
    if (absl::ConsumeSuffix(&name, older)) return absl::StrCat(name, now);
  }
  return std::string(name);
}

void ModelFolder::ForgetClasses() {
  for (const BlobSpec& blob : model_.blobs) {
    for (const TensorSpec& tensor : blob.tensors) {
      if (IsHeadOutput(tensor.role)) stored_.erase(OwnName(tensor.name));
    }
  }
}

absl::Status ModelFolder::FindTensors(Head head) {
  bool has_dense = false, has_output = false;  // any tensor of theirs
  for (const BlobSpec& blob : model_.blobs) {
    for (const TensorSpec& tensor : blob.tensors) {
      if (!stored_.contains(OwnName(tensor.name))) continue;
      has_dense = has_dense || IsHeadDense(tensor.role);
      has_output = has_output || IsHeadOutput(tensor.role);
    }
  }
  const auto is_new = [&](TensorRole role) {
    return head != Head::kOwn && ((IsHeadDense(role) && !has_dense) || (IsHeadOutput(role) && !has_output));
  };
  for (const BlobSpec& blob : model_.blobs) {
    for (const TensorSpec& tensor : blob.tensors) {
      const auto found = stored_.find(OwnName(tensor.name));
      if (found == stored_.end() && is_new(tensor.role)) continue;
      if (found == stored_.end()) {
        return absl::InvalidArgumentError(absl::StrCat(
            files_.front()->path, files_.size() > 1 ? " and other shards" : "", ": tensor ", tensor.name, " is missing",
            IsHeadDense(tensor.role) && !model_.config.is_classifier()
                ? "; a model without a head (BertModel) begins a "
                  "classifier: give model.classes"
                : ""));
      }
      const SafetensorsEntry& entry = *found->second.entry;
      const std::string where =
          absl::StrCat(found->second.file->path, ": tensor ", entry.name, " at byte ", entry.offset_bytes);
      if (entry.shape != tensor.shape) {
        return absl::InvalidArgumentError(absl::StrCat(where, " has the shape ", ShapeText(entry.shape),
                                                       ", config.json asks for ", ShapeText(tensor.shape)));
      }
      if (entry.dtype != "F32" && entry.dtype != "F16" && entry.dtype != "BF16") {
        return absl::InvalidArgumentError(absl::StrCat(where, " is ", entry.dtype, ", not F32, F16 or BF16"));
      }
      places_[tensor.name] = found->second;
    }
  }
  return absl::OkStatus();
}

absl::Status ModelFolder::CheckNoOther() const {
  std::set<std::string> used;
  for (const auto& [name, place] : places_) used.insert(place.entry->name);
  const Place* first = nullptr;
  int64_t others = 0;
  for (const auto& [stripped, place] : stored_) {
    const std::string& name = place.entry->name;
    if (used.contains(name) || IsIgnored(family(), name)) continue;
    if (name == family().tied_head_name && TiedTable(model_) != nullptr) continue;  // CheckHead looks at it
    if (first == nullptr) first = &place;
    ++others;
  }
  if (first == nullptr) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(first->file->path, ": tensor ", first->entry->name, " at byte ", first->entry->offset_bytes,
                   others > 1 ? absl::StrCat(" and ", others - 1, " more are") : " is",
                   " no part of the model that config.json describes: correct it, or save the model without them"));
}

absl::Status ModelFolder::CheckHead() const {
  const auto head = stored_.find(OwnName(family().tied_head_name));
  const TensorSpec* table = TiedTable(model_);
  if (head == stored_.end() || table == nullptr) return absl::OkStatus();
  const Place& embedding = places_.at(table->name);
  const auto head_bytes = head->second.file->reader->Data(*head->second.entry);
  const auto embedding_bytes = embedding.file->reader->Data(*embedding.entry);
  const bool tied = head->second.entry->dtype == embedding.entry->dtype &&
                    head->second.entry->shape == embedding.entry->shape &&
                    std::equal(head_bytes.begin(), head_bytes.end(), embedding_bytes.begin(), embedding_bytes.end());
  head->second.file->reader->Release(*head->second.entry);
  embedding.file->reader->Release(*embedding.entry);
  if (tied) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(head->second.file->path, ": tensor ", head->second.entry->name,
                                                 " at byte ", head->second.entry->offset_bytes,
                                                 " is not the token embedding, to which config.json ties it: set "
                                                 "tie_word_embeddings to false if the family allows "
                                                 "it, or save the model without it"));
}

std::vector<ModelFolder::StoredTensor> ModelFolder::StoredTensors() const {
  std::vector<StoredTensor> tensors;
  for (const auto& [name, place] : stored_) {
    tensors.push_back({.name = place.entry->name,
                       .file = std::filesystem::path(place.file->path).filename().string(),
                       .num_bytes = place.entry->num_bytes});
  }
  return tensors;
}

int64_t ModelFolder::tensor_bytes() const {
  int64_t num_bytes = 0;
  for (const auto& [name, place] : places_) num_bytes += place.entry->num_bytes;
  return num_bytes;
}

bool ModelFolder::IsAllBf16() const {
  return std::all_of(places_.begin(), places_.end(),
                     [](const auto& named) { return named.second.entry->dtype == "BF16"; });
}

absl::Status ModelFolder::Read(const TensorSpec& tensor, absl::Span<float> values) const {
  const Place& place = places_.at(tensor.name);
  return place.file->reader->ReadFloats(*place.entry, values);
}

absl::Status ModelFolder::ReadPart(const TensorSpec& tensor, int64_t first_elem, absl::Span<float> values) const {
  const Place& place = places_.at(tensor.name);
  return place.file->reader->ReadFloatsAt(*place.entry, first_elem, values);
}

absl::Status ModelFolder::ReadChecked(const TensorSpec& tensor, int64_t first_elem, absl::Span<float> values,
                                      Dtype wire) const {
  EPS_RETURN_IF_ERROR(ReadPart(tensor, first_elem, values));
  return CheckValues(tensor, first_elem, values, wire);
}

absl::Status ModelFolder::CheckValues(const TensorSpec& tensor, int64_t first_elem, absl::Span<const float> values,
                                      Dtype wire) const {
  const size_t at = FindMagnitude(values, TooLargeFrom(wire));
  if (at == values.size()) return absl::OkStatus();
  const Place& place = places_.at(tensor.name);
  const int64_t elem = first_elem + static_cast<int64_t>(at);
  const int64_t elem_bytes = place.entry->num_bytes / tensor.num_elems();
  return absl::InvalidArgumentError(absl::StrCat(place.file->path, ": tensor ", place.entry->name, ", element ", elem,
                                                 " at byte ", place.entry->offset_bytes + elem * elem_bytes, ": ",
                                                 values[at], ", ", WhyUnusable(values[at], wire)));
}

}  // namespace eps
