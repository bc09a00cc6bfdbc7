#include "common/checkpoint/mark_ids.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <limits>
#include <string>

#include "common/base/json_text.h"
#include "common/checkpoint/manifest.h"
#include "nlohmann/json.hpp"

namespace eps {
namespace {

using nlohmann::ordered_json;  // members stay where they are

constexpr int kMaxDepth = 64;
constexpr const char* kKeys[] = {"bos_token_id", "eos_token_id", "pad_token_id"};

// Empty where there is none that can be read.
ordered_json ObjectOf(const ModelFiles& files, const char* name) {
  const auto file = files.find(name);
  if (file == files.end() || FindJsonError(file->second, kMaxDepth)) return ordered_json::object();
  ordered_json object = ordered_json::parse(file->second);
  return object.is_object() ? object : ordered_json::object();
}

bool IsAlike(const ordered_json& id, const Tokenizer& was, const Tokenizer& now) {
  if (!id.is_number_integer() || id < 0 || id > std::numeric_limits<int32_t>::max()) return true;
  const int32_t token = id.get<int32_t>();
  return was.Decode({token}, /*skip_specials=*/false) == now.Decode({token}, /*skip_specials=*/false);
}

// A number, several, or null.
bool AreAlike(const ordered_json& object, const Tokenizer& was, const Tokenizer& now) {
  return std::all_of(std::begin(kKeys), std::end(kKeys), [&](const char* key) {
    const ordered_json ids = object.value(key, ordered_json());
    if (!ids.is_array()) return IsAlike(ids, was, now);
    return std::all_of(ids.begin(), ids.end(), [&](const ordered_json& id) { return IsAlike(id, was, now); });
  });
}

}  // namespace

void ForgetMarksOfOther(const Tokenizer& was, const Tokenizer& now, ModelFiles& files) {
  ordered_json config = ObjectOf(files, kConfigFile);
  if (AreAlike(config, was, now) && AreAlike(ObjectOf(files, kGenerationConfigFile), was, now)) return;
  files.erase(kGenerationConfigFile);
  if (config.empty()) return;
  for (const char* key : kKeys) config[key] = nullptr;
  files[kConfigFile] = config.dump(2, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace eps
