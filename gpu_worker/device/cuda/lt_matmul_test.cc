#include "gpu_worker/device/cuda/lt_matmul.h"

#include <cstdint>
#include <limits>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "common/choices/choices.h"
#include "common/tensor/dtype.h"
#include "gpu_worker/device/cuda/emulator/plain_matmul.h"
#include "gpu_worker/device/cuda/matmul_problem.h"
#include "gtest/gtest.h"

namespace eps::worker::cuda {
namespace {

std::vector<float> Random(std::mt19937& random, int64_t n) {
  std::vector<float> x(static_cast<size_t>(n));
  for (float& v : x) v = std::uniform_real_distribution<float>(-1, 1)(random);
  return x;
}

// What cuBLASLt documents for these arguments, as loops over column-major matrices.
std::vector<float> AsDocumented(const LtShape& s, const float* a, const float* b, const float* c, const float* bias) {
  std::vector<float> d(static_cast<size_t>(s.d.ld * s.d.columns), 0);
  const int64_t K = s.trans_a ? s.a.rows : s.a.columns;
  EXPECT_EQ(K, s.trans_b ? s.b.columns : s.b.rows);
  EXPECT_EQ(s.d.rows, s.trans_a ? s.a.columns : s.a.rows);
  EXPECT_EQ(s.d.columns, s.trans_b ? s.b.rows : s.b.columns);
  for (const LtMatrix& matrix : {s.a, s.b, s.d}) EXPECT_GE(matrix.ld, matrix.rows);
  for (int64_t j = 0; j < s.d.columns; ++j) {
    for (int64_t i = 0; i < s.d.rows; ++i) {
      float sum = 0;
      for (int64_t k = 0; k < K; ++k) {
        sum += a[s.trans_a ? i * s.a.ld + k : k * s.a.ld + i] * b[s.trans_b ? k * s.b.ld + j : j * s.b.ld + k];
      }
      if (s.has_bias) sum += bias[i];
      if (s.has_addend) sum += c[j * s.d.ld + i];
      d[j * s.d.ld + i] = sum;
    }
  }
  return d;
}

TEST(LtMatMulTest, AsksForTheSameProduct) {
  std::mt19937 random(1);
  const int64_t M = 5, N = 7, K = 3;
  for (int bits = 0; bits < 32; ++bits) {
    const bool trans_a = bits & 1, trans_b = bits & 2, addend = bits & 4, bias = bits & 8;
    const int64_t extra = bits & 16 ? 2 : 0;
    const int64_t lda = (trans_a ? M : K) + extra, ldb = (trans_b ? K : N) + extra, ldc = N + extra;
    const std::vector<float> a = Random(random, (trans_a ? K : M) * lda), b = Random(random, (trans_b ? N : K) * ldb);
    const std::vector<float> residual = Random(random, M * ldc), biases = Random(random, N);
    std::vector<float> c(static_cast<size_t>(M * ldc), 0);
    const MatMulProblem problem = {.M = M,
                                   .N = N,
                                   .K = K,
                                   .a = a.data(),
                                   .lda = lda,
                                   .trans_a = trans_a,
                                   .b = b.data(),
                                   .ldb = ldb,
                                   .trans_b = trans_b,
                                   .c = c.data(),
                                   .ldc = ldc,
                                   .addend = addend ? residual.data() : nullptr,
                                   .bias = bias ? biases.data() : nullptr};
    PlainMatMul(problem);
    EXPECT_EQ(AsDocumented(LtShapeOf(problem), b.data(), a.data(), residual.data(), biases.data()), c) << bits;
  }
}

TEST(PlainMatMulTest, Tf32RoundsTheOperandsAlone) {
  const float a[] = {1 + 0x1p-10f, 1 + 0x1.8p-11f, 3e38f}, b[] = {1, 0, 0, 0, 1, 0, 0, 0, 1};
  float c[] = {0, 0, 0};
  MatMulProblem problem = {.M = 1, .N = 3, .K = 3, .a = a, .lda = 3, .b = b, .ldb = 3, .c = c, .ldc = 3};
  PlainMatMul(problem);
  EXPECT_EQ(std::vector<float>(c, c + 3), std::vector<float>(a, a + 3));
  problem.tf32 = true;
  EXPECT_TRUE(LtShapeOf(problem).tf32);
  PlainMatMul(problem);
  EXPECT_EQ(c[0], 1 + 0x1p-10f);
  EXPECT_EQ(c[1], 1 + 0x1p-10f);
  EXPECT_NEAR(c[2], 3e38f, 3e38f * 0x1p-11f);
}

TEST(LtMatMulTest, EveryShapeHasAKeyOfItsOwn) {
  LtShape shape = {.a = {Dtype::kBf16, 3, 4, 5}, .b = {Dtype::kBf16, 4, 6, 7}, .d = {Dtype::kF32, 3, 6, 8}};
  shape.a.alignment_bytes = shape.b.alignment_bytes = shape.d.alignment_bytes = 16;
  EXPECT_EQ(KeyOf(shape), "matmul BF16[3x4/5] * BF16[4x6/7] -> F32[3x6/8], align 16 16 16");
  std::set<std::string> keys = {KeyOf(shape)};
  for (LtMatrix* matrix : {&shape.a, &shape.b, &shape.d}) {
    for (int64_t* number : {&matrix->rows, &matrix->columns, &matrix->ld}) {
      ++*number;
      EXPECT_TRUE(keys.insert(KeyOf(shape)).second);
    }
    matrix->dtype = matrix->dtype == Dtype::kF32 ? Dtype::kBf16 : Dtype::kF32;
    EXPECT_TRUE(keys.insert(KeyOf(shape)).second);
    matrix->alignment_bytes = 2;
    EXPECT_TRUE(keys.insert(KeyOf(shape)).second);
  }
  for (bool* flag : {&shape.trans_a, &shape.trans_b, &shape.has_addend, &shape.has_bias, &shape.tf32}) {
    *flag = true;
    EXPECT_TRUE(keys.insert(KeyOf(shape)).second);
  }
  for (LtMatrix* matrix : {&shape.a, &shape.b, &shape.d}) {
    matrix->rows = matrix->columns = matrix->ld = std::numeric_limits<int64_t>::max();
  }
  EXPECT_LE(KeyOf(shape).size(), kMaxChoiceKeyBytes);
}

TEST(LtMatMulTest, SaysHowEachOfItsOperandsIsAligned) {
  alignas(64) static float memory[256] = {};
  struct Offsets {
    int64_t a = 0, lda = 8, c = 0, ldc = 8, addend = 0, bias = 0;
  };
  // Of cuBLASLt's A, B and D, which are our b, a and c.
  const auto alignments = [](const Offsets& at) {
    const LtShape shape = LtShapeOf({.M = 4,
                                     .N = 8,
                                     .K = 8,
                                     .a = memory + at.a,
                                     .lda = at.lda,
                                     .b = memory + 64,
                                     .ldb = 8,
                                     .c = memory + 128 + at.c,
                                     .ldc = at.ldc,
                                     .addend = memory + 128 + at.addend,
                                     .bias = memory + 192 + at.bias});
    return std::vector<int>{shape.a.alignment_bytes, shape.b.alignment_bytes, shape.d.alignment_bytes};
  };
  EXPECT_EQ(alignments({}), (std::vector<int>{16, 16, 16}));
  EXPECT_EQ(alignments({.a = 4, .lda = 12, .bias = 4}), (std::vector<int>{16, 16, 16}));
  EXPECT_EQ(alignments({.a = 1}), (std::vector<int>{16, 4, 16}));
  EXPECT_EQ(alignments({.lda = 9}), (std::vector<int>{16, 4, 16}));
  EXPECT_EQ(alignments({.c = 2}), (std::vector<int>{16, 16, 4}));
  EXPECT_EQ(alignments({.ldc = 9}), (std::vector<int>{16, 16, 4}));
  EXPECT_EQ(alignments({.addend = 3}), (std::vector<int>{16, 16, 4}));
  EXPECT_EQ(alignments({.bias = 2}), (std::vector<int>{4, 16, 16}));
  const LtShape of_16_bits = LtShapeOf({.a = memory + 1, .operand_dtype = Dtype::kBf16, .result_dtype = Dtype::kBf16});
  EXPECT_EQ(of_16_bits.b.alignment_bytes, 2);
}

}  // namespace
}  // namespace eps::worker::cuda
