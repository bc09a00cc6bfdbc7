#ifndef EPS_COMMON_SPEC_TESTING_H_
#define EPS_COMMON_SPEC_TESTING_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/file_util.h"
#include "common/spec/run_config.h"
#include "common/testing/status_matchers.h"
#include "common/testing/temp_dir.h"
#include "gtest/gtest.h"

// Tests only: two RunSpecs, and a folder that RunSpecs are written into and loaded from.
namespace eps {

// The example of the documentation.
inline constexpr char kExample[] = R"(
model { family: GPT2  layers: 12  d_model: 384  heads: 6  context: 256  vocab: 256  init_seed: 1 }
data { path: "kjv.txt"  tokenizer: BYTES  order: SHUFFLED  seed: 7 }
batch { virtual_nodes: 4  micro_batches: 2  micro_batch: 4 }       # sequences per step: 4 * 2 * 4
optimizer { adamw { beta1: 0.9  beta2: 0.95  eps: 1e-8  weight_decay: 0.1 }
            schedule { peak: 6e-4  warmup_steps: 20  decay: COSINE  final: 6e-5 }  clip { mode: EXACT  norm: 1.0 } }
precision { wire: BF16  gradients: BF16  moments: FP32 }
steps: 200
checkpoint { every_steps: 100  keep: 2  buffer_bytes: 4096  last: false  keep_every_steps: 300 }
)";

inline constexpr char kSmall[] = R"(
model { layers: 1 d_model: 8 heads: 2 context: 4 vocab: 9 }
data { path: "a.txt" }
optimizer { schedule { peak: 0.1 } }
steps: 3
)";

class RunConfigTest : public ::testing::Test {
 protected:
  absl::StatusOr<RunConfig> LoadAs(const std::string& name, const std::string& text,
                                   const std::vector<FieldOverride>& overrides = {}) {
    EXPECT_OK(WriteFileAtomically(dir_.File(name), text));
    return LoadRunConfig(dir_.File(name), overrides);
  }
  absl::StatusOr<RunConfig> Load(const std::string& text, const std::vector<FieldOverride>& overrides = {}) {
    return LoadAs("run.textproto", text, overrides);
  }
  // kSmall with one field set, as a file would have it.
  absl::StatusOr<RunConfig> LoadWith(const std::string& path, const std::string& value) {
    return Load(kSmall, {{path, value}});
  }
  RunConfig MustLoad(const std::string& text, const std::vector<FieldOverride>& overrides = {}) {
    absl::StatusOr<RunConfig> config = Load(text, overrides);
    EXPECT_OK(config);
    return config.ok() ? *config : RunConfig{};
  }
  void WriteHfFolder(const std::string& config_json) {
    ASSERT_OK(MakeDirs(dir_.File("gpt2")));
    ASSERT_OK(WriteFileAtomically(dir_.File("gpt2/config.json"), config_json));
  }

  TempDir dir_;
};

}  // namespace eps

#endif  // EPS_COMMON_SPEC_TESTING_H_
