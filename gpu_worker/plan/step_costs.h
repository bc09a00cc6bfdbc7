#ifndef EPS_GPU_WORKER_PLAN_STEP_COSTS_H_
#define EPS_GPU_WORKER_PLAN_STEP_COSTS_H_

#include <string>

#include "common/model/model_spec.h"
#include "common/spec/run_config.h"
#include "gpu_worker/device/kernels.h"
#include "gpu_worker/layers/layer_shape.h"
#include "gpu_worker/plan/group_parts.h"
#include "gpu_worker/plan/profile.h"
#include "gpu_worker/plan/timeline.h"

namespace eps::worker {

// How weights come, and gradients go.
enum class LinkKind {
  kInPlace,     // kernels read the daemon's memory (cpu, shared memory); a gradient is copied once
  kHostMemory,  // one copy each, between the daemon's memory and the arena (cuda, shared memory)
  kNetwork,     // gRPC
};
// device: "cpu", "cuda:0". AUTO means shared memory here: a plan does not know where its worker will be.
LinkKind LinkOf(const std::string& device, TransportChoice transport);

// What each step of a run costs on a machine that was measured. A layer that was measured in its shape, with a backward
// if the run needs one, has its times; for others those of the shape nearest in width and tokens, one that has the
// backward before any that has none, by their operations and bytes. Where none has, the backward is made from the
// forward.
//
// group: of which the worker is the member of its rank; null: it goes alone. Exchanges were not measured: with the
// `cpu` device both ways are copies within the host's memory, one after the other; GPUs are taken to reach each other,
// both ways at once, as fast as they reach the host. Members that come late to an exchange are not in it.
StepCosts CostsOf(const Profile& profile, const ModelSpec& model, const RunConfig& run, const KernelSizes& kernels,
                  LinkKind link, const GroupParts* group = nullptr);

// The machine as one of several workers has it that are alike and do the same at once (StepOnPaper). Over a network
// each is taken to have a host of its own, also where a group is not.
Profile BesideOthers(Profile profile, LinkKind link, int workers);

// Whether a layer takes as long in one shape as in the other: of dropout it counts whether there is any, as a mask
// costs as much as a norm.
bool HaveSameTimes(LayerKind kind, const LayerShape& a, const LayerShape& b);

// Whether every kind of layer of the run was measured in its very shape.
bool HasExactTimes(const Profile& profile, const ModelSpec& model, const RunConfig& run, const KernelSizes& kernels);

}  // namespace eps::worker

#endif  // EPS_GPU_WORKER_PLAN_STEP_COSTS_H_
