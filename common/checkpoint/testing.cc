#include "common/checkpoint/testing.h"

#include <cstddef>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/file_util.h"
#include "common/base/ids.h"
#include "common/base/sha256.h"
#include "common/testing/status_matchers.h"
#include "gtest/gtest.h"

namespace eps {

RunConfig SmallRun(Dtype wire, Rule rule) {
  RunConfig run;
  // The token embedding is longer than a chunk and no multiple of one.
  run.model = {.num_layers = 2, .d_model = 24, .num_heads = 2, .context = 5, .vocab = 11000, .init_seed = 3};
  run.data.path = "/data/text";
  run.batch = {.virtual_nodes = 2, .micro_batches = 2, .micro_batch = 1};
  run.optimizer.peak_learning_rate = 1e-3;
  run.precision = {.wire = wire, .gradients = wire};
  run.steps = 20;
  if (rule == Rule::kLion) {
    run.optimizer.rule = OptimizerRule::kLion;
  } else if (rule != Rule::kAdamW) {
    run.optimizer.rule = OptimizerRule::kSgd;
    run.optimizer.momentum = rule == Rule::kSgdMomentum ? 0.9 : 0;
  }
  return run;
}

RunState StateAt(int64_t steps) {
  RunState state{.version = Version(steps)};
  for (int64_t i = 0; i < steps; ++i) {
    state.losses.push_back(5.5 / static_cast<double>(i + 3));
    state.gradient_norms.push_back(i % 3 == 0 ? -1 : 0.1 * static_cast<double>(i));
  }
  state.last_norm = 1.0 / 3;
  state.tokens = steps * 20;
  state.train_seconds = 0.1 * static_cast<double>(steps);
  state.skipped_steps = steps / 4;
  return state;
}

std::map<std::string, std::string> TreeOf(const std::string& folder) {
  std::map<std::string, std::string> tree;
  if (!std::filesystem::exists(folder)) return tree;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    const std::string name = std::filesystem::relative(entry.path(), folder).string();
    tree[name] = entry.is_directory() ? "" : ReadFile(entry.path().string()).value();
  }
  return tree;
}

void FlipByte(const std::string& path, int64_t offset_bytes) {
  std::string content = ReadFile(path).value();
  ASSERT_LT(offset_bytes, static_cast<int64_t>(content.size()));
  content[static_cast<size_t>(offset_bytes)] ^= 4;
  ASSERT_OK(WriteFileAtomically(path, content));
}

std::string EditManifest(const std::string& text, const std::function<void(nlohmann::ordered_json&)>& edit) {
  nlohmann::ordered_json object = nlohmann::ordered_json::parse(text);
  object.erase("sha256");
  edit(object);
  std::string edited = object.dump(2);
  edited.resize(edited.size() - 2);
  edited += ",\n";
  const std::string sum = Sha256Hex({reinterpret_cast<const std::byte*>(edited.data()), edited.size()});
  return absl::StrCat(edited, "  \"sha256\": \"", sum, "\"\n}\n");
}

void ToOlderFormat(nlohmann::ordered_json& manifest, int64_t format) {
  manifest["format"] = format;
  constexpr std::pair<const char*, int64_t> kSince[] = {
      {"data", 3}, {"choices", 4}, {"loss_scale", 5}, {"updates", 6}, {"device_models", 7}};
  for (const auto& [member, since] : kSince) {
    if (format < since) manifest.erase(member);
  }
  if (format >= 2) return;
  for (auto& [name, sum] : manifest["files"].items()) sum.erase("crc32_per_mib");
}

}  // namespace eps
