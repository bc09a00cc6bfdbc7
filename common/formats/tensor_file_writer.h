#ifndef EPS_COMMON_FORMATS_TENSOR_FILE_WRITER_H_
#define EPS_COMMON_FORMATS_TENSOR_FILE_WRITER_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/model/model_spec.h"

namespace eps {

// Gives the elements [first_elem, first_elem + values.size()) of a tensor.
using ReadTensorPart =
    std::function<absl::Status(const TensorSpec& tensor, int64_t first_elem, absl::Span<float> values)>;

struct NamedTensor {
  std::string name;  // in the file
  const TensorSpec* tensor;
};

// Errors: INVALID_ARGUMENT it is none of F32, F16, BF16
absl::Status CheckTensorDtype(const std::string& dtype);
int64_t TensorElemBytes(const std::string& dtype);

// Writes a safetensors file as other programs' of PyTorch tensors are. Tensors are asked for in their order, each from
// its start to its end, in parts of at most kChunkElems; 16-bit forms are rounded to nearest even. `more`: of the file's
// metadata, beside what every writer of PyTorch tensors says.
//
// Memory: 2 MiB beside `read`'s own; of the system, 64 MiB that wait for the disk
// Errors: INVALID_ARGUMENT the tensor and element of a value that is not finite, or too large for `dtype` · the
//         system's, naming the file · those of `read`
absl::Status WriteTensorFile(const std::string& path, const std::vector<NamedTensor>& tensors, const std::string& dtype,
                             const ReadTensorPart& read, const std::map<std::string, std::string>& more = {});

}  // namespace eps

#endif  // EPS_COMMON_FORMATS_TENSOR_FILE_WRITER_H_
