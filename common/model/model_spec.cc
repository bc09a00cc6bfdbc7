#include "common/model/model_spec.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/base/byte_size.h"
#include "common/base/status_macros.h"
#include "common/numeric/philox.h"

namespace eps {
namespace {

// Bounds that keep every size below 2^63 elements with room for arithmetic: the largest tensor is
// mlp.c_fc of 4 * 2^32 elements or wte of 2^40, and there are at most 4096 * 12 of the former.
constexpr int64_t kMaxLayers = 4096;
constexpr int64_t kMaxDModel = 65536;
constexpr int64_t kMaxHeadDim = 256;  // what the attention kernels hold in registers and tiles
constexpr int64_t kMaxContext = int64_t{1} << 20;
constexpr int64_t kMaxVocab = int64_t{1} << 24;

constexpr double kInitStddev = 0.02;  // GPT-2's initializer_range

absl::Status CheckRange(absl::string_view field, int64_t value, int64_t max) {
  if (value >= 1 && value <= max) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(field, ": ", value, ", must be between 1 and ", max));
}

absl::Status CheckDropout(absl::string_view field, double value) {
  if (value >= 0 && value < 1) return absl::OkStatus();  // NaN fails
  return absl::InvalidArgumentError(absl::StrCat(field, ": ", value, ", must be at least 0 and less than 1"));
}

absl::Status CheckConfig(const Gpt2Config& config) {
  EPS_RETURN_IF_ERROR(CheckRange("model.layers", config.num_layers, kMaxLayers));
  EPS_RETURN_IF_ERROR(CheckRange("model.d_model", config.d_model, kMaxDModel));
  EPS_RETURN_IF_ERROR(CheckRange("model.heads", config.num_heads, config.d_model));
  EPS_RETURN_IF_ERROR(CheckRange("model.context", config.context, kMaxContext));
  EPS_RETURN_IF_ERROR(CheckRange("model.vocab", config.vocab, kMaxVocab));
  if (config.d_model % config.num_heads != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("model.heads: ", config.num_heads, " does not divide model.d_model ", config.d_model));
  }
  if (config.head_dim() > kMaxHeadDim) {
    return absl::InvalidArgumentError(absl::StrCat("model.heads: ", config.num_heads, " of model.d_model ",
                                                   config.d_model, " makes heads of ", config.head_dim(), ", at most ",
                                                   kMaxHeadDim));
  }
  if (!(config.layer_norm_eps > 0 && config.layer_norm_eps < 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("model.layer_norm_eps: ", config.layer_norm_eps, ", must be greater than 0 and less than 1"));
  }
  EPS_RETURN_IF_ERROR(CheckDropout("model.embedding_dropout", config.embedding_dropout));
  EPS_RETURN_IF_ERROR(CheckDropout("model.attention_dropout", config.attention_dropout));
  return CheckDropout("model.residual_dropout", config.residual_dropout);
}

// Collects the tensors of one blob and lays them out.
class BlobBuilder {
 public:
  explicit BlobBuilder(std::string name) { blob_.name = std::move(name); }

  BlobBuilder& Normal(std::string name, std::vector<int64_t> shape, double stddev = kInitStddev) {
    return Add(std::move(name), std::move(shape), InitRule::kNormal, stddev);
  }
  BlobBuilder& Ones(std::string name, std::vector<int64_t> shape) {
    return Add(std::move(name), std::move(shape), InitRule::kOnes, 0);
  }
  BlobBuilder& Zeros(std::string name, std::vector<int64_t> shape) {
    return Add(std::move(name), std::move(shape), InitRule::kZeros, 0);
  }

  BlobSpec Build() { return std::move(blob_); }

 private:
  BlobBuilder& Add(std::string name, std::vector<int64_t> shape, InitRule init, double stddev) {
    TensorSpec tensor{std::move(name), std::move(shape), blob_.num_elems, init, stddev};
    blob_.num_elems = RoundUp(blob_.num_elems + tensor.num_elems(), kTensorAlignElems);
    blob_.tensors.push_back(std::move(tensor));
    return *this;
  }

  BlobSpec blob_;
};

BlobSpec BlockBlob(const Gpt2Config& config, int64_t index) {
  const int64_t d = config.d_model;
  const std::string prefix = absl::StrCat("transformer.h.", index, ".");
  // Projections into the residual stream start smaller, so that its variance does not grow with
  // depth (GPT-2, section 2.3).
  const double residual_stddev = kInitStddev / std::sqrt(2.0 * static_cast<double>(config.num_layers));
  return BlobBuilder(absl::StrCat("h.", index))
      .Ones(prefix + "ln_1.weight", {d})
      .Zeros(prefix + "ln_1.bias", {d})
      .Normal(prefix + "attn.c_attn.weight", {d, 3 * d})
      .Zeros(prefix + "attn.c_attn.bias", {3 * d})
      .Normal(prefix + "attn.c_proj.weight", {d, d}, residual_stddev)
      .Zeros(prefix + "attn.c_proj.bias", {d})
      .Ones(prefix + "ln_2.weight", {d})
      .Zeros(prefix + "ln_2.bias", {d})
      .Normal(prefix + "mlp.c_fc.weight", {d, 4 * d})
      .Zeros(prefix + "mlp.c_fc.bias", {4 * d})
      .Normal(prefix + "mlp.c_proj.weight", {4 * d, d}, residual_stddev)
      .Zeros(prefix + "mlp.c_proj.bias", {d})
      .Build();
}

// Adds blobs and layers to a model and keeps both sides of a use in step.
class ModelBuilder {
 public:
  explicit ModelBuilder(const Gpt2Config& config) { model_.config = config; }

  BlobId AddBlob(BlobSpec blob) {
    blob.id = BlobId(static_cast<int32_t>(model_.blobs.size()));
    model_.blobs.push_back(std::move(blob));
    return model_.blobs.back().id;
  }

  // The layer's slot holds `blobs` one after the other.
  void AddLayer(LayerKind kind, std::string name, const std::vector<BlobId>& blobs) {
    LayerSpec layer;
    layer.id = LayerId(static_cast<int32_t>(model_.layers.size()));
    layer.kind = kind;
    layer.name = std::move(name);
    for (const BlobId id : blobs) {
      BlobSpec& blob = model_.blobs[id.value()];
      layer.blobs.push_back({id, static_cast<int>(blob.uses.size()), layer.num_elems});
      blob.uses.push_back(layer.id);
      layer.num_elems += blob.num_elems;  // already a multiple of kTensorAlignElems
    }
    model_.layers.push_back(std::move(layer));
  }

  ModelSpec Build() { return std::move(model_); }

 private:
  ModelSpec model_;
};

// FNV-1a, 64 bits: fixed for ever, unlike std::hash.
uint64_t HashName(absl::string_view name) {
  uint64_t hash = 0xCBF29CE484222325u;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3u;
  return hash;
}

// Two independent standard normal numbers from 128 random bits (Box and Muller, 1958).
std::array<double, 2> NormalPair(const std::array<uint32_t, 4>& bits) {
  constexpr double kUnit = 0x1p-53;
  const uint64_t a = (uint64_t{bits[0]} << 32 | bits[1]) >> 11;
  const uint64_t b = (uint64_t{bits[2]} << 32 | bits[3]) >> 11;
  const double u = (static_cast<double>(a) + 1) * kUnit;  // (0, 1]: the logarithm is finite
  const double angle = 2 * std::numbers::pi * (static_cast<double>(b) * kUnit);
  const double radius = std::sqrt(-2 * std::log(u));
  return {radius * std::cos(angle), radius * std::sin(angle)};
}

void FillNormal(const TensorSpec& tensor, uint64_t seed, int64_t first_elem, absl::Span<float> values) {
  const uint64_t hash = Mix64(Mix64(seed) ^ HashName(tensor.name));
  const PhiloxKey key{static_cast<uint32_t>(hash), static_cast<uint32_t>(hash >> 32)};
  for (size_t i = 0; i < values.size(); i += 2) {
    const uint64_t pair = static_cast<uint64_t>(first_elem) / 2 + i / 2;
    const std::array<double, 2> normal =
        NormalPair(Philox(key, {static_cast<uint32_t>(pair), static_cast<uint32_t>(pair >> 32), 0, 0}));
    values[i] = static_cast<float>(tensor.init_stddev * normal[0]);
    if (i + 1 < values.size()) values[i + 1] = static_cast<float>(tensor.init_stddev * normal[1]);
  }
}

}  // namespace

int64_t TensorSpec::num_elems() const {
  int64_t product = 1;
  for (const int64_t dim : shape) product *= dim;
  return product;
}

int64_t BlobSpec::num_parameters() const {
  int64_t sum = 0;
  for (const TensorSpec& tensor : tensors) sum += tensor.num_elems();
  return sum;
}

int64_t BlobSpec::chunk_elems(int64_t chunk) const {
  EPS_CHECK(chunk >= 0 && chunk < num_chunks());
  return std::min(kChunkElems, num_elems - chunk * kChunkElems);
}

int64_t BlobSpec::part_elems(ChunkRange chunks) const {
  if (chunks.empty()) return 0;
  EPS_CHECK(CheckChunks(*this, chunks).ok());
  return std::min(num_elems, chunks.end() * kChunkElems) - part_first_elem(chunks);
}

absl::Status CheckChunks(const BlobSpec& blob, ChunkRange chunks) {
  const int64_t num_chunks = blob.num_chunks();
  if (chunks.first < 0 || chunks.first >= num_chunks) {
    return absl::InvalidArgumentError(absl::StrCat("first_chunk: ", chunks.first, ", the blob has ", num_chunks));
  }
  // Not chunks.end(), which may overflow.
  const int64_t most = num_chunks - chunks.first;
  if (chunks.count < 1 || chunks.count > most) {
    return absl::InvalidArgumentError(
        absl::StrCat("num_chunks: ", chunks.count, ", from first_chunk on are 1 to ", most));
  }
  return absl::OkStatus();
}

int64_t ModelSpec::num_parameters() const {
  int64_t sum = 0;
  for (const BlobSpec& blob : blobs) sum += blob.num_parameters();
  return sum;
}

int64_t ModelSpec::num_elems() const {
  int64_t sum = 0;
  for (const BlobSpec& blob : blobs) sum += blob.num_elems;
  return sum;
}

int64_t ModelSpec::max_layer_elems() const {
  int64_t most = 0;
  for (const LayerSpec& layer : layers) most = std::max(most, layer.num_elems);
  return most;
}

absl::StatusOr<ModelSpec> BuildGpt2(const Gpt2Config& config) {
  EPS_RETURN_IF_ERROR(CheckConfig(config));
  const int64_t d = config.d_model;
  ModelBuilder builder(config);
  const BlobId wte = builder.AddBlob(BlobBuilder("wte").Normal("transformer.wte.weight", {config.vocab, d}).Build());
  const BlobId wpe = builder.AddBlob(BlobBuilder("wpe").Normal("transformer.wpe.weight", {config.context, d}).Build());
  builder.AddLayer(LayerKind::kEmbedding, "embedding", {wte, wpe});
  for (int64_t i = 0; i < config.num_layers; ++i) {
    const BlobId block = builder.AddBlob(BlockBlob(config, i));
    builder.AddLayer(LayerKind::kBlock, absl::StrCat("h.", i), {block});
  }
  const BlobId ln_f = builder.AddBlob(
      BlobBuilder("ln_f").Ones("transformer.ln_f.weight", {d}).Zeros("transformer.ln_f.bias", {d}).Build());
  builder.AddLayer(LayerKind::kHead, "head", {ln_f, wte});
  return builder.Build();
}

void InitTensor(const TensorSpec& tensor, uint64_t seed, float* values) {
  InitTensorPart(tensor, seed, 0, absl::MakeSpan(values, static_cast<size_t>(tensor.num_elems())));
}

void InitTensorPart(const TensorSpec& tensor, uint64_t seed, int64_t first_elem, absl::Span<float> values) {
  EPS_CHECK(first_elem % 2 == 0);  // normal values are made in pairs
  switch (tensor.init) {
    case InitRule::kZeros:
      std::fill(values.begin(), values.end(), 0.0f);
      return;
    case InitRule::kOnes:
      std::fill(values.begin(), values.end(), 1.0f);
      return;
    case InitRule::kNormal:
      FillNormal(tensor, seed, first_elem, values);
      return;
  }
}

}  // namespace eps
