#ifndef EPS_SERVER_OPTIMIZER_CHUNK_KERNELS_TESTING_H_
#define EPS_SERVER_OPTIMIZER_CHUNK_KERNELS_TESTING_H_

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "absl/types/span.h"
#include "common/numeric/bf16.h"
#include "common/numeric/fp16.h"
#include "common/numeric/fp8_block.h"
#include "common/schedule/reduction_tree.h"
#include "common/spec/moment_format.h"
#include "common/spec/run_config.h"
#include "common/tensor/dtype.h"
#include "eps_server/optimizer/chunk_gradient.h"
#include "eps_server/optimizer/chunk_kernels.h"
#include "eps_server/optimizer/update_scalars.h"
#include "eps_server/store/store.h"
#include "hwy/targets.h"

// Tests only: chunks, their moments and gradients, with memory of their own.
namespace eps::server {

inline constexpr int64_t kElems = 5 * 1024 + 64;  // blocks and a part of one

inline std::vector<float> Normal(int64_t count, uint64_t seed, double scale = 1) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal(0, scale);
  std::vector<float> values(count);
  for (float& value : values) value = static_cast<float>(normal(random));
  return values;
}

// Leaves or subtree sums over `nodes`, and the program that adds them.
struct Gradient {
  Gradient(const std::vector<TreeNode>& nodes, int num_vnodes, Dtype leaves, uint64_t seed, double scale = 1e-2) {
    for (const TreeNode node : nodes) {
      f32.push_back(Normal(kElems, seed + node.first, scale));
      bits.emplace_back();
      dtypes.push_back(node.is_leaf() ? leaves : Dtype::kF32);
      for (float& value : f32.back()) {
        if (dtypes.back() == Dtype::kBf16) {
          bits.back().push_back(ToBf16(value).bits);
          value = ToFloat(ToBf16(value));
        } else if (dtypes.back() == Dtype::kF16) {
          bits.back().push_back(ToFp16(value).bits);
          value = ToFloat(ToFp16(value));
        }
      }
    }
    for (size_t i = 0; i < nodes.size(); ++i) {
      const void* values = dtypes[i] != Dtype::kF32 ? static_cast<const void*>(bits[i].data()) : f32[i].data();
      gradient.operands.push_back({dtypes[i], static_cast<const std::byte*>(values), nodes[i], 0});
    }
    gradient.program = SumProgram(nodes, num_vnodes);
  }
  // The program as it is defined, element by element.
  float SumAt(int64_t i) const {
    std::vector<float> stack;
    for (const SumOp& op : gradient.program) {
      if (op.kind == SumOp::Kind::kLoad) {
        stack.push_back(f32[op.operand][i]);
      } else {
        const float right = stack.back();
        stack.pop_back();
        stack.back() += right;
      }
    }
    return stack.back();
  }
  std::vector<std::vector<float>> f32;
  std::vector<std::vector<uint16_t>> bits;  // of what has 16
  std::vector<Dtype> dtypes;
  ChunkGradient gradient;
};

inline std::vector<TreeNode> Leaves(int count) {
  std::vector<TreeNode> leaves;
  for (int i = 0; i < count; ++i) leaves.push_back({i, 1});
  return leaves;
}

// A chunk with memory of its own.
struct Chunk {
  Chunk(Dtype dtype, uint64_t seed, bool moments = true) : dtype(dtype), master(Normal(kElems, seed, 0.1)) {
    wire16.resize(kElems);
    out16.resize(kElems);
    rest.resize(kElems);
    out32.resize(kElems);
    for (int64_t i = 0; i < kElems; ++i) {
      wire16[i] = Split(master[i]).wire.bits;
      rest[i] = Split(master[i]).rest;
    }
    m = Normal(kElems, seed + 1, 1e-3);
    v = Normal(kElems, seed + 2, 1e-3);
    for (float& value : v) value *= value;
    state.wire_dtype = dtype;
    const bool is_fp32 = dtype == Dtype::kF32;
    state.wire_in = is_fp32 ? static_cast<const void*>(master.data()) : wire16.data();
    state.wire_out = is_fp32 ? static_cast<void*>(out32.data()) : out16.data();
    state.rest = dtype == Dtype::kBf16 ? rest.data() : nullptr;
    out32 = master;
    state.master = dtype == Dtype::kF16 ? out32.data() : nullptr;
    state.moment1 = moments ? m.data() : nullptr;
    state.moment2 = moments ? v.data() : nullptr;
    state.num_elems = kElems;
  }
  float Updated(int64_t i) const { return dtype == Dtype::kBf16 ? Join({{out16[i]}, rest[i]}) : out32[i]; }

  Dtype dtype;
  std::vector<float> master, out32, m, v;
  std::vector<uint16_t> wire16, out16, rest;
  ChunkState state;
};

// A chunk's moments, rounded to `format`; the chunk is made to use these.
struct NarrowMoments {
  NarrowMoments(Chunk& chunk, MomentFormat format) : format(format) {
    for (int which = 0; which < 2; ++which) {
      const std::vector<float>& exact = which == 0 ? chunk.m : chunk.v;
      bytes[which].resize(MomentBytes(format, kElems));
      if (format == MomentFormat::kFp8) {
        EncodeFp8(KindOfMoment(which), exact, bytes[which].data());
      } else {
        for (int64_t i = 0; i < kElems; ++i) Bits(which)[i] = ToBf16(exact[i]).bits;
      }
    }
    chunk.state.moment_format = format;
    chunk.state.moment1 = bytes[0].data();
    chunk.state.moment2 = bytes[1].data();
  }
  std::vector<float> Values(int which) {
    std::vector<Bf16> values(kElems);
    if (format == MomentFormat::kFp8) {
      DecodeFp8(KindOfMoment(which), bytes[which].data(), 0, absl::MakeSpan(values));
    } else {
      for (int64_t i = 0; i < kElems; ++i) values[i] = Bf16{Bits(which)[i]};
    }
    std::vector<float> floats;
    for (const Bf16 value : values) floats.push_back(ToFloat(value));
    return floats;
  }
  std::byte Exponent(int which, int64_t block) const { return bytes[which][(block + 1) * kFp8BlockBytes - 1]; }
  std::byte Code(int which, int64_t i) const {
    return bytes[which][i / kFp8BlockElems * kFp8BlockBytes + i % kFp8BlockElems];
  }
  uint16_t* Bits(int which) { return reinterpret_cast<uint16_t*>(bytes[which].data()); }
  MomentFormat format;
  std::vector<std::byte> bytes[2];
};

inline OptimizerConfig AdamWConfig() {
  OptimizerConfig config;
  config.beta1 = 0.9;
  config.beta2 = 0.95;
  config.weight_decay = 0.1;
  return config;
}
inline OptimizerConfig AdamConfig() {
  OptimizerConfig config = AdamWConfig();
  config.rule = OptimizerRule::kAdam;
  return config;
}
inline OptimizerConfig SgdConfig(double momentum) {
  OptimizerConfig config;
  config.rule = OptimizerRule::kSgd;
  config.momentum = momentum;
  config.weight_decay = 0.1;
  return config;
}
inline OptimizerConfig LionConfig() {
  OptimizerConfig config;
  config.rule = OptimizerRule::kLion;
  config.beta1 = 0.8;
  config.beta2 = 0.97;
  config.weight_decay = 0.1;
  return config;
}
inline OptimizerConfig LambConfig() {
  OptimizerConfig config = AdamWConfig();
  config.rule = OptimizerRule::kLamb;
  return config;
}
// The middle decays.
inline const std::vector<GroupRange> kRanges = {{0, 64, 0}, {64, 2048 + 128, 1}, {2048 + 128, kElems, 0}};
inline UpdateScalars ScalarsOf(const OptimizerConfig& config, double learning_rate, int64_t update,
                               double gradient_scale) {
  const std::vector<TensorGroup> groups = {{.weight_decay = 0}, {.weight_decay = config.weight_decay}};
  return ComputeUpdateScalars(config, groups, learning_rate, update, gradient_scale);
}

// Which of Highway's targets runs.
class ScopedTarget {
 public:
  explicit ScopedTarget(int64_t target) { Choose(target); }
  ~ScopedTarget() { Choose(0); }
  ScopedTarget(const ScopedTarget&) = delete;
  ScopedTarget& operator=(const ScopedTarget&) = delete;

 private:
  static void Choose(int64_t targets) {  // 0: what this processor has
    hwy::SetSupportedTargetsForTest(targets);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  }
};

inline constexpr int64_t kZeroBlock = 70;  // where nothing decays

// Values of a block that lie far apart, in every fourth; a block of zeros, and one of the smallest numbers.
inline float Unevenness(int64_t i) {
  const int64_t block = i / kFp8BlockElems, place = i % kFp8BlockElems;
  if (block == kZeroBlock) return 0;
  if (block == kZeroBlock + 1) return 0x1p-59f;
  return block % 4 == 0 ? std::exp2(-static_cast<float>(place)) : 1;
}

// By the gradients of each leaf, in fp32.
inline Gradient UnevenGradient(int num_vnodes) {
  Gradient gradient(Leaves(num_vnodes), num_vnodes, Dtype::kF32, 3);
  for (std::vector<float>& leaf : gradient.f32) {
    for (int64_t i = 0; i < kElems; ++i) leaf[i] *= Unevenness(i);
  }
  return gradient;
}

}  // namespace eps::server

#endif  // EPS_SERVER_OPTIMIZER_CHUNK_KERNELS_TESTING_H_
