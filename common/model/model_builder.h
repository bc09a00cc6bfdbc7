#ifndef EPS_COMMON_MODEL_MODEL_BUILDER_H_
#define EPS_COMMON_MODEL_MODEL_BUILDER_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "common/base/byte_size.h"
#include "common/model/model_config.h"
#include "common/model/model_spec.h"

namespace eps {

inline constexpr double kInitStddev = 0.02;  // the initializer_range of every family here

// Of projections into the residual stream: smaller, so that its variance does not grow with depth (GPT-2, section 2.3).
double ResidualInitStddev(const ModelConfig& config);

// Collects the tensors of one blob and lays them out.
class BlobBuilder {
 public:
  explicit BlobBuilder(std::string name) { blob_.name = std::move(name); }

  BlobBuilder& Normal(TensorRole role, std::string name, std::vector<int64_t> shape, double stddev = kInitStddev) {
    return Add(role, std::move(name), std::move(shape), InitRule::kNormal, stddev);
  }
  BlobBuilder& OfExpert(int64_t expert, TensorRole role, std::string name, std::vector<int64_t> shape,
                        double stddev = kInitStddev) {
    Normal(role, std::move(name), std::move(shape), stddev);
    blob_.tensors.back().expert = expert;
    return *this;
  }
  BlobBuilder& Ones(TensorRole role, std::string name, std::vector<int64_t> shape) {
    return Add(role, std::move(name), std::move(shape), InitRule::kOnes, 0);
  }
  BlobBuilder& Zeros(TensorRole role, std::string name, std::vector<int64_t> shape) {
    return Add(role, std::move(name), std::move(shape), InitRule::kZeros, 0);
  }

  BlobSpec Build() { return std::move(blob_); }

 private:
  BlobBuilder& Add(TensorRole role, std::string name, std::vector<int64_t> shape, InitRule init, double stddev) {
    TensorSpec tensor{std::move(name), std::move(shape), blob_.num_elems, init, stddev, role};
    blob_.num_elems = RoundUp(blob_.num_elems + tensor.num_elems(), kTensorAlignElems);
    blob_.tensors.push_back(std::move(tensor));
    return *this;
  }

  BlobSpec blob_;
};

// Adds blobs and layers to a model and keeps both sides of a use in step.
class ModelBuilder {
 public:
  explicit ModelBuilder(const ModelConfig& config) { model_.config = config; }

  BlobId AddBlob(BlobSpec blob);
  // The layer's slot holds `blobs` one after the other; frozen ones are last, and of these a quantized one.
  void AddLayer(LayerKind kind, std::string name, const std::vector<BlobId>& blobs);

  ModelSpec Build() { return std::move(model_); }

 private:
  ModelSpec model_;
};

}  // namespace eps

#endif  // EPS_COMMON_MODEL_MODEL_BUILDER_H_
