#ifndef EPS_SERVER_STORE_TESTING_H_
#define EPS_SERVER_STORE_TESTING_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/model/model_spec.h"
#include "eps_server/store/store.h"

// Tests only.
namespace eps::server {

// A moment of a whole blob, as it lies.
std::vector<std::byte> MomentOf(const Store& store, const BlobSpec& blob, int which);
// Elements [first_elem, first_elem + num_elems) of a moment, whatever its format.
std::vector<float> ReadMoment(const Store& store, const BlobSpec& blob, int which, int64_t first_elem,
                              int64_t num_elems);

}  // namespace eps::server

#endif  // EPS_SERVER_STORE_TESTING_H_
