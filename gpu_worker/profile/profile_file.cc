#include "gpu_worker/profile/profile_file.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/file_util.h"
#include "common/base/json_text.h"
#include "common/base/status_macros.h"
#include "common/numeric/quantized.h"
#include "nlohmann/json.hpp"

namespace eps::worker {
namespace {

using Json = nlohmann::ordered_json;

constexpr absl::string_view kFormat = "eps profile 2";
std::string Name(size_t activity) { return std::string(ActivityName(static_cast<Activity>(activity))); }

// What no machine is beyond, and no sum of which overflows.
constexpr double kSlowest = 1, kFastest = 1e18;  // bytes a second
constexpr double kLongest = 1e6;                 // seconds
constexpr double kMostElems = 0x1p53;            // a whole number still
constexpr auto kMostExperts = static_cast<double>(kMaxExperts);
constexpr double kWidest = 1 << 30;  // of each size of a shape: as RunSpecs have it
constexpr std::array<std::pair<const char*, double Profile::*>, 5> kSpeeds = {{
    {"gradient_bytes_per_second", &Profile::gradient_bytes_per_second},
    {"in_bytes_per_second", &Profile::in_bytes_per_second},
    {"out_bytes_per_second", &Profile::out_bytes_per_second},
    {"update_bytes_per_second", &Profile::update_bytes_per_second},
    {"network_bytes_per_second", &Profile::network_bytes_per_second},
}};
constexpr char kDiskSpeed[] = "disk_bytes_per_second";  // files from before there was any have none
constexpr std::array<std::pair<const char*, double Profile::*>, 2> kDelays = {{
    {"handover_seconds", &Profile::handover_seconds},
    {"step_seconds", &Profile::between_steps_seconds},  // between two steps: docs/planning.md
}};
constexpr std::array<std::pair<const char*, double LayerTimes::*>, 4> kTimes = {{
    {"forward_seconds", &LayerTimes::forward_seconds},
    {"recompute_seconds", &LayerTimes::recompute_seconds},
    {"backward_seconds", &LayerTimes::backward_seconds},
    {"expand_seconds", &LayerTimes::expand_seconds},
}};
// At least 1 in every layer's shape.
constexpr std::array<std::pair<const char*, int64_t LayerShape::*>, 8> kSizes = {{
    {"B", &LayerShape::B},
    {"T", &LayerShape::T},
    {"C", &LayerShape::C},
    {"H", &LayerShape::H},
    {"kv_heads", &LayerShape::kv_heads},
    {"D", &LayerShape::D},
    {"F", &LayerShape::F},
    {"V", &LayerShape::V},
}};
// 0: the layer has none.
constexpr std::array<std::pair<const char*, int64_t LayerShape::*>, 2> kOptionalSizes = {{
    {"classes", &LayerShape::num_classes},
    {"window", &LayerShape::window},
}};
// A member of a block's shape whose feed-forward part is computed in tiles.
constexpr char kFeedForwardTile[] = "feed_forward_tile";
// A member of a block's shape that has some.
constexpr char kQuantizedElems[] = "quantized_elems";
constexpr char kQuantizedFormat[] = "quantized_format";
// A member of a shape that has adapters.
constexpr char kLora[] = "lora";
constexpr std::array<std::pair<const char*, int64_t LoraShape::*>, 5> kLoraSizes = {{
    {"rank", &LoraShape::rank},
    {"in_columns", &LoraShape::in_columns},
    {"out_columns", &LoraShape::out_columns},
    {"down_columns", &LoraShape::down_columns},
    {"frozen_elems", &LoraShape::frozen_elems},
}};
// A member of a block's shape that has experts.
constexpr char kExperts[] = "experts";
constexpr std::array<std::pair<const char*, int64_t ExpertsShape::*>, 2> kExpertsSizes = {{
    {"num", &ExpertsShape::num},
    {"per_token", &ExpertsShape::per_token},
}};
constexpr std::array<std::pair<const char*, bool LayerShape::*>, 6> kTraits = {{
    {"causal", &LayerShape::is_causal},
    {"gated", &LayerShape::is_gated},
    {"rotary", &LayerShape::is_rotary},
    {"qk_norm", &LayerShape::has_qk_norm},
    {"dense_head", &LayerShape::has_dense_head},
    {"documents", &LayerShape::has_documents},
}};
constexpr std::array<std::pair<const char*, double LayerShape::*>, 2> kRates = {{
    {"attention_dropout", &LayerShape::attention_dropout},
    {"residual_dropout", &LayerShape::residual_dropout},
}};
constexpr std::array<std::pair<const char*, Dtype>, 3> kDtypes = {
    {{"fp32", Dtype::kF32}, {"bf16", Dtype::kBf16}, {"fp16", Dtype::kF16}}};

const char* NameOf(Dtype dtype) {
  for (const auto& [name, of] : kDtypes) {
    if (of == dtype) return name;
  }
  return "";
}

Json LayerToJson(const LayerTimes& times) {
  Json shape;
  for (const auto& [name, field] : kSizes) shape[name] = times.shape.*field;
  for (const auto& [name, field] : kOptionalSizes) shape[name] = times.shape.*field;
  for (const auto& [name, field] : kTraits) shape[name] = times.shape.*field;
  for (const auto& [name, field] : kRates) shape[name] = times.shape.*field;
  shape["wire"] = NameOf(times.shape.wire);
  shape["compute"] = NameOf(times.shape.compute);
  if (times.kind == LayerKind::kBlock && times.shape.is_tiled()) {
    shape[kFeedForwardTile] = times.shape.feed_forward_tile;
  }
  if (times.kind == LayerKind::kBlock && times.shape.quantized_elems > 0) {
    shape[kQuantizedElems] = times.shape.quantized_elems;
    shape[kQuantizedFormat] = std::string(NameOf(times.shape.quantized_format.value()));
  }
  if (times.kind == LayerKind::kBlock && times.shape.lora.rank > 0) {
    for (const auto& [name, field] : kLoraSizes) shape[kLora][name] = times.shape.lora.*field;
    shape[kLora]["dropout"] = times.shape.lora.dropout;
  }
  if (times.kind == LayerKind::kBlock && times.shape.experts.are_on()) {
    for (const auto& [name, field] : kExpertsSizes) shape[kExperts][name] = times.shape.experts.*field;
  }
  Json layer = {{"layer", std::string(LayerKindName(times.kind))}, {"shape", std::move(shape)}};
  for (const auto& [name, field] : kTimes) layer[name] = times.*field;
  return layer;
}

// Reads fields, and keeps the first error.
class Reader {
 public:
  explicit Reader(std::string where) : where_(std::move(where)) {}

  double Number(const Json& object, const char* name, double least, double most) {
    const Json* field = Find(object, name);
    if (field == nullptr) return least;
    if (!field->is_number() || !(field->get<double>() >= least && field->get<double>() <= most)) {
      Fail(name, field->dump(), absl::StrCat("a number from ", least, " to ", most));
      return least;
    }
    return field->get<double>();
  }
  int64_t Integer(const Json& object, const char* name, double least, double most) {
    const double value = Number(object, name, least, most);
    if (value != std::floor(value)) Fail(name, absl::StrCat(value), "a whole number");
    return static_cast<int64_t>(value);
  }
  bool Bool(const Json& object, const char* name) {
    const Json* field = Find(object, name);
    if (field == nullptr) return false;
    if (!field->is_boolean()) Fail(name, field->dump(), "true or false");
    return field->is_boolean() && field->get<bool>();
  }
  std::string String(const Json& object, const char* name) {
    const Json* field = Find(object, name);
    if (field == nullptr) return "";
    if (!field->is_string()) Fail(name, field->dump(), "a string");
    return field->is_string() ? field->get<std::string>() : "";
  }
  Dtype ReadDtype(const Json& object, const char* name) {
    const std::string text = String(object, name);
    for (const auto& [known, dtype] : kDtypes) {
      if (text == known) return dtype;
    }
    Fail(name, text, "fp32, bf16 or fp16");
    return Dtype::kF32;
  }
  LayerKind ReadLayerKind(const Json& object, const char* name) {
    const std::string text = String(object, name);
    for (const LayerKind kind : kLayerKinds) {
      if (text == LayerKindName(kind)) return kind;
    }
    Fail(name, text, "embedding, block or head");
    return LayerKind::kBlock;
  }
  QuantizedFormat ReadQuantizedFormat(const Json& object, const char* name) {
    const std::string text = String(object, name);
    for (const QuantizedFormat format : {QuantizedFormat::kMxInt8, QuantizedFormat::kNf4}) {
      if (text == NameOf(format)) return format;
    }
    Fail(name, text, "MXINT8 or NF4");
    return QuantizedFormat::kMxInt8;
  }
  const Json* Find(const Json& object, const char* name) {
    if (object.is_object() && object.contains(name)) return &object.at(name);
    Fail(name, "nothing", "there");
    return nullptr;
  }
  void Fail(const char* name, absl::string_view value, absl::string_view want) {
    if (status_.ok()) status_ = absl::InvalidArgumentError(absl::StrCat(where_, name, ": ", value, ", must be ", want));
  }
  const absl::Status& status() const { return status_; }

 private:
  const std::string where_;
  absl::Status status_;
};

absl::StatusOr<LayerTimes> LayerFromJson(const Json& json, size_t index) {
  Reader reader(absl::StrCat("layers[", index, "]."));
  LayerTimes times;
  times.kind = reader.ReadLayerKind(json, "layer");
  for (const auto& [name, field] : kTimes) times.*field = reader.Number(json, name, 0, kLongest);
  const Json* shape = reader.Find(json, "shape");
  EPS_RETURN_IF_ERROR(reader.status());
  Reader of(absl::StrCat("layers[", index, "].shape."));
  for (const auto& [name, field] : kSizes) times.shape.*field = of.Integer(*shape, name, 1, kWidest);
  for (const auto& [name, field] : kOptionalSizes) times.shape.*field = of.Integer(*shape, name, 0, kWidest);
  for (const auto& [name, field] : kTraits) times.shape.*field = of.Bool(*shape, name);
  for (const auto& [name, field] : kRates) times.shape.*field = of.Number(*shape, name, 0, 1);
  times.shape.wire = of.ReadDtype(*shape, "wire");
  times.shape.compute = of.ReadDtype(*shape, "compute");
  if (shape->contains(kQuantizedElems)) {
    times.shape.quantized_elems = of.Integer(*shape, kQuantizedElems, 0, kMostElems);
    // Profiles of before there was another format do not say which.
    times.shape.quantized_format =
        shape->contains(kQuantizedFormat) ? of.ReadQuantizedFormat(*shape, kQuantizedFormat) : QuantizedFormat::kMxInt8;
  }
  EPS_RETURN_IF_ERROR(of.status());
  if (shape->contains(kExperts)) {
    Reader of_experts(absl::StrCat("layers[", index, "].shape.", kExperts, "."));
    for (const auto& [name, field] : kExpertsSizes) {
      times.shape.experts.*field = of_experts.Integer(shape->at(kExperts), name, 1, kMostExperts);
    }
    const ExpertsShape& experts = times.shape.experts;
    if (experts.per_token > experts.num) {
      of_experts.Fail("per_token", absl::StrCat(experts.per_token), absl::StrCat("at most num, ", experts.num));
    }
    EPS_RETURN_IF_ERROR(of_experts.status());
  }
  if (shape->contains(kFeedForwardTile)) {
    times.shape.SetFeedForwardTile(of.Integer(*shape, kFeedForwardTile, 1, kWidest));
    EPS_RETURN_IF_ERROR(of.status());
  }
  if (!shape->contains(kLora)) return times;
  Reader of_lora(absl::StrCat("layers[", index, "].shape.", kLora, "."));
  for (const auto& [name, field] : kLoraSizes) {
    times.shape.lora.*field = of_lora.Integer(shape->at(kLora), name, 0, kMostElems);
  }
  times.shape.lora.dropout = of_lora.Number(shape->at(kLora), "dropout", 0, 1);
  EPS_RETURN_IF_ERROR(of_lora.status());
  return times;
}

}  // namespace

std::string ProfileToJson(const Profile& profile) {
  Json json = {{"format", kFormat},
               {"hardware", profile.hardware},
               {"device", profile.device},
               {"threads", profile.threads},
               {"measured", profile.measured}};
  for (const auto& [name, field] : kSpeeds) json[name] = profile.*field;
  json[kDiskSpeed] = profile.disk_bytes_per_second;
  for (const auto& [name, field] : kDelays) json[name] = profile.*field;
  Json sharing;
  for (size_t a = 0; a < kNumActivities; ++a) {
    for (size_t b = 0; b < kNumActivities; ++b) {
      if (a != b) sharing[Name(a)]["beside_" + Name(b)] = profile.sharing[a][b];
    }
  }
  json["sharing"] = std::move(sharing);
  json["layers"] = Json::array();
  for (const LayerTimes& times : profile.layers) json["layers"].push_back(LayerToJson(times));
  return json.dump(2) + "\n";
}

absl::StatusOr<Profile> ProfileFromJson(const std::string& text) {
  constexpr int kMaxDepth = 8;  // a list of layers with their shapes has four
  const absl::StatusOr<nlohmann::json> parsed = ParseJson(text, kMaxDepth);
  if (!parsed.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(parsed.status().message(), "; `eps profile` makes a profile"));
  }
  const Json json = *parsed;
  Reader reader("");
  const std::string format = reader.String(json, "format");
  if (format != kFormat) {
    reader.Fail("format", absl::StrCat("\"", format, "\""),
                absl::StrCat("\"", kFormat, "\": measure anew, with eps profile"));
  }
  Profile profile;
  profile.hardware = reader.String(json, "hardware");
  profile.device = reader.String(json, "device");
  profile.measured = reader.String(json, "measured");
  profile.threads = static_cast<int>(reader.Integer(json, "threads", 1, 1024));
  for (const auto& [name, field] : kSpeeds) profile.*field = reader.Number(json, name, kSlowest, kFastest);
  if (json.is_object() && json.contains(kDiskSpeed)) {
    profile.disk_bytes_per_second = reader.Number(json, kDiskSpeed, kSlowest, kFastest);
  }
  for (const auto& [name, field] : kDelays) profile.*field = reader.Number(json, name, 0, kLongest);
  const Json* sharing = reader.Find(json, "sharing");
  const Json* layers = reader.Find(json, "layers");
  EPS_RETURN_IF_ERROR(reader.status());
  for (size_t a = 0; a < kNumActivities; ++a) {
    Reader rows("sharing."), of("sharing." + Name(a) + ".");
    const Json* row = rows.Find(*sharing, Name(a).c_str());
    EPS_RETURN_IF_ERROR(rows.status());
    for (size_t b = 0; b < kNumActivities; ++b) {
      const std::string name = "beside_" + Name(b);
      if (a != b) profile.sharing[a][b] = of.Number(*row, name.c_str(), 1e-3, 1);
    }
    EPS_RETURN_IF_ERROR(of.status());
  }
  if (!layers->is_array()) return absl::InvalidArgumentError("layers: must be an array");
  for (size_t i = 0; i < layers->size(); ++i) {
    EPS_ASSIGN_OR_RETURN(LayerTimes times, LayerFromJson((*layers)[i], i));
    profile.layers.push_back(std::move(times));
  }
  for (const LayerKind kind : kLayerKinds) {
    const bool is_there = std::any_of(profile.layers.begin(), profile.layers.end(), [&](const LayerTimes& times) {
      return times.kind == kind && times.forward_seconds > 0;
    });
    if (!is_there) {
      return absl::InvalidArgumentError(
          absl::StrCat("layers: no ", LayerKindName(kind), " with forward_seconds above 0, must be one at least"));
    }
  }
  return profile;
}

absl::StatusOr<Profile> ReadProfile(const std::string& path) {
  EPS_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  absl::StatusOr<Profile> profile = ProfileFromJson(text);
  if (!profile.ok()) return Annotate(profile.status(), path);
  return profile;
}

absl::Status WriteProfile(const std::string& path, const Profile& profile) {
  return WriteFileAtomically(path, ProfileToJson(profile));
}

}  // namespace eps::worker
