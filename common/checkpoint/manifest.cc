#include "common/checkpoint/manifest.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <limits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/base/json_text.h"
#include "common/base/sha256.h"
#include "common/base/status_macros.h"
#include "common/choices/choices.h"
#include "common/schedule/loss_scale.h"
#include "nlohmann/json.hpp"

namespace eps {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;  // for writing: members in our order, but slow to look up

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr int64_t kMaxInteger = std::numeric_limits<int64_t>::max();
constexpr std::array<absl::string_view, 12> kMembers = {
    "format",        "step",          "run",       "files",  "data_position",  "tokens",
    "skipped_steps", "train_seconds", "last_norm", "losses", "gradient_norms", "sha256"};
constexpr char kDataMember[] = "data";                   // from format 3 on
constexpr char kChoicesMember[] = "choices";             // from format 4 on
constexpr char kLossScaleMember[] = "loss_scale";        // from format 5 on
constexpr char kUpdatesMember[] = "updates";             // from format 6 on
constexpr char kDeviceModelsMember[] = "device_models";  // from format 7 on
constexpr int kMaxDepth = 3;                             // files.<name>.<member>
constexpr char kCrcMember[] = "crc32_per_mib";
constexpr size_t kCrcDigits = 8;

// ---- The manifest's own checksum --------------------------------------------------------------------------

constexpr absl::string_view kSumStart = "  \"sha256\": \"";
constexpr absl::string_view kSumEnd = "\"\n}\n";
constexpr size_t kDigits = 64;
constexpr size_t kSumBytes = kSumStart.size() + kDigits + kSumEnd.size();

std::string HashText(absl::string_view text) {
  return Sha256Hex({reinterpret_cast<const std::byte*>(text.data()), text.size()});
}

// ---- Writing ----------------------------------------------------------------------------------------------

ordered_json LossToJson(double loss) {
  if (std::isnan(loss)) return "NaN";
  if (std::isinf(loss)) return loss > 0 ? "Infinity" : "-Infinity";
  return loss;
}

ordered_json FilesToJson(const std::map<std::string, FileSum>& files) {
  ordered_json object = ordered_json::object();
  for (const auto& [name, sum] : files) {
    std::string crcs;
    for (const uint32_t crc : sum.part_crcs) absl::StrAppend(&crcs, absl::Hex(crc, absl::kZeroPad8));
    object[name] = {{"bytes", sum.num_bytes}, {"sha256", sum.sha256}, {kCrcMember, crcs}};
  }
  return object;
}

// ---- Reading ----------------------------------------------------------------------------------------------

absl::Status Wrong(absl::string_view field, absl::string_view found, absl::string_view wanted) {
  return absl::DataLossError(absl::StrCat(field, ": found ", found, ", must be ", wanted));
}

// A value as an error shows it: short, whatever it is.
std::string Show(const json& value) {
  if (value.is_array()) return absl::StrCat("an array of ", value.size());
  if (value.is_object()) return absl::StrCat("an object of ", value.size());
  const std::string text = value.dump(-1, ' ', /*ensure_ascii=*/true, json::error_handler_t::replace);
  return text.size() <= 60 ? text : absl::StrCat(text.substr(0, 60), "...");
}

absl::Status CheckMembers(const json& document, int64_t format) {
  std::vector<absl::string_view> members(kMembers.begin(), kMembers.end());
  if (format >= 3) members.push_back(kDataMember);
  if (format >= 4) members.push_back(kChoicesMember);
  if (format >= 5) members.push_back(kLossScaleMember);
  if (format >= 6) members.push_back(kUpdatesMember);
  if (format >= 7) members.push_back(kDeviceModelsMember);
  for (const absl::string_view name : members) {
    if (!document.contains(std::string(name))) return Wrong(name, "nothing", "there");
  }
  for (const auto& [name, value] : document.items()) {
    if (std::find(members.begin(), members.end(), name) == members.end()) {
      return absl::DataLossError(absl::StrCat(Show(name), " is no field of format ", format));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<int64_t> ReadInteger(const json& value, absl::string_view field, int64_t min, int64_t max) {
  // In this library a negative number is signed, another one unsigned, and one beyond 64 bits a double.
  const bool fits =
      value.is_number_unsigned() ? value.get<uint64_t>() <= uint64_t{kMaxInteger} : value.is_number_integer();
  if (!fits || value.get<int64_t>() < min || value.get<int64_t>() > max) {
    return Wrong(field, Show(value),
                 min == max ? absl::StrCat(min) : absl::StrCat("a whole number from ", min, " to ", max));
  }
  return value.get<int64_t>();
}

absl::StatusOr<double> ReadDouble(const json& value, absl::string_view field, double min) {
  if (!value.is_number() || !(value.get<double>() >= min && value.get<double>() < kInfinity)) {
    return Wrong(field, Show(value), absl::StrCat("a finite number, at least ", min));
  }
  return value.get<double>();
}

absl::StatusOr<double> ReadLoss(const json& value, absl::string_view field) {
  if (value == "NaN") return std::numeric_limits<double>::quiet_NaN();
  if (value == "Infinity") return kInfinity;
  if (value == "-Infinity") return -kInfinity;
  if (!value.is_number()) return Wrong(field, Show(value), "a number, \"NaN\", \"Infinity\" or \"-Infinity\"");
  return value.get<double>();
}

// -1: not computed.
absl::StatusOr<double> ReadNorm(const json& value, absl::string_view field) {
  if (value.is_number() && value.get<double>() == -1) return -1;
  return ReadDouble(value, field, 0);
}

// One number per step done.
template <typename Reader>
absl::StatusOr<std::vector<double>> ReadPerStep(const json& value, absl::string_view field, int64_t steps,
                                                const Reader& reader) {
  if (!value.is_array() || static_cast<int64_t>(value.size()) != steps) {
    return Wrong(field, Show(value), absl::StrCat("an array of ", steps, ", one for each step"));
  }
  std::vector<double> numbers;
  numbers.reserve(value.size());
  for (const json& element : value) {
    EPS_ASSIGN_OR_RETURN(const double number, reader(element, absl::StrCat(field, "[", numbers.size(), "]")));
    numbers.push_back(number);
  }
  return numbers;
}

bool IsHex(const json& value, size_t digits) {
  if (!value.is_string()) return false;
  const std::string& text = value.get_ref<const std::string&>();
  return text.size() == digits && text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

absl::StatusOr<std::vector<uint32_t>> ReadPartCrcs(const json& value, absl::string_view field, int64_t num_bytes) {
  const auto parts = static_cast<size_t>(NumParts(num_bytes));
  if (!IsHex(value, parts * kCrcDigits)) {
    return Wrong(field, Show(value),
                 absl::StrCat(parts, " times ", kCrcDigits, " lower-case hexadecimal digits, for each MiB of ",
                              num_bytes, " bytes"));
  }
  const absl::string_view text = value.get_ref<const std::string&>();
  std::vector<uint32_t> crcs(parts);
  for (size_t i = 0; i < parts; ++i) {
    EPS_CHECK(absl::SimpleHexAtoi(text.substr(i * kCrcDigits, kCrcDigits), &crcs[i]));
  }
  return crcs;
}

absl::StatusOr<FileSum> ReadFileSum(const json& value, const std::string& field, int64_t format) {
  const bool has_parts = format >= 2;
  if (!value.is_object() || value.size() != (has_parts ? 3 : 2) || !value.contains("bytes") ||
      !value.contains("sha256") || (has_parts && !value.contains(kCrcMember))) {
    return Wrong(
        field, Show(value),
        has_parts ? "an object with bytes, sha256 and crc32_per_mib alone" : "an object with bytes and sha256 alone");
  }
  FileSum sum;
  EPS_ASSIGN_OR_RETURN(sum.num_bytes, ReadInteger(value["bytes"], field + ".bytes", 1, kMaxInteger));
  if (!IsHex(value["sha256"], kDigits)) {
    return Wrong(field + ".sha256", Show(value["sha256"]), "64 lower-case hexadecimal digits");
  }
  sum.sha256 = value["sha256"].get<std::string>();
  if (has_parts) {
    EPS_ASSIGN_OR_RETURN(sum.part_crcs, ReadPartCrcs(value[kCrcMember], field + "." + kCrcMember, sum.num_bytes));
  }
  return sum;
}

absl::StatusOr<std::map<std::string, FileSum>> ReadFiles(const json& value, int64_t format) {
  if (!value.is_object()) return Wrong("files", Show(value), "an object");
  const bool has_frozen = format > kFormatOfOneFile;
  const auto names = has_frozen ? absl::Span<const absl::string_view>(kSummedFilesWithFrozen) : kSummedFiles;
  std::map<std::string, FileSum> files;
  for (const auto& [name, sum] : value.items()) {
    if (std::find(names.begin(), names.end(), name) == names.end()) {
      return Wrong("files", absl::StrCat("the name ", Show(name)), absl::StrJoin(names, ", "));
    }
    EPS_ASSIGN_OR_RETURN(files[name], ReadFileSum(sum, absl::StrCat("files.", name), format));
  }
  for (const absl::string_view name : names) {
    if (!files.contains(std::string(name))) return Wrong(absl::StrCat("files.", name), "nothing", "there");
  }
  return files;
}

absl::StatusOr<DataMark> ReadDataMark(const json& value) {
  if (!value.is_object() || value.size() != 2 || !value.contains("bytes") || !value.contains("sha256")) {
    return Wrong(kDataMember, Show(value), "an object with bytes and sha256 alone");
  }
  DataMark mark;
  EPS_ASSIGN_OR_RETURN(mark.num_bytes, ReadInteger(value["bytes"], "data.bytes", 0, kMaxInteger));
  if (value["sha256"] != "" && !IsHex(value["sha256"], kDigits)) {
    return Wrong("data.sha256", Show(value["sha256"]), "64 lower-case hexadecimal digits, or none");
  }
  mark.sha256 = value["sha256"].get<std::string>();
  return mark;
}

absl::StatusOr<Choices> ReadDeviceChoices(const json& value, absl::string_view field) {
  if (!value.is_object() || value.empty()) return Wrong(field, Show(value), "an object of at least one");
  std::vector<std::pair<std::string, std::string>> pairs;
  for (const auto& [key, chosen] : value.items()) {
    if (!chosen.is_string()) return Wrong(absl::StrCat(field, ".", Show(key)), Show(chosen), "a string");
    pairs.emplace_back(key, chosen.get<std::string>());
  }
  absl::StatusOr<Choices> choices = CheckedChoices(pairs, field);
  if (!choices.ok()) return absl::DataLossError(choices.status().message());
  return choices;
}

absl::StatusOr<std::map<std::string, Choices>> ReadChoices(const json& value) {
  if (!value.is_object() || value.size() > kMaxDeviceModels) {
    return Wrong(kChoicesMember, Show(value), absl::StrCat("an object of at most ", kMaxDeviceModels));
  }
  std::map<std::string, Choices> choices;
  for (const auto& [model, chosen] : value.items()) {
    if (model.size() > kMaxDeviceModelBytes) {
      return Wrong(kChoicesMember, absl::StrCat("the device model ", Show(model)),
                   absl::StrCat("at most ", kMaxDeviceModelBytes, " bytes"));
    }
    EPS_ASSIGN_OR_RETURN(choices[model], ReadDeviceChoices(chosen, absl::StrCat(kChoicesMember, ".", Show(model))));
  }
  return choices;
}

absl::StatusOr<std::set<std::string>> ReadDeviceModels(const json& value) {
  if (!value.is_array() || value.size() > kMaxDeviceModels) {
    return Wrong(kDeviceModelsMember, Show(value), absl::StrCat("an array of at most ", kMaxDeviceModels));
  }
  std::set<std::string> models;
  for (const json& model : value) {
    const std::string field = absl::StrCat(kDeviceModelsMember, "[", models.size(), "]");
    if (!model.is_string() || !IsDeviceModel(model.get_ref<const std::string&>())) {
      return Wrong(field, Show(model), absl::StrCat("a string of 1 to ", kMaxDeviceModelBytes, " printable letters"));
    }
    if (!models.empty() && model.get_ref<const std::string&>() <= *models.rbegin()) {
      return Wrong(field, Show(model), "above the one before it");
    }
    models.insert(model.get<std::string>());
  }
  return models;
}

absl::StatusOr<std::map<std::string, int64_t>> ReadUpdates(const json& value, int64_t most) {
  if (!value.is_object()) return Wrong(kUpdatesMember, Show(value), "an object");
  std::map<std::string, int64_t> updates;
  for (const auto& [blob, count] : value.items()) {
    EPS_ASSIGN_OR_RETURN(updates[blob], ReadInteger(count, absl::StrCat(kUpdatesMember, ".", Show(blob)), 0, most));
  }
  return updates;
}

absl::StatusOr<LossScale> ReadLossScale(const json& value, const PrecisionConfig& precision) {
  if (!value.is_object() || value.size() != 2 || !value.contains("value") || !value.contains("finite_steps")) {
    return Wrong(kLossScaleMember, Show(value), "an object with value and finite_steps alone");
  }
  LossScale scale;
  const std::string field = absl::StrCat(kLossScaleMember, ".value");
  EPS_ASSIGN_OR_RETURN(scale.value, ReadDouble(value["value"], field, kMinLossScale));
  const bool has_one = precision.loss_scale.has_value();
  if (has_one ? !IsLossScale(scale.value) : scale.value != 1) {
    return Wrong(field, Show(value["value"]), has_one ? kLossScaleRange : "1 in a run without FP16");
  }
  const int64_t interval = has_one ? precision.loss_scale->growth_interval : 0;
  EPS_ASSIGN_OR_RETURN(scale.finite_steps,
                       ReadInteger(value["finite_steps"], absl::StrCat(kLossScaleMember, ".finite_steps"), 0,
                                   std::max<int64_t>(interval, 1) - 1));
  return scale;
}

absl::Status ReadState(const json& document, const RunConfig& run, RunState& state) {
  EPS_ASSIGN_OR_RETURN(const int64_t step, ReadInteger(document["step"], "step", 0, run.steps));
  state.version = Version(step);
  const int64_t position = step * run.batch.sequences_per_step();  // below 2^61: `run` is checked
  EPS_RETURN_IF_ERROR(ReadInteger(document["data_position"], "data_position", position, position).status());
  if (document.contains(kDataMember)) {
    EPS_ASSIGN_OR_RETURN(state.data, ReadDataMark(document[kDataMember]));
  }
  if (document.contains(kChoicesMember)) {
    EPS_ASSIGN_OR_RETURN(state.choices, ReadChoices(document[kChoicesMember]));
  }
  if (document.contains(kDeviceModelsMember)) {
    EPS_ASSIGN_OR_RETURN(state.device_models, ReadDeviceModels(document[kDeviceModelsMember]));
  }
  if (document.contains(kLossScaleMember)) {
    EPS_ASSIGN_OR_RETURN(state.loss_scale, ReadLossScale(document[kLossScaleMember], run.precision));
  }
  EPS_ASSIGN_OR_RETURN(state.tokens, ReadInteger(document["tokens"], "tokens", 0, kMaxInteger));
  EPS_ASSIGN_OR_RETURN(state.skipped_steps, ReadInteger(document["skipped_steps"], "skipped_steps", 0, step));
  if (document.contains(kUpdatesMember)) {
    EPS_ASSIGN_OR_RETURN(state.updates, ReadUpdates(document[kUpdatesMember], step - state.skipped_steps));
  }
  EPS_ASSIGN_OR_RETURN(state.train_seconds, ReadDouble(document["train_seconds"], "train_seconds", 0));
  EPS_ASSIGN_OR_RETURN(state.last_norm, ReadNorm(document["last_norm"], "last_norm"));
  EPS_ASSIGN_OR_RETURN(state.losses, ReadPerStep(document["losses"], "losses", step, ReadLoss));
  EPS_ASSIGN_OR_RETURN(state.gradient_norms, ReadPerStep(document["gradient_norms"], "gradient_norms", step, ReadNorm));
  return absl::OkStatus();
}

absl::Status CheckOwnSum(absl::string_view text) {
  if (text.size() < kSumBytes || !absl::StartsWith(text.substr(text.size() - kSumBytes), kSumStart) ||
      !absl::EndsWith(text, kSumEnd)) {
    return Wrong("sha256", "something else", "the last field, on a line of its own");
  }
  const absl::string_view body = text.substr(0, text.size() - kSumBytes);
  const std::string found = HashText(body);
  const absl::string_view wanted = text.substr(body.size() + kSumStart.size(), kDigits);
  if (found == wanted) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("sha256: found ", found, " for what stands before it, must be ", wanted));
}

absl::StatusOr<json> ParseDocument(const std::string& text) {
  absl::StatusOr<json> document = ParseJson(text, kMaxDepth);
  if (!document.ok() || !document->is_object()) {
    return absl::DataLossError(absl::StrCat("found ", text.size(), " bytes that are no JSON object of a manifest"));
  }
  return document;
}

}  // namespace

std::string ManifestToJson(const Manifest& manifest) {
  const RunState& state = manifest.state;
  ordered_json object;
  object["format"] = manifest.has_frozen_file() ? kManifestFormat : kFormatOfOneFile;
  object["step"] = state.version.value();
  object["run"] = SerializeRunConfig(manifest.run);
  object["files"] = FilesToJson(manifest.files);
  object["data_position"] = state.version.value() * manifest.run.batch.sequences_per_step();
  object[kDataMember] = {{"bytes", state.data.num_bytes}, {"sha256", state.data.sha256}};
  object[kChoicesMember] = state.choices;
  object[kDeviceModelsMember] = state.device_models;
  object[kLossScaleMember] = {{"value", state.loss_scale.value}, {"finite_steps", state.loss_scale.finite_steps}};
  object[kUpdatesMember] = state.updates;
  object["tokens"] = state.tokens;
  object["skipped_steps"] = state.skipped_steps;
  object["train_seconds"] = state.train_seconds;
  object["last_norm"] = state.last_norm;
  object["losses"] = ordered_json::array();
  for (const double loss : state.losses) object["losses"].push_back(LossToJson(loss));
  object["gradient_norms"] = state.gradient_norms;
  std::string text = object.dump(2, ' ', /*ensure_ascii=*/true, ordered_json::error_handler_t::replace);
  text.resize(text.size() - 2);  // "\n}"
  text += ",\n";
  const std::string sum = HashText(text);
  absl::StrAppend(&text, kSumStart, sum, kSumEnd);
  return text;
}

absl::StatusOr<Manifest> ParseManifest(const std::string& text) {
  EPS_ASSIGN_OR_RETURN(const json document, ParseDocument(text));
  if (!document.contains("format")) return Wrong("format", "nothing", "there");
  EPS_ASSIGN_OR_RETURN(const int64_t format, ReadInteger(document["format"], "format", 1, kMaxInteger));
  if (format > kManifestFormat) {
    return absl::FailedPreconditionError(absl::StrCat("format: found ", format, ", this program reads 1 to ",
                                                      kManifestFormat, "; use the program that wrote it"));
  }
  EPS_RETURN_IF_ERROR(CheckMembers(document, format));
  EPS_RETURN_IF_ERROR(CheckOwnSum(text));
  if (!document["run"].is_string()) return Wrong("run", Show(document["run"]), "a string");
  absl::StatusOr<RunConfig> run = ParseRunConfig(document["run"].get<std::string>());
  if (!run.ok()) return absl::DataLossError(absl::StrCat("run: ", run.status().message()));
  Manifest manifest;
  manifest.run = *std::move(run);
  EPS_ASSIGN_OR_RETURN(manifest.files, ReadFiles(document["files"], format));
  EPS_RETURN_IF_ERROR(ReadState(document, manifest.run, manifest.state));
  return manifest;
}

}  // namespace eps
