// What of cuDNN needs no GPU, which is most: it is loaded, and plans attention for GPUs that are described to it.
// Without a driver a plan gets as far as compiled kernels. Visibly skipped where there is no cuDNN.

#include <dlfcn.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/testing/status_matchers.h"
#include "cuda_runtime_api.h"
#include "gmock/gmock.h"
#include "gpu_worker/device/cuda/cudnn_api.h"
#include "gpu_worker/device/cuda/cudnn_library.h"
#include "gpu_worker/device/cuda/cudnn_plan.h"
#include "gpu_worker/device/cuda/device_dropout.h"
#include "gpu_worker/device/cuda/loaded_library.h"
#include "gpu_worker/device/cuda/sdpa_graph.h"
#include "gpu_worker/device/cuda/sdpa_problem.h"
#include "gtest/gtest.h"

namespace eps::worker::cuda {
namespace {

using ::testing::HasSubstr;

TEST(CudnnApiTest, AnotherLibraryOrVersionIsRefused) {
  EXPECT_THAT(CudnnApi::Load("libeps-is-not-there.so.9").status(),
              StatusIs(absl::StatusCode::kFailedPrecondition, "libeps-is-not-there.so.9 cannot be loaded"));
  EXPECT_THAT(CudnnApi::Load("libm.so.6").status(),
              StatusIs(absl::StatusCode::kFailedPrecondition, "libm.so.6 has no cudnnGetVersion"));
  EXPECT_OK(CheckCudnnVersion(91900));
  EXPECT_OK(CheckCudnnVersion(91501));
  EXPECT_THAT(CheckCudnnVersion(91500),
              StatusIs(absl::StatusCode::kFailedPrecondition, "cuDNN is 9.15.0; this build wants 9.x, from 9.15.1 on"));
  EXPECT_OK(CheckCudnnVersion(91501, 9));
  EXPECT_OK(CheckCudnnVersion(91801, 10));
  EXPECT_THAT(CheckCudnnVersion(91800, 12), StatusIs(absl::StatusCode::kFailedPrecondition,
                                                     "9.18.0; this build wants 9.x, from 9.18.1 on for sm_12x"));
  EXPECT_THAT(CheckCudnnVersion(100000), StatusIs(absl::StatusCode::kFailedPrecondition, "cuDNN is 10.0.0"));
}

class CudnnTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto api = CudnnApi::Load();
    if (!api.ok()) GTEST_SKIP() << api.status();
    api_ = *std::move(api);
    // What compiles engines' kernels is loaded with the library, and held.
    const std::string compiler = absl::StrCat("libnvrtc.so.", CUDART_VERSION / 1000);
    const bool is_held = dlopen(compiler.c_str(), RTLD_NOW | RTLD_NOLOAD) != nullptr;
    if (const auto there = LoadedLibrary::Open(compiler); !there.ok()) GTEST_SKIP() << there.status();
    ASSERT_TRUE(is_held) << compiler << " is there, and was not loaded";
    // Engines want a driver to be there. The toolkit's stub of it is enough for all but loading what they compiled.
    if (dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL) == nullptr) {
      const char* toolkit = std::getenv("CUDA_PATH");
      const std::string stub =
          absl::StrCat(toolkit == nullptr ? "/usr/local/cuda" : toolkit, "/lib64/stubs/libcuda.so");
      if (dlopen(stub.c_str(), RTLD_NOW | RTLD_LOCAL) == nullptr) GTEST_SKIP() << "no driver, and no " << stub;
    }
  }

  // `version`: compute capability times 100, as cuDNN counts.
  CudnnDescriptor Gpu(int version, int multiprocessors, int shared_bytes) {
    const std::string json = absl::StrCat(
        R"({"deviceName": "described", "cudaDeviceId": 0, "pciDeviceId": 0, "isTccDriver": 0, "driverVer": 13000,)",
        R"( "warpSize": 32, "maxThreadsPerBlock": 1024, "maxBlockSize": [1024, 1024, 64], "supportCoopLaunch": 1,)",
        R"( "maxGridSize": [2147483647, 65535, 65535], "regsPerBlock": 65536, "maxRegistersPerSM": 65536,)",
        R"( "maxSharedMemoryPerBlock": 49152, "reservedSharedMemoryPerBlock": 1024, "smClockRateKHz": 1400000,)",
        R"( "memClockRateKHz": 1600000, "l2CacheSize": 50331648, "totalGlobalMem": 85899345920,)",
        R"( "maxThreadsPerSM": 1536, "maxCtasPerSM": 24, "deviceVer": )", version, R"(, "multiProcessorCount": )",
        multiprocessors, R"(, "maxSharedMemoryPerBlockOptin": )", shared_bytes, "}");
    auto device = CudnnDeviceByJson(api_.get(), json);
    EXPECT_OK(device);
    return *std::move(device);
  }
  CudnnDescriptor Ampere() { return Gpu(800, 108, 166912); }
  CudnnDescriptor Hopper() { return Gpu(900, 132, 232448); }
  CudnnDescriptor Blackwell() { return Gpu(1000, 148, 232448); }
  // Cards: RTX 30, RTX 40, RTX 50.
  std::vector<CudnnDescriptor> Cards() {
    std::vector<CudnnDescriptor> cards;
    for (const auto& [version, multiprocessors] : {std::pair(860, 82), {890, 128}, {1200, 170}}) {
      cards.push_back(Gpu(version, multiprocessors, 101376));
    }
    return cards;
  }

  // An engine takes the graph, and compiles it; no more without a driver, where none is loaded. One that gets so far is
  // enough: that it fails is taken for a lack of memory, behind which no other is tried.
  void ExpectPlans(const SdpaGraph& graph, const CudnnDescriptor& gpu) {
    static decltype(&::cudnnBackendFinalize) finalize;
    finalize = api_->cudnnBackendFinalize;
    CudnnApi stopping = *api_;
    stopping.cudnnBackendFinalize = [](cudnnBackendDescriptor_t descriptor) {
      const cudnnStatus_t status = finalize(descriptor);
      const bool is_passed_over = CUDNN_STATUS_CATEGORY(status) == CUDNN_STATUS_NOT_SUPPORTED ||
                                  status == CUDNN_STATUS_INTERNAL_ERROR_COMPILATION_FAILED;
      return status == CUDNN_STATUS_SUCCESS || is_passed_over ? status
                                                              : CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED;
    };
    const absl::Status status = CudnnPlan::Make(&stopping, graph, gpu).status();
    if (status.ok()) return;
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kResourceExhausted, "engine "));
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kResourceExhausted, "cuLibraryLoadData"));
  }
  void ExpectPlansBoth(const SdpaProblem& problem, const CudnnDescriptor& gpu) {
    ASSERT_OK_AND_ASSIGN(const SdpaGraph forward, SdpaForwardGraph(problem));
    ExpectPlans(forward, gpu);
    ASSERT_OK_AND_ASSIGN(const SdpaGraph backward, SdpaBackwardGraph(problem));
    ExpectPlans(backward, gpu);
  }

  std::unique_ptr<CudnnApi> api_;
};

SdpaProblem Gpt2() { return {.B = 8, .T = 1024, .H = 12, .kv_heads = 12, .D = 64, .scale = 0.125}; }

TEST_F(CudnnTest, NamesItsVersion) { EXPECT_THAT(api_->version(), HasSubstr("cudnn-9.")); }

TEST_F(CudnnTest, ErrorsNameTheCallInTheLibrarysWords) {
  auto tensor = CudnnDescriptor::New(api_.get(), CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  ASSERT_OK(tensor);
  EXPECT_THAT(tensor->Finalize(),
              StatusIs(absl::StatusCode::kInternal, "cudnnBackendFinalize: CUDNN_STATUS_BAD_PARAM"));
  EXPECT_THAT(tensor->Set(CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, int64_t{1}).message(),
              HasSubstr("attribute 9: cudnnBackendSetAttribute: CUDNN_STATUS_"));
  EXPECT_FALSE(CudnnDeviceByJson(api_.get(), "{}").ok());
}

TEST_F(CudnnTest, PlansAModelsAttentionOnEachGeneration) {
  SdpaProblem problem = Gpt2();
  for (const Dtype act : {Dtype::kBf16, Dtype::kF16}) {
    problem.act = act;
    ExpectPlansBoth(problem, Ampere());
    ExpectPlansBoth(problem, Hopper());
    ExpectPlansBoth(problem, Blackwell());
  }
}

TEST_F(CudnnTest, PlansAModelsAttentionOnCardsWithLessSharedMemory) {
  SdpaProblem problem = Gpt2();
  for (const CudnnDescriptor& card : Cards()) {
    for (const int64_t D : {64, 128}) {
      problem.D = D;
      problem.kv_heads = 12;
      ExpectPlansBoth(problem, card);
      problem.kv_heads = 4;
      ExpectPlansBoth(problem, card);
    }
  }
}

TEST_F(CudnnTest, PlansEveryProblemThatIsTaken) {
  SdpaProblem problem = Gpt2();
  problem.T = 191;
  for (const int64_t D : {8, 24, 80, 128, 256}) {
    problem.D = D;
    ASSERT_OK(CheckFusedAttention(problem, 9));
    ExpectPlansBoth(problem, Hopper());
  }
  problem = Gpt2();
  problem.T = 2;
  ExpectPlansBoth(problem, Hopper());
}

TEST_F(CudnnTest, PlansOtherMasksAndSharedHeads) {
  SdpaProblem problem = Gpt2();
  problem.kv_heads = 4;
  ExpectPlansBoth(problem, Hopper());
  problem.kv_heads = 1;
  ExpectPlansBoth(problem, Hopper());
  problem.causal = false;
  ExpectPlansBoth(problem, Hopper());
  problem.kv_heads = 12;
  ExpectPlansBoth(problem, Hopper());
}

TEST_F(CudnnTest, PlansMasksOfOddShapes) {
  SdpaProblem all = {.B = 2,
                     .T = 191,
                     .H = 12,
                     .kv_heads = 4,
                     .D = 64,
                     .scale = 0.125,
                     .window = 100,
                     .dropout = 0.1,
                     .documents = true};
  SdpaProblem bidirectional = all;
  bidirectional.causal = false;
  bidirectional.window = 0;
  for (SdpaProblem problem : {all, bidirectional}) {
    for (const int64_t D : {8, 80, 128}) {
      problem.D = D;
      ExpectPlansBoth(problem, Hopper());
    }
    problem.T = 2;
    ExpectPlansBoth(problem, Hopper());
    problem.T = 192;
    problem.act = Dtype::kF16;
    ExpectPlansBoth(problem, Hopper());
    ExpectPlansBoth(problem, Cards().front());
  }
  bidirectional.documents = false;
  bidirectional.T = 192;
  ExpectPlansBoth(bidirectional, Hopper());
}

// All that may be asked for together too, of every GPU for which CheckFusedAttention takes it.
TEST_F(CudnnTest, PlansWindowsDocumentsAndDropout) {
  std::vector<std::pair<int, CudnnDescriptor>> gpus;
  gpus.emplace_back(8, Ampere());
  gpus.emplace_back(9, Hopper());
  gpus.emplace_back(10, Blackwell());
  for (CudnnDescriptor& card : Cards()) gpus.emplace_back(12, std::move(card));
  for (const auto& [sm_major, gpu] : gpus) {
    SdpaProblem problem = Gpt2();
    problem.kv_heads = 4;
    problem.window = 256;
    ExpectPlansBoth(problem, gpu);
    problem.documents = true;
    ExpectPlansBoth(problem, gpu);
    problem.dropout = 0.1;
    const bool drops = CheckFusedAttention(problem, sm_major).ok();
    if (drops) ExpectPlansBoth(problem, gpu);
    problem.causal = false;
    problem.window = 0;
    if (!drops) problem.dropout = 0;
    ExpectPlansBoth(problem, gpu);
  }
}

TEST_F(CudnnTest, PlansSomeHeadsOfASequence) {
  SdpaProblem whole = {.B = 1, .T = 8192, .H = 32, .kv_heads = 32, .D = 128, .scale = 0.09};
  const auto part = [&] { return CutSmaller(whole, int64_t{4} << 30, int64_t{1} << 28, int64_t{1} << 30); };
  ASSERT_EQ(part().H, 8);
  ExpectPlansBoth(part(), Hopper());
  whole.kv_heads = 8;
  ASSERT_EQ(part().H, 8);
  ExpectPlansBoth(part(), Hopper());
  ExpectPlansBoth(part(), Ampere());
  ExpectPlansBoth(part(), Blackwell());
}

TEST_F(CudnnTest, WhatItDoesNotSupportIsNoError) {
  SdpaProblem problem = Gpt2();
  problem.D = 256;
  ASSERT_OK_AND_ASSIGN(const SdpaGraph graph, SdpaBackwardGraph(problem));
  EXPECT_THAT(CudnnPlan::Make(api_.get(), graph, Ampere()).status(),
              StatusIs(absl::StatusCode::kUnimplemented, "no engine of cuDNN takes it"));
}

// The library's plans, or what else a test says, end as it says, in turn; plans want 42 bytes. All else is its own.
struct FakePlans {
  static inline CudnnApi real;
  static inline std::set<cudnnBackendDescriptor_t> plans;
  static inline std::vector<cudnnStatus_t> ends;
  static inline cudnnBackendDescriptorType_t faked;
  static inline size_t tried = 0;

  static CudnnApi Of(const CudnnApi& library, std::vector<cudnnStatus_t> statuses,
                     cudnnBackendDescriptorType_t type = CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR) {
    faked = type;
    real = library;
    CudnnApi api = library;
    ends = std::move(statuses);
    tried = 0;
    api.cudnnBackendCreateDescriptor = [](cudnnBackendDescriptorType_t type, cudnnBackendDescriptor_t* made) {
      const cudnnStatus_t status = real.cudnnBackendCreateDescriptor(type, made);
      plans.erase(*made);
      if (type == faked) plans.insert(*made);
      return status;
    };
    api.cudnnBackendFinalize = [](cudnnBackendDescriptor_t descriptor) {
      if (plans.count(descriptor) == 0) return real.cudnnBackendFinalize(descriptor);
      return ends[std::min(tried++, ends.size() - 1)];
    };
    api.cudnnBackendGetAttribute = [](cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                                      cudnnBackendAttributeType_t type, int64_t asked, int64_t* count, void* elements) {
      if (plans.count(descriptor) == 0) {
        return real.cudnnBackendGetAttribute(descriptor, name, type, asked, count, elements);
      }
      *static_cast<int64_t*>(elements) = 42;
      return CUDNN_STATUS_SUCCESS;
    };
    return api;
  }
};

TEST_F(CudnnTest, AnEngineThatFailsIsPassedOverWhateverItSays) {
  ASSERT_OK_AND_ASSIGN(const SdpaGraph graph, SdpaForwardGraph(Gpt2()));
  const CudnnDescriptor gpu = Hopper();
  const CudnnApi works = FakePlans::Of(*api_, {CUDNN_STATUS_SUCCESS});
  ASSERT_OK_AND_ASSIGN(const auto first, CudnnPlan::Make(&works, graph, gpu));
  EXPECT_EQ(first->workspace_bytes(), 42);
  for (const cudnnStatus_t status :
       {CUDNN_STATUS_EXECUTION_FAILED, CUDNN_STATUS_SUBLIBRARY_VERSION_MISMATCH, CUDNN_STATUS_INTERNAL_ERROR,
        CUDNN_STATUS_INTERNAL_ERROR_COMPILATION_FAILED, CUDNN_STATUS_NOT_SUPPORTED}) {
    SCOPED_TRACE(status);
    const CudnnApi fails_once = FakePlans::Of(*api_, {status, CUDNN_STATUS_SUCCESS});
    ASSERT_OK_AND_ASSIGN(const auto next, CudnnPlan::Make(&fails_once, graph, gpu));
    EXPECT_GT(next->place(), first->place());
    const CudnnApi fails = FakePlans::Of(*api_, {status});
    EXPECT_THAT(CudnnPlan::Make(&fails, graph, gpu).status(),
                StatusIs(absl::StatusCode::kUnimplemented,
                         absl::StrCat("; engine ", first->engine(), ": cudnnBackendFinalize: CUDNN_STATUS_")));
    EXPECT_GT(FakePlans::tried, 1u);
  }
}

TEST_F(CudnnTest, EnginesThatComputeOtherwiseArePassedOverForTheNextAsLongAsThereIsOne) {
  SdpaProblem problem = Gpt2();
  problem.dropout = 0.1;
  ASSERT_OK_AND_ASSIGN(const SdpaGraph graph, SdpaBackwardGraph(problem));
  const CudnnDescriptor gpu = Hopper();
  const CudnnApi works = FakePlans::Of(*api_, {CUDNN_STATUS_SUCCESS});
  std::vector<int64_t> engines;
  while (true) {
    const auto plan = CudnnPlan::Make(&works, graph, gpu, engines);
    if (!plan.ok()) {
      EXPECT_THAT(plan.status(), StatusIs(absl::StatusCode::kUnimplemented, "is passed over"));
      break;
    }
    ASSERT_EQ(std::count(engines.begin(), engines.end(), (*plan)->engine()), 0);
    engines.push_back((*plan)->engine());
  }
  EXPECT_GT(engines.size(), 1u) << "Hopper has one of its own, and Ampere's";
}

TEST_F(CudnnTest, ALibraryThatCannotListItsEnginesTakesNothing) {
  ASSERT_OK_AND_ASSIGN(const SdpaGraph graph, SdpaForwardGraph(Gpt2()));
  const auto make = [&](cudnnStatus_t status) {
    const CudnnApi api = FakePlans::Of(*api_, {status}, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    return CudnnPlan::Make(&api, graph, Hopper()).status();
  };
  EXPECT_THAT(make(CUDNN_STATUS_SUBLIBRARY_LOADING_FAILED),
              StatusIs(absl::StatusCode::kUnimplemented, "heuristic: cudnnBackendFinalize: CUDNN_STATUS_SUBLIBRARY_"));
  EXPECT_THAT(make(CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED),
              StatusIs(absl::StatusCode::kResourceExhausted, "heuristic"));
}

TEST_F(CudnnTest, WithoutMemoryNoOtherEngineIsTaken) {
  ASSERT_OK_AND_ASSIGN(const SdpaGraph graph, SdpaForwardGraph(Gpt2()));
  const CudnnApi api =
      FakePlans::Of(*api_, {CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED, CUDNN_STATUS_SUCCESS});
  EXPECT_THAT(CudnnPlan::Make(&api, graph, Hopper()).status(),
              StatusIs(absl::StatusCode::kResourceExhausted, "engine "));
  EXPECT_EQ(FakePlans::tried, 1u);
}

TEST_F(CudnnTest, ALibraryThatDoesNotStartTakesNothing) {
  int gpus = 0;
  if (cudaGetDeviceCount(&gpus) == cudaSuccess && gpus > 0) GTEST_SKIP() << "it would start here";
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<CudnnLibrary> library, CudnnLibrary::Load(9));
  ::testing::internal::CaptureStderr();
  for (const int64_t T : {1024, 512}) {
    SdpaProblem problem = Gpt2();
    problem.T = T;
    EXPECT_THAT(library->Takes(problem), IsOkAndHolds(false));
    EXPECT_THAT(library->Algorithm(problem), StatusIs(absl::StatusCode::kFailedPrecondition, "was not planned"));
  }
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(said, HasSubstr("attention_by_plain_kernel B=8 T=512"));
  EXPECT_THAT(said, HasSubstr("WARNING attention_is_plain_and_slow why="));
  EXPECT_THAT(said, HasSubstr("cudnnCreate: CUDNN_STATUS_"));
}

class NoMasks : public SdpaMaskKernels {
 public:
  absl::Status Kept(int64_t, const DeviceDropout&, void*) const override { return absl::OkStatus(); }
  absl::Status DocumentBias(int64_t, int64_t, const Documents&, void*) const override { return absl::OkStatus(); }
};

TEST_F(CudnnTest, AnAnswerOfNoNeedsNoGpuAndStays) {
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<CudnnLibrary> library, CudnnLibrary::Load(8));
  SdpaProblem problem = Gpt2();
  problem.act = Dtype::kF32;
  EXPECT_THAT(library->Takes(problem), IsOkAndHolds(false));
  EXPECT_THAT(library->Takes(problem), IsOkAndHolds(false));
  EXPECT_THAT(library->Forward(nullptr, problem, {}, NoMasks()),
              StatusIs(absl::StatusCode::kFailedPrecondition, "was not planned"));
  EXPECT_EQ(library->held_bytes(), 0);
  problem.H = 0;
  EXPECT_THAT(library->Takes(problem), StatusIs(absl::StatusCode::kInvalidArgument, "H 0"));
}

}  // namespace
}  // namespace eps::worker::cuda
