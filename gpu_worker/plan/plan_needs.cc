#include "gpu_worker/plan/plan_needs.h"

#include "absl/strings/str_cat.h"

namespace eps::worker {
namespace {

// Far beyond what a device could compute, and low enough that no size overflows and the steps of a pass can be listed.
constexpr int64_t kMostTurns = int64_t{1} << 22;                           // layers * micro-batches of a pass
constexpr int64_t kMostBoundaryBytes = int64_t{1} << 36;                   // of one micro-batch
constexpr double kMostRoutedRows = 0x1p31 - 1, kMostRoutedBytes = 0x1p40;  // the same

int PassVnodes(const PlanRequest& request) {
  const int all = request.run->batch.virtual_nodes;
  return request.max_pass_vnodes > 0 ? std::min(request.max_pass_vnodes, all) : all;
}

}  // namespace

Profile ProfileOf(const PlanRequest& request) {
  return request.profile != nullptr ? *request.profile : NominalProfile("cpu");
}

// What is bounded of a boundary is here as often as a token is routed; rows have numbers of 32 bits.
absl::Status CheckRoutedRows(const RunConfig& run, const KernelSizes& kernels) {
  const ModelConfig& config = run.model;
  const double rows =
      static_cast<double>(run.batch.micro_batch * config.context) * static_cast<double>(config.experts.per_token);
  const double row_bytes = static_cast<double>(std::max(config.d_model, 2 * config.d_ff)) *
                           static_cast<double>(SizeOf(kernels.compute_dtype));
  if (rows <= kMostRoutedRows && rows * row_bytes <= kMostRoutedBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "model.experts.per_token: ", config.experts.per_token, " for each of ", run.batch.micro_batch, " sequences of ",
      config.context, " tokens are ", rows, " rows of ", row_bytes, " bytes at once, must be at most ", kMostRoutedRows,
      " rows and ", kMostRoutedBytes, " bytes; lower batch.micro_batch or model.context"));
}

absl::Status CheckPass(const PlanRequest& request) {
  const BatchConfig& batch = request.run->batch;
  const auto num_layers = static_cast<int64_t>(request.model->layers.size());
  const int64_t turns = num_layers * PassVnodes(request) * batch.micro_batches;
  if (turns > kMostTurns) {
    return absl::InvalidArgumentError(absl::StrCat(
        "batch.micro_batches: ", batch.micro_batches, " of each of ", PassVnodes(request), " virtual nodes in ",
        num_layers, " layers are ", turns, " turns of a pass, must be at most ", kMostTurns));
  }
  const ModelConfig& config = request.model->config;
  const int64_t boundary_bytes =
      batch.micro_batch * config.context * config.d_model * SizeOf(request.kernels.compute_dtype);
  if (boundary_bytes > kMostBoundaryBytes) {
    return absl::InvalidArgumentError(absl::StrCat("batch.micro_batch: ", batch.micro_batch, " sequences of ",
                                                   config.context, " tokens, ", config.d_model, " wide, are ",
                                                   boundary_bytes, " bytes, must be at most ", kMostBoundaryBytes));
  }
  return config.experts.are_on() ? CheckRoutedRows(*request.run, request.kernels) : absl::OkStatus();
}

PlanNeeds NeedsOf(const PlanRequest& request) {
  const ModelSpec& model = *request.model;
  const RunConfig& run = *request.run;
  const LayerShape shape = MakeLayerShape(model, run, request.kernels.compute_dtype);
  PlanNeeds needs;
  for (const LayerSpec& layer : model.layers) {
    const LayerSizes sizes = SizesOf(model, layer, shape, request.kernels);
    const auto raise = [&](int64_t LayerSizes::*field) {
      needs.largest.*field = std::max(needs.largest.*field, sizes.*field);
    };
    for (auto field :
         {&LayerSizes::wire_bytes, &LayerSizes::expanded_bytes, &LayerSizes::gradient_bytes, &LayerSizes::inner_bytes,
          &LayerSizes::forward_scratch_bytes, &LayerSizes::backward_scratch_bytes}) {
      raise(field);
    }
    needs.wire_bytes.push_back(sizes.wire_bytes);
    needs.push_elems = std::max(needs.push_elems, layer.trainable_elems);
    if (sizes.kept_logits_bytes > 0) needs.keeping_head_bytes = sizes.backward_scratch_bytes + sizes.kept_logits_bytes;
    if (layer.kind == LayerKind::kHead) needs.head_push_elems = layer.trainable_elems;
    if (layer.kind != LayerKind::kBlock) continue;
    needs.block_wire_bytes = std::max(needs.block_wire_bytes, sizes.wire_bytes);
    needs.block_gradient_bytes = std::max(needs.block_gradient_bytes, sizes.gradient_bytes);
    // Any of them, as a step may leave the last ones out.
    needs.block_push_elems = std::max(needs.block_push_elems, layer.trainable_elems);
    if (layer.id >= model.lowest_trainable_layer()) ++needs.backward_blocks;
  }
  needs.boundary_bytes = shape.boundary_bytes();
  needs.token_bytes = shape.token_bytes();
  if (shape.is_rotary) needs.rotary_bytes = shape.T * shape.D * int64_t{sizeof(float)};
  needs.num_layers = static_cast<int64_t>(model.layers.size());
  needs.num_vnodes = run.batch.virtual_nodes;
  needs.max_pass_vnodes = PassVnodes(request);
  needs.micro_batches = run.batch.micro_batches;
  needs.items = int64_t{needs.max_pass_vnodes} * needs.micro_batches;
  needs.gradients = run.precision.gradients;
  needs.max_group_members = request.max_group_members;
  needs.relay = run.relay;
  needs.host_stash_bytes = request.host_stash_bytes;
  return needs;
}

}  // namespace eps::worker
