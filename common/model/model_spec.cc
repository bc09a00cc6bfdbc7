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
#include "common/base/status_macros.h"
#include "common/model/families.h"
#include "common/model/freeze.h"
#include "common/model/lora.h"
#include "common/numeric/philox.h"
#include "common/numeric/quantized.h"

namespace eps {
namespace {

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

struct ExpertPlace {
  BlobId blob;
  int64_t offset_elems = 0;  // in the layer's slot
};
// Of expert 0, 1, ...
std::vector<ExpertPlace> ExpertPlaces(const ModelSpec& model, const LayerSpec& layer, TensorRole role) {
  std::vector<ExpertPlace> places(static_cast<size_t>(model.config.experts.num));
  for (const BlobUse& use : layer.blobs) {
    for (const TensorSpec& tensor : model.blob(use.blob).tensors) {
      if (tensor.role != role || !tensor.is_of_expert()) continue;
      places[static_cast<size_t>(tensor.expert)] = {use.blob, use.offset_elems + tensor.offset_elems};
    }
  }
  return places;
}

// One call multiplies by all of them, and finds each by its number; another makes all of their gradients, or none.
absl::Status CheckExpertsAreEven(const ModelSpec& model) {
  if (!model.config.experts.are_on()) return absl::OkStatus();
  for (const LayerSpec& layer : model.layers) {
    if (layer.kind != LayerKind::kBlock) continue;
    for (const TensorRole role : {TensorRole::kGateWeight, TensorRole::kUpWeight, TensorRole::kDownWeight}) {
      const std::vector<ExpertPlace> places = ExpertPlaces(model, layer, role);
      const int64_t stride = ExpertStride(model, layer, role);
      for (size_t e = 1; e < places.size(); ++e) {
        const bool is_even = places[e].offset_elems == places[0].offset_elems + static_cast<int64_t>(e) * stride;
        if (is_even && places[e].blob == places[0].blob) continue;
        return absl::InvalidArgumentError(
            absl::StrCat("model.freeze: of ", layer.name,
                         " a matrix of some experts is frozen and that of others is not; give a "
                         "pattern that all of a block's experts match, or none, such as \"*.experts.*\""));
      }
    }
  }
  return absl::OkStatus();
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

int64_t BlobSpec::BytesOf(int64_t elems, Dtype wire) const {
  static_assert(kChunkElems == kQuantizedRunElems && kTensorAlignElems % kQuantizedBlockElems == 0);
  return quantized.has_value() ? QuantizedBytes(*quantized, elems) : elems * SizeOf(wire);
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

int64_t ModelSpec::num_trainable_elems() const {
  int64_t sum = 0;
  for (const BlobSpec& blob : blobs) sum += blob.frozen ? 0 : blob.num_elems;
  return sum;
}

int64_t ModelSpec::num_trainable_parameters() const {
  int64_t sum = 0;
  for (const BlobSpec& blob : blobs) sum += blob.frozen ? 0 : blob.num_parameters();
  return sum;
}

bool ModelSpec::has_quantized() const {
  return std::any_of(blobs.begin(), blobs.end(), [](const BlobSpec& blob) { return blob.is_quantized(); });
}

int64_t ModelSpec::wire_bytes(const LayerSpec& layer, Dtype wire) const {
  const BlobUse& last = layer.blobs.back();
  return first_wire_byte(last, wire) + blob(last.blob).wire_bytes(wire);
}

LayerId ModelSpec::lowest_trainable_layer() const {
  const auto lowest = std::find_if(layers.begin(), layers.end(), [](const LayerSpec& layer) { return layer.trains(); });
  EPS_CHECK(lowest != layers.end());
  return lowest->id;
}

int64_t ModelSpec::max_layer_bytes(Dtype wire) const {
  int64_t most = 0;
  for (const LayerSpec& layer : layers) most = std::max(most, wire_bytes(layer, wire));
  return most;
}

int64_t ModelSpec::max_block_bytes(Dtype wire) const {
  int64_t most = 0;
  for (const LayerSpec& layer : layers) {
    if (layer.kind == LayerKind::kBlock) most = std::max(most, wire_bytes(layer, wire));
  }
  return most;
}

int64_t ModelSpec::max_trainable_block_elems() const {
  int64_t most = 0;
  for (const LayerSpec& layer : layers) {
    most = std::max(most, layer.kind == LayerKind::kBlock ? layer.trainable_elems : 0);
  }
  return most;
}

int64_t ExpertStride(const ModelSpec& model, const LayerSpec& layer, TensorRole role) {
  const std::vector<ExpertPlace> places = ExpertPlaces(model, layer, role);
  return places.size() < 2 ? 0 : places[1].offset_elems - places[0].offset_elems;
}

absl::StatusOr<ModelSpec> BuildModel(const ModelConfig& config) {
  const Family& family = FamilyOf(config.family);
  EPS_RETURN_IF_ERROR(family.check(config));
  EPS_ASSIGN_OR_RETURN(ModelSpec model, AddAdapters(family.build(config)));
  EPS_ASSIGN_OR_RETURN(model, Freeze(std::move(model), config.freeze));
  EPS_RETURN_IF_ERROR(CheckExpertsAreEven(model));
  return model;
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
