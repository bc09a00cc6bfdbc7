#ifndef EPS_SERVER_CHECKPOINT_TESTING_H_
#define EPS_SERVER_CHECKPOINT_TESTING_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "common/base/ids.h"
#include "common/model/model_spec.h"
#include "common/spec/run_config.h"
#include "eps_server/store/store.h"

// Tests only: stores that are full of known numbers. The runs are common/checkpoint/testing.h's.
namespace eps::server {

// A store at `version`, every blob published; masters and moments are odd numbers made from `seed`, denormals,
// -0 and the largest ones among them. Padding is zero. What is frozen is the same for any seed.
std::unique_ptr<Store> FilledStore(const ModelSpec& model, const RunConfig& run, Version version, uint64_t seed);

// Same bits of every master, padding included, and of every tensor's moments.
void ExpectSameTensors(const ModelSpec& model, const Store& a, const Store& b, Version version);

std::vector<BlobId> AllBlobs(const ModelSpec& model);

}  // namespace eps::server

#endif  // EPS_SERVER_CHECKPOINT_TESTING_H_
