#ifndef EPS_SERVER_STORE_TESTING_H_
#define EPS_SERVER_STORE_TESTING_H_

#include <cstdint>
#include <vector>

#include "common/base/ids.h"
#include "eps_server/store/store.h"

// Tests only.
namespace eps::server {

// Elements [first_elem, first_elem + num_elems) of a moment, whatever its format.
std::vector<float> ReadMoment(const Store& store, BlobId blob, int which, int64_t first_elem, int64_t num_elems);

}  // namespace eps::server

#endif  // EPS_SERVER_STORE_TESTING_H_
