#ifndef EPS_COMMON_FORMATS_MERGED_MODEL_H_
#define EPS_COMMON_FORMATS_MERGED_MODEL_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/formats/model_folder.h"
#include "common/model/model_spec.h"

namespace eps {

// The model of a folder without its adapters: a weight that has one beside it is W + scale B A (LoraConfig).
//
// Sums are fp32, of fp32 values, in the order of the rank: the same bits in whatever parts a tensor is asked for.
// Threads: one at a time
class MergedModel {
 public:
  // `folder` outlives it. Errors: BuildModel's
  static absl::StatusOr<std::unique_ptr<MergedModel>> Create(const ModelFolder& folder);

  const ModelSpec& model() const { return model_; }
  // Weights that have an adapter.
  size_t num_adapters() const { return adapters_.size(); }
  // Fills `values` with the elements [first_elem, first_elem + values.size()) of a tensor of model(), as fp32.
  // Memory: A and B of the adapter that was last asked for
  // Cost:   beside reading, a multiplication and an addition for each element and rank: 2 ns an element at rank 16, so
  //         16 s for 8 B parameters (one core of a Xeon server, 2026-11)
  // Errors: ModelFolder::ReadChecked's of whatever is read
  absl::Status ReadPart(const TensorSpec& tensor, int64_t first_elem, absl::Span<float> values);

 private:
  struct Adapter {
    const TensorSpec *a, *b;
    bool is_out_in;  // the weight is (out, in), as B A is; else (in, out)
  };
  // B A, or what it is transposed, as rows times columns.
  struct Product {
    std::string weight;  // its tensor's name; "": none yet
    int64_t num_columns = 0;
    std::vector<float> rows;     // (rows, rank)
    std::vector<float> columns;  // (blocks of kBlock columns, rank, kBlock), the last block filled with zeros
  };

  explicit MergedModel(const ModelFolder& folder) : folder_(folder) {}
  absl::Status ReadProduct(const TensorSpec& weight, const Adapter& adapter);
  void AddProduct(int64_t first_elem, absl::Span<float> values) const;

  const ModelFolder& folder_;
  ModelSpec model_;
  std::map<std::string, Adapter, std::less<>> adapters_;  // by the name of the weight's tensor
  Product product_;
};

}  // namespace eps

#endif  // EPS_COMMON_FORMATS_MERGED_MODEL_H_
