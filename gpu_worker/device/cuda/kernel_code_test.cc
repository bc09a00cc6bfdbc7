#include "gpu_worker/device/cuda/kernel_code.h"

#include "gtest/gtest.h"

namespace eps::worker::cuda {
namespace {

TEST(KernelCodeTest, MachineCodeIsNamedByItsGpuAndNvcc) {
  EXPECT_EQ(NameOf({.ptx = 80, .machine = 80}, "13.0", "13.1"), "kernels of CUDA 13.0 for sm_80");
  EXPECT_EQ(NameOf({.ptx = 80, .machine = 89}, "13.0", "13.1"), "kernels of CUDA 13.0 for sm_89");
  EXPECT_EQ(NameOf({.ptx = 90, .machine = 90}, "13.0", "13.1"), "kernels of CUDA 13.0 for sm_90");
  EXPECT_EQ(NameOf({.ptx = 100, .machine = 120}, "13.0", "13.1"), "kernels of CUDA 13.0 for sm_120");
}

TEST(KernelCodeTest, WhatTheDriverMadeOfPtxIsNamedByTheDriver) {
  EXPECT_EQ(NameOf({.ptx = 80, .machine = 90}, "13.0", "13.1"),
            "kernels of CUDA 13.0 from compute_80 by CUDA 13.1's driver");
  EXPECT_EQ(NameOf({.ptx = 80, .machine = 130}, "13.0", "14.2"),
            "kernels of CUDA 13.0 from compute_80 by CUDA 14.2's driver");
}

}  // namespace
}  // namespace eps::worker::cuda
