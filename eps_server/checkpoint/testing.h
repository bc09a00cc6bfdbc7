#ifndef EPS_SERVER_CHECKPOINT_TESTING_H_
#define EPS_SERVER_CHECKPOINT_TESTING_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/base/ids.h"
#include "common/model/model_spec.h"
#include "common/spec/run_config.h"
#include "common/tensor/dtype.h"
#include "eps_server/checkpoint/run_state.h"
#include "eps_server/store/store.h"
#include "nlohmann/json.hpp"

// Tests only: a small run whose store is full of known numbers.
namespace eps::server {

enum class Rule { kAdamW, kSgd, kSgdMomentum };

// 20 steps of 4 sequences.
RunConfig SmallRun(Dtype wire = Dtype::kBf16, Rule rule = Rule::kAdamW);

// State after `steps` steps.
RunState StateAt(int64_t steps);

// A store at `version`, every blob published; masters and moments are odd numbers made from `seed`, denormals,
// -0 and the largest ones among them. Padding is zero.
std::unique_ptr<Store> FilledStore(const ModelSpec& model, const RunConfig& run, Version version,
                                   uint64_t seed);

// Same bits of every master and moment.
void ExpectSameTensors(const ModelSpec& model, const Store& a, const Store& b, Version version);

std::vector<BlobId> AllBlobs(const ModelSpec& model);

// Every path below `folder` with its content; "" for a folder.
std::map<std::string, std::string> TreeOf(const std::string& folder);

// Changes one byte of a file.
void FlipByte(const std::string& path, int64_t offset_bytes);
// The text of a manifest after `edit`, with a right sum of its own.
std::string EditManifest(const std::string& text, const std::function<void(nlohmann::ordered_json&)>& edit);

}  // namespace eps::server

#endif  // EPS_SERVER_CHECKPOINT_TESTING_H_
