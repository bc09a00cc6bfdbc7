#include "gpu_worker/plan/profile.h"

#include "absl/strings/match.h"
#include "gpu_worker/plan/layer_operations.h"

namespace eps::worker {
namespace {

// Two to eight cores of a server, DDR4: an 80 GFLOP/s core, memory of 20 GB/s, and threads that share the cores.
Profile NominalCpu() {
  Profile profile;
  profile.hardware = "an ordinary cpu";
  profile.device = "cpu";
  profile.threads = 2;
  profile.gradient_bytes_per_second = 10e9;
  profile.in_bytes_per_second = profile.out_bytes_per_second = 8e9;
  profile.update_bytes_per_second = 20e9;
  profile.network_bytes_per_second = 1.2e9;
  profile.handover_seconds = 10e-6;
  profile.between_steps_seconds = 1e-3;
  profile.sharing = {{{1, 0.7, 0.7, 0.5}, {0.7, 1, 0.7, 0.6}, {0.7, 0.7, 1, 0.6}, {0.5, 0.7, 0.7, 1}}};
  return profile;
}

// A current GPU on a link of 16 lanes, fourth generation.
Profile NominalGpu() {
  Profile profile;
  profile.hardware = "an ordinary GPU";
  profile.device = "cuda";
  profile.gradient_bytes_per_second = 1.5e12;
  profile.in_bytes_per_second = profile.out_bytes_per_second = 24e9;
  profile.update_bytes_per_second = 80e9;
  profile.network_bytes_per_second = 1.2e9;
  profile.handover_seconds = 5e-6;
  profile.between_steps_seconds = 1e-3;
  // Transfers meet in the host's memory, with each other and with updates.
  profile.sharing = {{{1, 0.98, 0.98, 1}, {1, 1, 0.85, 0.8}, {1, 0.85, 1, 0.8}, {1, 0.85, 0.85, 1}}};
  return profile;
}

// A GPT-2 block of width 768, over 512 tokens in samples of 256; the head of a vocabulary of 32,768.
void AddNominalLayers(double flops, double bytes_per_second, Profile& profile) {
  LayerShape shape;
  shape.B = 2, shape.T = 256, shape.C = 768, shape.H = shape.kv_heads = 12, shape.D = 64, shape.F = 3072;
  shape.V = 32768;
  for (const LayerKind kind : kLayerKinds) {
    const LayerOperations operations = OperationsOf(kind, shape);
    const double memory = operations.bytes / bytes_per_second;
    profile.layers.push_back({.kind = kind,
                              .shape = shape,
                              .forward_seconds = operations.forward / flops + memory,
                              .recompute_seconds = operations.recompute / flops + memory,
                              .backward_seconds = operations.backward / flops + memory});
  }
}

}  // namespace

absl::string_view ActivityName(Activity activity) {
  switch (activity) {
    case Activity::kCompute:
      return "compute";
    case Activity::kIn:
      return "in";
    case Activity::kOut:
      return "out";
    case Activity::kUpdate:
      return "update";
  }
  return "unknown";
}

absl::string_view LayerKindName(LayerKind kind) {
  switch (kind) {
    case LayerKind::kEmbedding:
      return "embedding";
    case LayerKind::kBlock:
      return "block";
    case LayerKind::kHead:
      return "head";
  }
  return "unknown";
}

Profile NominalProfile(const std::string& device) {
  const bool on_gpu = absl::StartsWith(device, "cuda");
  Profile profile = on_gpu ? NominalGpu() : NominalCpu();
  AddNominalLayers(on_gpu ? 150e12 : 120e9, on_gpu ? 1.5e12 : 10e9, profile);
  profile.measured = "nominal";
  return profile;
}

}  // namespace eps::worker
