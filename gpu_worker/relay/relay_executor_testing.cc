#include "gpu_worker/relay/relay_executor_testing.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/base/ids.h"
#include "common/choices/choices.h"
#include "common/model/layer_drop.h"
#include "common/model/model_spec.h"
#include "common/numeric/bf16.h"
#include "common/numeric/fp16.h"
#include "common/numeric/philox.h"
#include "common/numeric/quantized.h"
#include "common/schedule/vnode_batch.h"
#include "common/spec/run_config.h"
#include "common/tensor/dtype.h"
#include "common/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gpu_worker/device/cpu/cpu_device.h"
#include "gpu_worker/device/cpu/cpu_kernel_sizes.h"
#include "gpu_worker/device/cuda/cuda_device.h"
#include "gpu_worker/device/cuda/cuda_kernel_sizes.h"
#include "gpu_worker/device/cuda/emulator/emulated_runtime.h"
#include "gpu_worker/device/cuda/emulator/grid.h"
#include "gpu_worker/device/cuda/emulator/plain_matmul.h"
#include "gpu_worker/device/device.h"
#include "gpu_worker/device/kernels.h"
#include "gpu_worker/group/emulated_nccl.h"
#include "gpu_worker/group/group.h"
#include "gpu_worker/group/nccl_group.h"
#include "gpu_worker/group/shared_memory_group.h"
#include "gpu_worker/layers/reference_gpt2.h"
#include "gpu_worker/plan/arena_layout.h"
#include "gpu_worker/plan/group_parts.h"
#include "gpu_worker/plan/planner.h"
#include "gpu_worker/plan/relay_plan.h"
#include "gpu_worker/relay/device_with_memory_of_its_own.h"
#include "gpu_worker/relay/relay_executor.h"
#include "gpu_worker/transport/in_process.h"
#include "gpu_worker/transport/transport.h"
#include "gtest/gtest.h"

namespace eps::worker {

RunConfig SmallRun(Dtype dtype) {
  RunConfig run;
  run.model = {.num_layers = 3, .d_model = 24, .num_heads = 3, .context = 13, .vocab = 37, .init_seed = 11};
  run.batch = {.virtual_nodes = 4, .micro_batches = 2, .micro_batch = 2};
  run.precision = {.wire = dtype, .gradients = dtype};
  run.relay.inner = InnerPolicy::kRecompute;
  run.steps = 1;
  return run;
}

RunConfig SmallLlama(Dtype dtype) {
  RunConfig run = SmallRun(dtype);
  run.model = {.family = ModelFamily::kLlama, .num_layers = 3, .d_model = 64, .num_heads = 4, .context = 13};
  run.model.max_positions = 13;
  run.model.vocab = 37;
  run.model.num_kv_heads = 2;
  run.model.d_head = 32;  // queries, keys and values are one product
  run.model.d_ff = 64;
  run.model.tied_head = false;
  run.model.qkv_bias = true;
  return run;
}

std::vector<RunConfig> FrozenRuns(Dtype dtype) {
  std::vector<RunConfig> runs;
  const auto add = [&](RunConfig run, std::vector<std::string> freeze) {
    run.model.freeze = std::move(freeze);
    runs.push_back(std::move(run));
  };
  add(SmallRun(dtype), {"transformer.w*", "transformer.h.0.*"});
  add(SmallRun(dtype), {"transformer.h.1.*"});
  add(SmallRun(dtype), {"*", "!*.bias"});
  add(SmallRun(dtype), {"*", "!transformer.ln_f.*"});
  add(SmallRun(dtype), {"*.attn.*", "*.ln_2.*", "transformer.wpe.weight"});
  add(SmallRun(dtype), {"transformer.wte.weight"});
  add(SmallLlama(dtype), {"model.embed_tokens.weight", "lm_head.weight", "*.mlp.*"});
  add(SmallLlama(dtype), {"*_proj.weight", "!model.layers.2.*"});
  RunConfig adapted = SmallRun(dtype), llama = SmallLlama(dtype);
  adapted.model.lora = {.rank = 3, .alpha = 6, .dropout = 0.2};
  add(adapted, {"transformer.h.1.*"});
  llama.model.lora = {.rank = 8, .alpha = 2, .targets = {"q_proj", "v_proj", "down_proj"}};
  add(llama, {"*.q_proj.lora_B.weight"});
  return runs;
}

std::vector<RunConfig> QuantizedRuns(Dtype dtype) {
  std::vector<RunConfig> runs;
  const auto add = [&](RunConfig run, std::vector<std::string> freeze,
                       QuantizedFormat format = QuantizedFormat::kMxInt8) {
    run.model.freeze = std::move(freeze);
    run.model.frozen_format = format;
    runs.push_back(std::move(run));
  };
  RunConfig adapted = SmallRun(dtype), llama = SmallLlama(dtype), tables = SmallRun(dtype);
  adapted.model.lora = {.rank = 3, .alpha = 6, .dropout = 0.2};
  add(adapted, {"*.lora_A.*"});
  llama.model.lora = {.rank = 8, .alpha = 2, .targets = {"q_proj", "v_proj", "down_proj"}};
  add(llama, {}, QuantizedFormat::kNf4);
  // A table of fewer elements than a block, and of more bytes where the wire has 32 bits.
  tables.model.vocab = tables.model.d_model * 11;
  add(tables, {"transformer.h.*"});
  RunConfig experts = ExpertsRun(dtype);
  experts.model.lora = {.rank = 2, .alpha = 2};
  add(experts, {"!*.gate.weight"}, QuantizedFormat::kNf4);
  // Blocks of one kind, of all kinds, and that train.
  add(SmallRun(dtype), {"transformer.h.0.*", "transformer.h.1.attn.*", "!*.h.1.attn.c_proj.weight"},
      QuantizedFormat::kNf4);
  return runs;
}

RunConfig LlamaRun(Dtype dtype) {
  RunConfig run = SmallRun(dtype);
  run.model = {.family = ModelFamily::kLlama, .num_layers = 3, .d_model = 24, .num_heads = 6};
  run.model.context = run.model.max_positions = 13;
  run.model.vocab = 37;
  run.model.num_kv_heads = 2;
  run.model.d_head = 8;
  run.model.d_ff = 41;
  run.model.tied_head = false;
  run.model.qkv_bias = run.model.qk_norm = true;
  run.model.sliding_window = 7;
  run.model.rotary.theta = 100;
  run.model.attention_dropout = 0.1;
  run.model.init_seed = 11;
  return run;
}

RunConfig ExpertsRun(Dtype dtype) {
  RunConfig run = LlamaRun(dtype);
  run.model.sliding_window = 0;
  run.model.d_ff = 16;
  run.model.experts = {.num = 6, .per_token = 2, .balance = 0.5};
  return run;
}

RunConfig BertRun(Dtype dtype) {
  RunConfig run = SmallRun(dtype);
  run.model = {.family = ModelFamily::kBert, .num_layers = 3, .d_model = 32, .num_heads = 4};
  run.model.context = 13;
  run.model.max_positions = 17;
  run.model.vocab = 37;
  run.model.d_ff = 41;
  run.model.num_types = 3;
  run.model.embedding_dropout = run.model.residual_dropout = run.model.attention_dropout = 0.1;
  run.model.init_seed = 11;
  return run;
}

RunConfig ClassifierRun(Dtype dtype) {
  RunConfig run = BertRun(dtype);
  run.model.num_classes = 5;
  run.model.classifier_dropout = 0.2;
  run.data.documents = DocumentMode::kPadded;
  return run;
}

RunConfig DpoRun(Dtype dtype) {
  RunConfig run = SmallLlama(dtype);
  run.model.lora = {.rank = 3, .alpha = 6, .dropout = 0.2};
  run.data.documents = DocumentMode::kPadded;
  run.preferences = {.rule = PreferenceRule::kDpo, .beta = 0.5, .label_smoothing = 0.1};
  return run;
}

RunConfig SimPoRun(Dtype dtype) {
  RunConfig run = SmallRun(dtype);
  run.data.documents = DocumentMode::kPadded;
  run.preferences = {.rule = PreferenceRule::kSimPo, .beta = 2, .margin = 0.5};
  return run;
}

RunConfig RunOfSeveralChunks(Dtype dtype, int virtual_nodes) {
  RunConfig run = SmallRun(dtype);
  run.model = {.num_layers = 2, .d_model = 160, .num_heads = 2, .context = 7, .vocab = 5000, .init_seed = 11};
  run.batch = {.virtual_nodes = virtual_nodes, .micro_batches = 2, .micro_batch = 1};
  return run;
}

std::vector<std::vector<float>> Masters(const ModelSpec& model, Dtype wire) {
  std::vector<std::vector<float>> masters;
  for (const BlobSpec& blob : model.blobs) {
    std::vector<float> values(static_cast<size_t>(blob.num_elems));
    for (TensorSpec tensor : blob.tensors) {
      const bool is_scale = tensor.init == InitRule::kOnes;
      tensor.init = InitRule::kNormal;
      tensor.init_stddev = tensor.shape.size() >= 2 ? 0.2 : 0.1;
      float* out = values.data() + tensor.offset_elems;
      InitTensor(tensor, 3, out);
      for (int64_t i = 0; i < tensor.num_elems(); ++i) {
        if (is_scale) out[i] += 1;
        // The reference sees what is on the wire.
        if (wire == Dtype::kBf16) out[i] = ToFloat(ToBf16(out[i]));
        if (wire == Dtype::kF16) out[i] = ToFloat(ToFp16(out[i]));
      }
    }
    if (blob.is_quantized()) {
      std::vector<std::byte> wire_form(static_cast<size_t>(blob.wire_bytes(wire)));
      EncodeQuantized(*blob.quantized, values, 0, blob.num_elems, wire_form.data());
      DecodeQuantized(*blob.quantized, wire_form.data(), 0, blob.num_elems, absl::MakeSpan(values));
    }
    masters.push_back(std::move(values));
  }
  return masters;
}

Assignment MakeAssignment(const RunConfig& run) {
  Assignment assignment{.step = kStep};
  if (run.precision.gradients == Dtype::kF16) assignment.loss_scale = 1024;
  for (int vnode = 0; vnode < run.batch.virtual_nodes; ++vnode) {
    VnodeBatch batch{.vnode = vnode, .tokens = {}, .labels = {}};
    const int64_t n = run.batch.sequences_per_vnode() * run.model.context;
    for (int64_t i = 0; i < n; ++i) {
      const uint64_t bits = Mix64(static_cast<uint64_t>(vnode) * 1000 + static_cast<uint64_t>(i));
      batch.tokens.push_back(static_cast<int32_t>(bits % static_cast<uint64_t>(run.model.vocab)));
      const int64_t place = i % run.model.context, end = run.model.context - vnode;  // of the document; then padding
      if (run.data.has_documents()) batch.document_first.push_back(static_cast<int32_t>(place < end ? 0 : end));
      // One vnode says that all of its types are 0.
      if (run.model.num_types > 0 && vnode != 1) batch.types.push_back(static_cast<int32_t>((bits >> 20) % 2));
      if (run.model.is_classifier() && place != 0) continue;
      const bool counted = (bits >> 32) % 5 != 0;
      const auto label = static_cast<int32_t>((bits >> 40) % static_cast<uint64_t>(run.model.num_outputs()));
      batch.labels.push_back(counted ? label : kNotCounted);
      assignment.counted_tokens += counted ? 1 : 0;
    }
    assignment.vnodes.push_back(std::move(batch));
  }
  if (run.preferences.is_on()) assignment.counted_tokens = run.samples_per_step();
  return assignment;
}

Assignment Only(const Assignment& all, const std::vector<int>& vnodes) {
  Assignment some{.step = all.step, .counted_tokens = all.counted_tokens};
  some.loss_scale = all.loss_scale;
  some.dropped = all.dropped;
  for (const int v : vnodes) some.vnodes.push_back(all.vnodes[static_cast<size_t>(v)]);
  return some;
}

KernelSizes Way::kernels() const { return cuda.has_value() ? cuda::CudaKernelSizes(*cuda) : CpuKernelSizes(); }

std::unique_ptr<Device> Way::MakeDevice(int64_t arena_bytes, size_t worker) const {
  if (cuda.has_value()) {
    cuda::EmulatedTraits made = traits;
    if (!algorithms.empty()) {
      made.algorithms.clear();
      for (const std::string& name : algorithms.at(worker)) {
        const bool rises = name == "rising";
        made.algorithms.push_back({name, rises ? cuda::SumOrder::kRising : cuda::SumOrder::kFalling});
      }
    }
    return cuda::NewCudaDevice({.arena_bytes = arena_bytes, .act = *cuda, .graphs = graphs},
                               cuda::NewEmulatedRuntime(cuda::GridOrder::kForward, std::move(made)))
        .value();
  }
  std::unique_ptr<Device> device = NewCpuDevice({.arena_bytes = arena_bytes, .threads = threads}).value();
  if (own_memory) device = std::make_unique<DeviceWithMemoryOfItsOwn>(std::move(device));
  return device;
}

Worker::Worker(const ModelSpec& model, const RunConfig& run_in, const Way& way, InProcessStore& store, size_t index)
    : run(run_in), transport(&store), in_place(&model, run_in.precision.wire, &transport) {
  run.relay.inner = way.inner;
  run.relay.boundaries = way.boundaries;
  run.relay.resident = way.resident;
  run.relay.weight_slots = way.weight_slots;
  PlanRequest request{.model = &model,
                      .run = &run,
                      .kernels = way.kernels(),
                      .max_pass_vnodes = way.max_pass_vnodes,
                      .max_group_members = way.group ? static_cast<int>(way.workers.size()) : 0};
  if (way.more_bytes >= 0) request.cap_bytes = SmallestCapBytes(request) + way.more_bytes;
  plan = way.choice.has_value() ? LayArena(request, NeedsOf(request), *way.choice) : MakeRelayPlan(request).value();
  if (plan.depth_first_blocks > 0 && plan.inner.swapped > 0) {
    EXPECT_THAT(plan.leaving_inner_slots, ::testing::Not(::testing::IsEmpty()));  // so that this is tried, too
  }
  device = way.MakeDevice(plan.arena_bytes, index);
  executor = RelayExecutor::Create({.model = &model,
                                    .run = &run,
                                    .device = device.get(),
                                    .transport = way.in_place ? static_cast<Transport*>(&in_place) : &transport,
                                    .plan = plan,
                                    .witness = way.witness,
                                    .push_piece_bytes = way.push_piece_bytes})
                 .value();
  if (!way.choices.has_value()) return;
  executor->Survey(*device->survey());
  EXPECT_OK(device->Follow(*way.choices));
}

Choices ChoicesOf(const ModelSpec& model, const RunConfig& run, const Way& way, ChoiceRule rule) {
  InProcessStore store(&model, run.batch.virtual_nodes, run.precision.wire);
  Worker worker(model, run, way, store);
  worker.executor->Survey(*worker.device->survey());
  return worker.device->Choose(rule).value();
}

void RelayExecutorTest::Use(const RunConfig& run) {
  run_ = run;
  model_ = BuildModel(run.model).value();
  masters_ = Masters(model_, run.precision.wire);
  all_ = MakeAssignment(run);
}

void RelayExecutorTest::UseWithDropped(RunConfig run, const std::vector<LayerId>& dropped) {
  run.layer_drop.share = 0.5;
  const ModelSpec model = BuildModel(run.model).value();
  while (LayerDrop(BuildModel(run.model).value(), run.layer_drop).DroppedIn(kStep) != dropped) ++run.model.init_seed;
  Use(run);
  all_.dropped = dropped;
}

std::unique_ptr<InProcessStore> RelayExecutorTest::NewStore() {
  auto store = std::make_unique<InProcessStore>(&model_, run_.batch.virtual_nodes, run_.precision.wire);
  Publish(*store);
  return store;
}

void RelayExecutorTest::Publish(InProcessStore& store, StepId step) {
  for (const BlobSpec& blob : model_.blobs) {
    store.Publish(blob.id, ReadVersion(step), masters_[static_cast<size_t>(blob.id.value())]);
  }
}

StepOutcome RelayExecutorTest::RunStep(const Way& way) {
  std::unique_ptr<InProcessStore> store = NewStore();
  StepOutcome outcome;
  if (way.group) {
    RunAsGroup(way, *store, outcome);
    Collect(*store, outcome);
    return outcome;
  }
  std::vector<std::vector<int>> workers = way.workers;
  if (workers.empty()) workers = {{}};
  for (size_t i = 0; i < workers.size(); ++i) {
    const std::vector<int>& vnodes = workers[i];
    Worker worker(model_, run_, way, *store, i);
    const auto result = worker.executor->Run(vnodes.empty() ? all_ : Only(all_, vnodes));
    EXPECT_OK(result);
    if (!result.ok()) return outcome;
    EXPECT_OK(worker.transport.Flush());
    EXPECT_EQ(worker.device->arena_high_water_bytes(), worker.plan.arena_bytes);
    EXPECT_EQ(worker.in_place.foreign_pushes(), 0);
    for (const VnodeRecord& record : result->records) outcome.records[record.vnode] = record;
  }
  Collect(*store, outcome);
  return outcome;
}

std::vector<StepOutcome> RelayExecutorTest::RunSteps(const Way& way) {
  constexpr int kSteps = 2;  // what comes again is a graph
  std::unique_ptr<InProcessStore> store = NewStore();
  Worker worker(model_, run_, way, *store);
  std::vector<StepOutcome> outcomes(kSteps);
  for (int64_t step = 0; step < kSteps; ++step) {
    Assignment assignment = all_;
    assignment.step = StepId(kStep.value() + step);
    if (step > 0) Publish(*store, assignment.step);
    const auto result = worker.executor->Run(assignment);
    EXPECT_OK(result);
    EXPECT_OK(worker.transport.Flush());
    if (!result.ok()) return outcomes;
    StepOutcome& outcome = outcomes[static_cast<size_t>(step)];
    for (const VnodeRecord& record : result->records) outcome.records[record.vnode] = record;
    Collect(*store, outcome, assignment.step);
    assignment.evaluation_round = 0;
    EXPECT_OK(worker.executor->Run(assignment));
  }
  return outcomes;
}

void RelayExecutorTest::RunAsGroup(const Way& way, InProcessStore& store, StepOutcome& outcome) {
  std::vector<std::unique_ptr<Worker>> workers;
  std::vector<Device*> devices;
  for (size_t rank = 0; rank < way.workers.size(); ++rank) {
    workers.push_back(std::make_unique<Worker>(model_, run_, way, store));
    devices.push_back(workers.back()->device.get());
  }
  const std::vector<std::unique_ptr<Group>> groups = NewGroup(devices, way.cuda.has_value());
  std::vector<absl::StatusOr<PassResult>> results(groups.size(), absl::UnknownError("it did not run"));
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < groups.size(); ++rank) {
    threads.emplace_back([&, rank] {
      Assignment assignment = Only(all_, way.workers[rank]);
      assignment.group = GroupVnodes{.group = 1, .rank = static_cast<int>(rank), .vnodes = way.workers};
      results[rank] = workers[rank]->executor->Run(assignment, groups[rank].get());
      if (!results[rank].ok()) groups[rank]->End(results[rank].status());  // the others wait for it
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (size_t rank = 0; rank < groups.size(); ++rank) {
    EXPECT_OK(results[rank]);
    EXPECT_OK(workers[rank]->transport.Flush());
    EXPECT_EQ(workers[rank]->device->arena_high_water_bytes(), workers[rank]->plan.arena_bytes);
    if (!results[rank].ok()) continue;
    for (const VnodeRecord& record : results[rank]->records) outcome.records[record.vnode] = record;
  }
}

std::vector<std::unique_ptr<Group>> RelayExecutorTest::NewGroup(const std::vector<Device*>& devices, bool nccl) {
  std::vector<std::unique_ptr<Group>> groups;
  std::string token;
  const int size = static_cast<int>(devices.size());
  for (int rank = 0; rank < size; ++rank) {
    const std::unique_ptr<GroupMaker> maker = nccl ? NewNcclGroupMaker(NewEmulatedNccl()) : NewSharedMemoryGroupMaker();
    GroupOptions options = {.id = 1,
                            .rank = rank,
                            .size = size,
                            .device = devices[static_cast<size_t>(rank)],
                            .on_joined = [](absl::Status) {}};
    auto group = rank == 0 ? maker->Found(std::move(options), token) : maker->Join(std::move(options), token);
    EXPECT_OK(group);
    groups.push_back(*std::move(group));
  }
  return groups;
}

void RelayExecutorTest::Collect(const InProcessStore& store, StepOutcome& outcome, StepId step) {
  const std::vector<bool> dropped = DroppedBlobs(model_, all_.dropped);
  for (const BlobSpec& blob : model_.blobs) {
    std::vector<std::vector<float>> uses;
    for (size_t use = 0; use < blob.uses.size(); ++use) {
      if (blob.frozen || dropped[static_cast<size_t>(blob.id.value())]) {
        EXPECT_TRUE(store.Held(step, blob.id, static_cast<int>(use)).empty()) << blob.name;
        continue;
      }
      const auto gradient = store.UseGradient(step, blob.id, static_cast<int>(use));
      EXPECT_OK(gradient);
      uses.push_back(gradient.ok() ? *gradient : std::vector<float>());
    }
    outcome.use_gradients.push_back(std::move(uses));
  }
  outcome.pulls = store.num_pulls();
  outcome.pushes = store.num_pushes();
}

void RelayExecutorTest::ExpectSameBits(const StepOutcome& a, const StepOutcome& b, const std::string& what) {
  ASSERT_EQ(a.records.size(), b.records.size()) << what;
  ASSERT_EQ(a.use_gradients.size(), b.use_gradients.size()) << what;
  for (const auto& [vnode, record] : a.records) {
    const VnodeRecord& other = b.records.at(vnode);
    EXPECT_EQ(std::memcmp(&record.loss_sum, &other.loss_sum, sizeof(double)), 0) << what << " vnode " << vnode;
    EXPECT_EQ(record.counted_tokens, other.counted_tokens) << what;
    EXPECT_EQ(record.finite, other.finite) << what;
    EXPECT_EQ(record.expert_rows, other.expert_rows) << what;
  }
  for (size_t blob = 0; blob < a.use_gradients.size(); ++blob) {
    for (size_t use = 0; use < a.use_gradients[blob].size(); ++use) {
      const std::vector<float>& x = a.use_gradients[blob][use];
      const std::vector<float>& y = b.use_gradients[blob][use];
      ASSERT_EQ(x.size(), y.size()) << what;
      EXPECT_EQ(std::memcmp(x.data(), y.data(), x.size() * sizeof(float)), 0)
          << what << " " << model_.blobs[blob].name << " use " << use;
    }
  }
}

std::map<std::string, std::vector<float>> RelayExecutorTest::ByTensor(const StepOutcome& outcome) const {
  std::map<std::string, std::vector<float>> gradients;
  for (const BlobSpec& blob : model_.blobs) {
    const auto& uses = outcome.use_gradients[static_cast<size_t>(blob.id.value())];
    for (size_t use = 0; use < uses.size(); ++use) {
      for (const TensorSpec& tensor : blob.tensors) {
        const auto first = uses[use].begin() + tensor.offset_elems;
        gradients[absl::StrCat(tensor.name, " use ", use)].assign(first, first + tensor.num_elems());
      }
    }
  }
  return gradients;
}

void RelayExecutorTest::ExpectNearReference(const StepOutcome& got, double tolerance, double loss_tolerance) {
  std::vector<std::vector<double>> masters;
  for (const auto& blob : masters_) masters.emplace_back(blob.begin(), blob.end());
  const ReferenceGpt2 reference(&model_, masters);
  const auto want = reference.Step(all_, run_.batch.micro_batch, run_.model.init_seed);
  ASSERT_EQ(got.records.size(), all_.vnodes.size());
  ASSERT_EQ(got.use_gradients.size(), model_.blobs.size());
  for (const auto& [vnode, record] : got.records) {
    const auto v = static_cast<size_t>(vnode);
    EXPECT_LE(std::abs(record.loss_sum / want.loss_sum[v] - 1), loss_tolerance) << "vnode " << vnode;
    EXPECT_EQ(record.counted_tokens, want.counted[v]);
    EXPECT_TRUE(record.finite);
  }
  for (const LayerSpec& layer : model_.layers) {
    for (const BlobUse& use : layer.blobs) {
      for (const TensorSpec& tensor : model_.blob(use.blob).tensors) {
        ExpectNear(layer, use, tensor, want.gradients[static_cast<size_t>(layer.id.value())],
                   got.use_gradients[static_cast<size_t>(use.blob.value())][static_cast<size_t>(use.use)], tolerance);
      }
    }
  }
}

void RelayExecutorTest::ExpectNear(const LayerSpec& layer, const BlobUse& use, const TensorSpec& tensor,
                                   const std::vector<double>& want_slot, const std::vector<float>& got_blob,
                                   double tolerance) {
  double error = 0, norm = 0;
  for (int64_t i = 0; i < tensor.num_elems(); ++i) {
    const double want = want_slot[static_cast<size_t>(use.offset_elems + tensor.offset_elems + i)];
    const double got = static_cast<double>(got_blob[static_cast<size_t>(tensor.offset_elems + i)]) / all_.loss_scale;
    error += (got - want) * (got - want);
    norm += want * want;
  }
  EXPECT_GT(norm, 0) << layer.name << " " << tensor.name;
  EXPECT_LE(std::sqrt(error / norm), tolerance) << layer.name << " " << tensor.name;
}

}  // namespace eps::worker
