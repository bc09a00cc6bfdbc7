#include "eps_server/memory/daemon_memory.h"

#include <array>

#include "absl/strings/str_cat.h"
#include "common/base/byte_size.h"
#include "eps_server/aggregation/window_size.h"
#include "eps_server/checkpoint/capture_size.h"
#include "eps_server/optimizer/hold_bytes.h"

namespace eps::server {
namespace {

std::string WhatMomentsAre(const DaemonMemory& memory) {
  if (memory.store.moment_bytes == 0) return "none: SGD without momentum";
  switch (memory.moments) {
    case MomentFormat::kFp32:
      break;
    case MomentFormat::kBf16:
      return "bf16, rounded stochastically (precision.moments: FP8 takes half of it)";
    case MomentFormat::kFp8:
      return "fp8 in blocks of 32, rounded stochastically";
  }
  return "fp32 (precision.moments: BF16 takes half of it, FP8 a quarter)";
}

std::string WhatCaptureMeans(const DaemonMemory& memory) {
  if (memory.capture_bytes == memory.capture_all_bytes) {
    return "all of it, so that no update waits for the disk (checkpoint.buffer_bytes)";
  }
  return absl::StrCat("of ", FormatByteSize(memory.capture_all_bytes),
                      ": updates wait if the disk needs more than a step for the rest (checkpoint.buffer_bytes)");
}

const char* WhatVersionsAre(const DaemonMemory& memory) {
  if (memory.wire_versions == 1) {
    return memory.defers_updates
               ? "one version (precision.wire_versions), as updates wait for the whole step"
               : "one version (precision.wire_versions): a lost worker costs the steps since the newest "
                 "checkpoint";
  }
  return memory.defers_updates
             ? "two versions; precision.wire_versions: 1 takes half of it, at no cost here, as updates wait "
               "for the whole step"
             : "two versions, so that a lost worker's part is run again as it was; precision.wire_versions: "
               "1 takes half of it, and a lost worker then costs the steps since the newest checkpoint";
}

// What updates alone read.
std::array<DaemonMemoryLine, 2> DescribeState(const DaemonMemory& memory) {
  const StoreSizes& store = memory.store;
  if (store.offloaded_bytes == 0) {
    return {{{"rest of the masters", store.rest_bytes, "what the wire form lacks of fp32"},
             {"optimizer moments", store.moment_bytes, WhatMomentsAre(memory)}}};
  }
  const int64_t all_bytes = store.rest_bytes + store.moment_bytes;
  return {{{"state that stays in memory", all_bytes - store.offloaded_bytes,
            absl::StrCat("of ", FormatByteSize(all_bytes),
                         ", masters' rest and moments (optimizer_offload.memory_bytes); the others lie on a disk")},
           {"state on its way", store.frame_bytes, "buffers of what is read from the disk and written back"}}};
}

}  // namespace

DaemonMemory ComputeDaemonMemory(const ModelSpec& model, const RunConfig& run, int workers) {
  return {
      .store = ComputeStoreSizes(model, run),
      .moments = run.precision.moments,
      .wire_versions = run.precision.wire_versions,
      .defers_updates = run.defers_updates(),
      .frozen_format = model.config.frozen_format,
      .contribution_window_bytes = DefaultWindowBytes(model, run.batch.virtual_nodes, run.precision.gradients, workers),
      .hold_bytes = HoldBytes(model, run),
      .capture_bytes = CaptureBufferBytes(model, run),
      .capture_all_bytes = CaptureBytes(model, run),
      .checkpoint_bytes = kCheckpointBufferBytes + kManifestBytesPerStep * run.steps};
}

std::vector<DaemonMemoryLine> Describe(const DaemonMemory& memory) {
  const std::array<DaemonMemoryLine, 2> state = DescribeState(memory);
  std::vector<DaemonMemoryLine> lines = {
      {"weights on the wire", memory.store.wire_bytes, WhatVersionsAre(memory)},
      state[0],
      state[1],
      {"gradients in flight", memory.contribution_window_bytes,
       "what the workers push of two layers; what does not fit waits in them"},
      {"gradients held", memory.hold_bytes, "fp32 sums until the step's norm is known: EXACT clipping, FP16"},
      {"state copied for a checkpoint", memory.capture_bytes, WhatCaptureMeans(memory)},
      {"a checkpoint being written", memory.checkpoint_bytes, "beside it: a part that is read back, each step's loss"},
      {"constant", memory.constant_bytes, "code, libraries, transport buffers"},
  };
  auto frozen = lines.begin() + 1;
  if (memory.frozen_format.has_value()) {
    frozen = lines.insert(
        frozen,
        {"frozen matrices of blocks", memory.store.quantized_bytes,
         absl::StrCat("in ", NameOf(*memory.frozen_format), ", ",
                      QuantizedBytes(*memory.frozen_format, kQuantizedBlockElems) / 2, "/", kQuantizedBlockElems / 2,
                      " bytes a parameter (precision.frozen); one version for all steps, without master and "
                      "moments")});
  }
  if (memory.store.frozen_bytes > 0) {
    lines.insert(frozen, {"frozen weights on the wire", memory.store.frozen_bytes,
                          memory.store.quantized_bytes > 0
                              ? "what else is frozen: tables, norms, biases"
                              : "one version for all steps, without master and moments (model.freeze, model.lora)"});
  }
  return lines;
}

}  // namespace eps::server
