#ifndef EPS_COMMON_CHECKPOINT_TESTING_H_
#define EPS_COMMON_CHECKPOINT_TESTING_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "common/checkpoint/run_state.h"
#include "common/spec/run_config.h"
#include "common/tensor/dtype.h"
#include "nlohmann/json.hpp"

// Tests only: a small run, and what looks at a checkpoint of it and damages it.
namespace eps {

enum class Rule { kAdamW, kSgd, kSgdMomentum, kLion };

// 20 steps of 4 sequences.
RunConfig SmallRun(Dtype wire = Dtype::kBf16, Rule rule = Rule::kAdamW);

// State after `steps` steps.
RunState StateAt(int64_t steps);

// Every path below `folder` with its content; "" for a folder.
std::map<std::string, std::string> TreeOf(const std::string& folder);

// Changes one byte of a file.
void FlipByte(const std::string& path, int64_t offset_bytes);
// The text of a manifest after `edit`, with a right sum of its own.
std::string EditManifest(const std::string& text, const std::function<void(nlohmann::ordered_json&)>& edit);
// Makes it one of an older format, from 1 on: without the members that came later.
void ToOlderFormat(nlohmann::ordered_json& manifest, int64_t format);

}  // namespace eps

#endif  // EPS_COMMON_CHECKPOINT_TESTING_H_
