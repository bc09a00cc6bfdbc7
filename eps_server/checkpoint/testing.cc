#include "eps_server/checkpoint/testing.h"

#include <bit>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "common/base/file_util.h"
#include "common/base/sha256.h"
#include "common/testing/status_matchers.h"
#include "gtest/gtest.h"

namespace eps::server {
namespace {

float ValueAt(uint64_t seed, BlobId blob, int kind, int64_t i) {
  uint64_t bits =
      (seed * 1000003 + static_cast<uint64_t>(blob.value()) * 7919 + static_cast<uint64_t>(kind)) *
          0x9E3779B97F4A7C15u +
      static_cast<uint64_t>(i) * 0xD1B54A32D192ED03u;
  bits ^= bits >> 29;
  bits *= 0xBF58476D1CE4E5B9u;
  // Any sign and fraction; not infinite, not NaN, and room above, where a wire form rounds up.
  uint32_t word = static_cast<uint32_t>(bits >> 32);
  if ((word >> 23 & 0xFF) >= 0xFE) word &= 0xBFFFFFFF;
  if (i == 1) word = 0x80000000;
  if (i == 2) word = 1;
  return std::bit_cast<float>(word);
}

std::vector<float> ReadAll(const Store& store, const BlobSpec& blob, int kind, Version version) {
  std::vector<float> values(static_cast<size_t>(blob.num_elems));
  if (kind < 0) {
    store.ReadMaster(blob.id, version, 0, absl::MakeSpan(values));
  } else {
    store.ReadMoment(blob.id, kind, 0, absl::MakeSpan(values));
  }
  return values;
}

}  // namespace

RunConfig SmallRun(Dtype wire, Rule rule) {
  RunConfig run;
  // The token embedding is longer than a chunk and no multiple of one.
  run.model = {.num_layers = 2, .d_model = 24, .num_heads = 2, .context = 5, .vocab = 11000, .init_seed = 3};
  run.data.path = "/data/text";
  run.batch = {.virtual_nodes = 2, .micro_batches = 2, .micro_batch = 1};
  run.optimizer.peak_learning_rate = 1e-3;
  run.precision = {.wire = wire, .gradients = wire};
  run.steps = 20;
  if (rule != Rule::kAdamW) run.optimizer.rule = OptimizerRule::kSgd;
  if (rule == Rule::kSgdMomentum) run.optimizer.momentum = 0.9;
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

std::unique_ptr<Store> FilledStore(const ModelSpec& model, const RunConfig& run, Version version,
                                   uint64_t seed) {
  std::unique_ptr<Store> store = Store::Create(model, run).value();
  for (const BlobSpec& blob : model.blobs) {
    for (const TensorSpec& tensor : blob.tensors) {
      std::vector<float> values(static_cast<size_t>(tensor.num_elems()));
      for (int kind = -1; kind < store->num_moments(); ++kind) {
        for (size_t i = 0; i < values.size(); ++i) {
          values[i] = ValueAt(seed, blob.id, kind, tensor.offset_elems + static_cast<int64_t>(i));
        }
        if (kind < 0) {
          store->LoadMaster(blob.id, version, tensor.offset_elems, values);
        } else {
          store->LoadMoment(blob.id, kind, tensor.offset_elems, values);
        }
      }
    }
    store->Publish(blob.id, version);
  }
  return store;
}

void ExpectSameTensors(const ModelSpec& model, const Store& a, const Store& b, Version version) {
  ASSERT_EQ(a.num_moments(), b.num_moments());
  for (const BlobSpec& blob : model.blobs) {
    for (int kind = -1; kind < a.num_moments(); ++kind) {
      const std::vector<float> of_a = ReadAll(a, blob, kind, version);
      const std::vector<float> of_b = ReadAll(b, blob, kind, version);
      for (size_t i = 0; i < of_a.size(); ++i) {
        ASSERT_EQ(std::bit_cast<uint32_t>(of_a[i]), std::bit_cast<uint32_t>(of_b[i]))
            << blob.name << " element " << i << (kind < 0 ? " of the master" : " of moment ") << kind;
      }
    }
  }
}

std::vector<BlobId> AllBlobs(const ModelSpec& model) {
  std::vector<BlobId> blobs;
  for (const BlobSpec& blob : model.blobs) blobs.push_back(blob.id);
  return blobs;
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

}  // namespace eps::server
