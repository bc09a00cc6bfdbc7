#include "gpu_worker/profile/measure.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/base/control_groups.h"
#include "common/base/exit_code.h"
#include "common/base/host.h"
#include "common/base/memory_room.h"
#include "common/base/status_macros.h"
#include "common/model/model_spec.h"
#include "common/numeric/quantized.h"
#include "gpu_worker/device/device.h"
#include "gpu_worker/layers/layer_shape.h"
#include "gpu_worker/plan/arena_layout.h"
#include "gpu_worker/plan/relay_plan.h"
#include "gpu_worker/plan/relay_step.h"
#include "gpu_worker/profile/spread_tokens.h"
#include "gpu_worker/profile/timed_work.h"
#include "gpu_worker/profile/update_loop.h"
#include "gpu_worker/relay/arena_map.h"
#include "gpu_worker/relay/layer_runner.h"
#include "gpu_worker/relay/pass_memory.h"

namespace eps::worker {
namespace {

using Kind = RelayStep::Kind;
constexpr int64_t kCopyBytes = int64_t{8} << 20;
// Layers' work goes from slot to slot over so many bytes, which caches do not hold: as in a step, where a slot comes
// round late.
constexpr int64_t kColdBytes = int64_t{96} << 20;
// What is swapped goes through few slots, which kernels have just written, or are about to read: here one each way,
// which are nobody else's while they are copied.
constexpr size_t kSlotIn = 0, kSlotOut = 1;
constexpr int64_t kFirstLayerSlot = 2;
constexpr int64_t kLeastSlots = 3, kMostSlots = 64;

// A machine that is shared is slower for tenths of a second at a time: everything is measured in so many rounds.
constexpr int kRounds = 5;

// What is done at once goes in batches of this.
constexpr double kLongBatchSeconds = 10e-3;

// By Activity.
constexpr size_t kComputes = static_cast<size_t>(Activity::kCompute), kCopiesIn = static_cast<size_t>(Activity::kIn),
                 kCopiesOut = static_cast<size_t>(Activity::kOut), kUpdates = static_cast<size_t>(Activity::kUpdate);

class Measurement {
 public:
  explicit Measurement(const MeasureRequest& request) : request_(request), run_(*request.run) {}

  absl::StatusOr<Profile> Run() {
    EPS_RETURN_IF_ERROR(SetUp());
    profile_.device = request_.device;
    profile_.threads = request_.threads;
    profile_.hardware = device_->properties().model;
    if (const std::string processor = ProcessorName(); !processor.empty()) {
      absl::StrAppend(&profile_.hardware, ", ", processor);
    }
    profile_.measured = absl::FormatTime("%Y-%m-%d", absl::Now(), absl::UTCTimeZone());
    const Profile nominal = NominalProfile(request_.device);
    profile_.network_bytes_per_second = nominal.network_bytes_per_second;
    profile_.between_steps_seconds = nominal.between_steps_seconds;
    EPS_RETURN_IF_ERROR(NotOfTheDevice(Measure()));
    return std::move(profile_);
  }

 private:
  absl::Status Measure() {
    EPS_RETURN_IF_ERROR(SetUpWork());
    EPS_RETURN_IF_ERROR(MeasureLayers());
    EPS_RETURN_IF_ERROR(MeasureSharing());
    return MeasureHandover();
  }

  // Of the time that all of it takes, roughly: how much is over with layers, and with what is done at once.
  static constexpr double kLayersDone = 0.4, kSharingDone = 0.95;

  // What comes next takes so many turns, and ends with that share of all.
  void StartPart(int64_t turns, double share_at_end) {
    part_turns_ = turns;
    turns_done_ = 0;
    part_begin_ = std::exchange(part_end_, share_at_end);
  }
  void StartTurn(const std::string& what) {
    const double done = static_cast<double>(turns_done_++) / static_cast<double>(part_turns_);
    request_.on_progress(what, part_begin_ + (part_end_ - part_begin_) * std::min(1.0, done));
  }

  // The device, and what lies where in it.
  absl::Status SetUp() {
    EPS_ASSIGN_OR_RETURN(model_, BuildModel(run_.model));
    // What takes least, but for slots of inner activations; the sizes of slots are what matters.
    run_.relay = {.inner = InnerPolicy::kRecompute, .boundaries = BoundaryPolicy::kHost, .weight_slots = 1};
    run_.batch.virtual_nodes = 1;
    PlanRequest plan_request = {
        .model = &model_, .run = &run_, .kernels = request_.backend->kernels(run_.precision.wire)};
    EPS_RETURN_IF_ERROR(CheckPass(plan_request));
    const PlanNeeds needs = NeedsOf(plan_request);
    PlanChoice choice = LeastChoice(needs, 0);
    choice.inner_slots =
        std::clamp(kColdBytes / std::max<int64_t>(1, needs.inner_slot_bytes()), kLeastSlots, kMostSlots);
    plan_ = LayArena(plan_request, needs, choice);
    plan_.host_boundary_bytes = plan_.host_inner_bytes = 0;  // nothing is stashed, and pinning much takes long
    EPS_ASSIGN_OR_RETURN(device_, request_.backend->create({.arena_bytes = plan_.arena_bytes,
                                                            .threads = request_.threads,
                                                            .wire = run_.precision.wire,
                                                            .tf32 = run_.precision.tf32,
                                                            .plain_attention = run_.precision.plain_attention}));
    EPS_ASSIGN_OR_RETURN(arena_, MapArena(plan_, *device_));
    return absl::OkStatus();
  }

  // What layers and copies work on.
  absl::Status SetUpWork() {
    shape_ = MakeLayerShape(model_, run_, device_->properties().compute_dtype);
    EPS_ASSIGN_OR_RETURN(PassMemory memory,
                         PassMemory::New(*device_, plan_, shape_, run_.batch.micro_batches, ToldExperts()));
    memory_ = std::move(memory);
    EPS_RETURN_IF_ERROR(FillArena());
    runner_ =
        std::make_unique<LayerRunner>(model_, plan_, arena_, memory_->start_values(), device_->kernels(), compute());
    for (HostMemory* side : {&copied_in_, &copied_out_}) {
      EPS_ASSIGN_OR_RETURN(*side, device_->NewHostMemory(CopyBytes() * NumPieces()));
      std::memset(side->bytes.data(), 1, side->bytes.size());
    }
    return absl::OkStatus();
  }
  Stream& compute() { return device_->stream(StreamId::kCompute); }
  int64_t CopyBytes() const { return std::min(kCopyBytes, plan_.inner_slots.front().num_bytes); }
  int64_t NumSlots() const { return static_cast<int64_t>(arena_.inners.size()); }
  // That copies take turns in on the host, which caches do not hold, however large a slot is.
  int64_t NumPieces() const { return std::clamp(kColdBytes / CopyBytes(), kLeastSlots, kMostSlots); }
  absl::Span<std::byte> PieceOf(const HostMemory& memory, int64_t turn) const {
    return memory.bytes.subspan(static_cast<size_t>(turn % NumPieces() * CopyBytes()),
                                static_cast<size_t>(CopyBytes()));
  }
  const LayerSpec& LayerOf(LayerKind kind) const {
    if (kind == LayerKind::kEmbedding) return model_.layers.front();
    if (kind == LayerKind::kHead) return model_.layers.back();
    return model_.layers[model_.layers.size() - 2];  // the last block has a backward, if any has
  }

  // Small numbers of both signs, whatever the dtype: on zeros some hardware is faster than on what a model has.
  absl::Status FillArena() {
    EPS_ASSIGN_OR_RETURN(void* base, device_->Address({0, plan_.arena_bytes}));
    EPS_ASSIGN_OR_RETURN(const HostMemory pattern, device_->NewHostMemory(int64_t{1} << 20));
    auto* values = reinterpret_cast<uint16_t*>(pattern.bytes.data());
    uint32_t state = 1;
    for (size_t i = 0; i < pattern.bytes.size() / sizeof(uint16_t); ++i) {
      state = state * 1664525u + 1013904223u;
      values[i] = static_cast<uint16_t>(0x3C00u | (state >> 25) | ((state >> 9) & 0x8000u));
    }
    for (int64_t done = 0; done < plan_.arena_bytes;) {
      const int64_t part = std::min(plan_.arena_bytes - done, static_cast<int64_t>(pattern.bytes.size()));
      compute().CopyIn(At(base, done), pattern.bytes.subspan(0, static_cast<size_t>(part)));
      done += part;
    }
    EPS_ASSIGN_OR_RETURN(const HostMemory runs, FillQuantized());
    const absl::Span<std::byte> tokens = memory_->Tokens(0, shape_);
    FillSpreadTokens(shape_, model_.config.num_types, tokens);
    for (std::byte* slot : arena_.tokens) compute().CopyIn(slot, tokens);
    return compute().Synchronize();
  }

  // In the slot that the block is expanded from: bytes of anything would be scales, and weights, of anything. Returns what
  // is copied from, which stays until the stream is idle.
  absl::StatusOr<HostMemory> FillQuantized() {
    const BlobUse& use = LayerOf(LayerKind::kBlock).blobs.back();
    const BlobSpec& blob = model_.blob(use.blob);
    if (!blob.quantized.has_value()) return HostMemory();
    const auto bytes_of = [&](int64_t num_elems) {
      return static_cast<size_t>(QuantizedBytes(*blob.quantized, num_elems));
    };
    const int64_t last_elems = blob.chunk_elems(blob.num_chunks() - 1);
    EPS_ASSIGN_OR_RETURN(HostMemory runs, device_->NewHostMemory(static_cast<int64_t>(bytes_of(kQuantizedRunElems) +
                                                                                      bytes_of(last_elems))));
    const auto fill = [&](int64_t num_elems, absl::Span<std::byte> run) {
      std::vector<float> values(static_cast<size_t>(num_elems));
      for (size_t i = 0; i < values.size(); ++i) {
        values[i] =
            static_cast<float>(static_cast<int8_t>(i * 37)) / 16384;  // some thousandths, as trained weights are
      }
      EncodeQuantized(*blob.quantized, values, 0, num_elems, run.data());
      return run;
    };
    const auto whole = fill(kQuantizedRunElems, runs.bytes.first(bytes_of(kQuantizedRunElems)));
    const auto last = fill(last_elems, runs.bytes.last(bytes_of(last_elems)));
    std::byte* to = arena_.weights.front() + ModelSpec::first_wire_byte(use, run_.precision.wire);
    for (int64_t chunk = 0; chunk < blob.num_chunks(); ++chunk) {
      const absl::Span<std::byte> run = chunk + 1 == blob.num_chunks() ? last : whole;
      compute().CopyIn(to, run);
      to += run.size();
    }
    return runs;
  }

  RelayStep StepOf(Kind kind, const LayerSpec& layer) const {
    RelayStep step;
    step.kind = kind;
    step.layer = layer.id;
    step.backward = kind == Kind::kBackward || kind == Kind::kHead;
    step.vnode = step.micro_batch = 0;
    step.node = {0, 1};
    step.weights = step.gradient = step.tokens = step.record = step.input = step.inner = step.flags = 0;
    // Which has room for any layer's gradient: the first weight slot, where push slots have it for a block's alone.
    step.push = plan_.pushes_from_weight_slots ? static_cast<int>(plan_.push_slots.size()) : 0;
    step.output = 1;
    return step;
  }
  // Enqueues it so many times, from slot to slot.
  std::function<void(int64_t times)> VisitsOf(Kind kind, const LayerSpec& layer) {
    return [this, step = StepOf(kind, layer), turn = int64_t{0}](int64_t times) mutable {
      for (int64_t i = 0; i < times; ++i) {
        step.inner = static_cast<int>(kFirstLayerSlot + turn++ % (NumSlots() - kFirstLayerSlot));
        // Apart, as in a step: what a device gets under one label it may issue as a whole, and late.
        compute().SetLabel(nullptr);
        runner_->Run(step, Context());
      }
    };
  }
  Batch BatchOf(Kind kind, const LayerSpec& layer) {
    return [this, visits = VisitsOf(kind, layer)](int64_t times) {
      visits(times);
      return compute().Synchronize();
    };
  }
  PassContext Context() const {
    return {.shape = shape_, .seed = model_.config.init_seed, .vnodes = vnodes_, .gradients = run_.precision.gradients};
  }
  // Visits follow each other in the stream, as in a step, so many that waiting for their end does not count.
  absl::StatusOr<TimedUnit> Timed(Kind kind, const LayerSpec& layer) {
    const Batch batch = BatchOf(kind, layer);
    EPS_RETURN_IF_ERROR(batch(1));  // its pages and code
    EPS_ASSIGN_OR_RETURN(const int64_t times, TimesIn(std::min(kBatchSeconds, request_.seconds), batch));
    return TimedUnit{
        .what = Title(StepOf(kind, layer), model_), .unit = [batch, times] { return batch(times); }, .times = times};
  }
  absl::Status TakeTurns(std::vector<TimedUnit>& units, double share_at_end) {
    StartPart(kRounds * std::ssize(units), share_at_end);
    for (int round = 0; round < kRounds; ++round) {
      for (TimedUnit& each : units) {
        StartTurn(each.what);
        EPS_RETURN_IF_ERROR(each.RunFor(request_.seconds / kRounds));
      }
    }
    return absl::OkStatus();
  }

  // Each kind of layer, and the gradient of the layer that trains most: zeroed, finished and emitted, by the bytes that
  // each reads and writes.
  absl::Status MeasureLayers() {
    for (const LayerKind kind : kLayerKinds) profile_.layers.push_back({.kind = kind, .shape = shape_});
    std::vector<TimedUnit> units;
    std::vector<double*> results;  // of each unit: where it is added
    for (LayerTimes& times : profile_.layers) {
      const LayerSpec& layer = LayerOf(times.kind);
      const bool is_head = times.kind == LayerKind::kHead, is_block = times.kind == LayerKind::kBlock;
      std::vector<std::pair<Kind, double*>> kinds = {{is_head ? Kind::kLoss : Kind::kForward, &times.forward_seconds}};
      if (is_block) kinds.emplace_back(Kind::kRecompute, &times.recompute_seconds);
      if (is_block && shape_.expands_blocks()) kinds.emplace_back(Kind::kExpand, &times.expand_seconds);
      if (layer.id >= model_.lowest_trainable_layer()) {
        kinds.emplace_back(is_head ? Kind::kHead : Kind::kBackward, &times.backward_seconds);
      }
      for (const auto& [kind, seconds] : kinds) {
        EPS_ASSIGN_OR_RETURN(units.emplace_back(), Timed(kind, layer));
        results.push_back(seconds);
      }
    }
    const LayerSpec& largest =
        *std::max_element(model_.layers.begin(), model_.layers.end(),
                          [](const LayerSpec& a, const LayerSpec& b) { return a.trainable_elems < b.trainable_elems; });
    double gradient_seconds = 0;
    if (largest.trains()) {
      for (const Kind kind : {Kind::kZeroGradient, Kind::kFinishLeaf, Kind::kEmitGradient}) {
        EPS_ASSIGN_OR_RETURN(units.emplace_back(), Timed(kind, largest));
        results.push_back(&gradient_seconds);
      }
    }
    EPS_RETURN_IF_ERROR(TakeTurns(units, kLayersDone));
    for (size_t i = 0; i < units.size(); ++i) *results[i] += units[i].Seconds();
    if (largest.trains()) {
      int64_t bytes = largest.trainable_elems * (8 + 4 + SizeOf(run_.precision.gradients));  // finished, and emitted
      for (const ElemRange& range : ZeroedGradientRanges(model_, largest))
        bytes += range.num_elems() * int64_t{sizeof(float)};
      profile_.gradient_bytes_per_second = static_cast<double>(bytes) / gradient_seconds;
    }
    return absl::OkStatus();
  }

  double SecondsOfBlock() const {  // forward
    return std::find_if(profile_.layers.begin(), profile_.layers.end(),
                        [](const LayerTimes& times) { return times.kind == LayerKind::kBlock; })
        ->forward_seconds;
  }

  // `enqueue`: one, in its turn. Pauses are the stream's own.
  static Repeated CopiesOf(Stream& stream, std::function<void(int64_t turn)> enqueue) {
    const auto turn = std::make_shared<int64_t>(0);
    const auto apart = [&stream, enqueue = std::move(enqueue), turn](int64_t times, double pause_seconds) {
      for (int64_t i = 0; i < times; ++i) {
        if (i > 0 && pause_seconds > 0) {
          stream.HostCall([pause_seconds] {
            Pause(pause_seconds);
            return absl::OkStatus();
          });
        }
        enqueue((*turn)++);
      }
      return stream.Synchronize();
    };
    return {.batch = [apart](int64_t times) { return apart(times, 0); }, .apart = apart};
  }

  // How long compute takes for so many forwards of a block, by its own account: from when the stream begins until it is
  // done, whoever waits for it. `meanwhile` runs here once they are enqueued.
  absl::StatusOr<double> SecondsOfBlocks(int64_t times, const Unit& meanwhile) {
    double begin = 0, end = 0;
    const auto note = [](double& time) {
      return [&time] {
        time = HostSeconds();
        return absl::OkStatus();
      };
    };
    compute().HostCall(note(begin));
    blocks_(times);
    compute().HostCall(note(end));
    absl::Status status = meanwhile();
    status.Update(compute().Synchronize());  // in any case: the stream writes to what is here
    EPS_RETURN_IF_ERROR(status);
    return end - begin;
  }

  // ---- what runs at once: copies of swapped activations, updates and a block's forward, by Activity ----

  template <typename T>
  using OfActivities = std::array<T, kNumActivities>;
  struct Rates {
    OfActivities<double> alone = {};                 // times in a second, as in the next
    OfActivities<OfActivities<double>> beside = {};  // [a][b]: of a while b runs
    OfActivities<double> lost = {};                  // seconds of compute, by each time
  };

  // `update` outlives them.
  OfActivities<Repeated> Activities(UpdateLoop& update) {
    Stream &in = device_->stream(StreamId::kIn), &out = device_->stream(StreamId::kOut);
    OfActivities<Repeated> all;
    all[kComputes].batch = [this](int64_t times) {
      blocks_(times);
      return compute().Synchronize();
    };
    all[kCopiesIn] =
        CopiesOf(in, [this, &in](int64_t turn) { in.CopyIn(arena_.inners[kSlotIn], PieceOf(copied_in_, turn)); });
    all[kCopiesOut] =
        CopiesOf(out, [this, &out](int64_t turn) { out.CopyOut(PieceOf(copied_out_, turn), arena_.inners[kSlotOut]); });
    all[kUpdates].batch = [&update](int64_t times) { return update.Run(times); };
    all[kUpdates].apart = [&update](int64_t times, double pause_seconds) {
      for (int64_t i = 0; i < times; ++i) {
        if (i > 0) Pause(pause_seconds);
        EPS_RETURN_IF_ERROR(update.Run(1));
      }
      return absl::OkStatus();
    };
    return all;
  }

  absl::Status MeasureSharing() {
    EPS_ASSIGN_OR_RETURN(
        UpdateLoop update,
        UpdateLoop::New(UsableCores(), UpdateStateBytes(ReadSystemText, FindMemoryRoom().available_bytes)));
    blocks_ = VisitsOf(Kind::kForward, LayerOf(LayerKind::kBlock));
    OfActivities<Repeated> all = Activities(update);
    // Each of them runs compute some twenty times, however long it takes.
    const int rounds = SecondsOfBlock() < request_.seconds / kRounds ? kRounds : 1;
    const double seconds = request_.seconds / rounds;
    const double batch_seconds = std::min(kLongBatchSeconds, seconds / kLeastBatches);
    constexpr int64_t kAlone = kNumActivities, kPairs = kAlone * (kAlone - 1) / 2, kLost = kAlone - 1;
    StartPart(kAlone - 1 + rounds * (kAlone + kPairs + kLost), kSharingDone);
    all[kComputes].times =
        static_cast<int64_t>(std::clamp(batch_seconds / SecondsOfBlock(), 1.0, double{kMostInBatch}));
    for (size_t a = kComputes + 1; a < all.size(); ++a) {
      StartTurn("copies and updates");
      EPS_ASSIGN_OR_RETURN(all[a].times, TimesIn(batch_seconds, all[a].batch));
    }
    Rates rates;
    for (int round = 0; round < rounds; ++round) {
      EPS_RETURN_IF_ERROR(MeasureSpeeds(all, seconds, rounds, rates));
      EPS_RETURN_IF_ERROR(MeasureLosses(all, seconds, round, rounds, rates));
    }
    TakeRates(rates);
    return absl::OkStatus();
  }

  // One round of so many: each alone, and each beside each other.
  absl::Status MeasureSpeeds(const OfActivities<Repeated>& all, double seconds, int rounds, Rates& rates) {
    for (size_t a = 0; a < all.size(); ++a) {
      StartTurn("copies and updates");
      EPS_ASSIGN_OR_RETURN(const std::vector<double> alone, RatesTogether({&all[a]}, seconds));
      rates.alone[a] += alone[0] / rounds;
      for (size_t b = a + 1; b < all.size(); ++b) {
        StartTurn("what is done at once");
        EPS_ASSIGN_OR_RETURN(const std::vector<double> both, RatesTogether({&all[a], &all[b]}, 2 * seconds));
        rates.beside[a][b] += both[0] / rounds;
        rates.beside[b][a] += both[1] / rounds;
      }
    }
    return absl::OkStatus();
  }

  // Round `round` of so many: what compute loses to each other, one at a time. After MeasureSpeeds.
  absl::Status MeasureLosses(const OfActivities<Repeated>& all, double seconds, int round, int rounds, Rates& rates) {
    // Right after updates more is lost for some hundredths of a second, as threads are where those left them: the
    // ways take turns to come first.
    const bool in_first = round % 2 == 0;
    for (const size_t other : {in_first ? kCopiesIn : kCopiesOut, in_first ? kCopiesOut : kCopiesIn, kUpdates}) {
      StartTurn("what compute loses to others");
      EPS_ASSIGN_OR_RETURN(
          const double more,
          SecondsLost(
              {.work = [this](int64_t times, const Unit& meanwhile) { return SecondsOfBlocks(times, meanwhile); },
               .work_seconds = SecondsOfBlock(),
               .other = &all[other],
               .other_seconds = (round + 1) / (rates.alone[other] * rounds),  // rates are sums of the rounds so far
               .slowdown = rates.alone[other] / rates.beside[other][kComputes]},
              4 * seconds));
      rates.lost[other] += more / rounds;
    }
    return absl::OkStatus();
  }

  void TakeRates(const Rates& rates) {
    const auto bytes = static_cast<double>(CopyBytes());
    profile_.in_bytes_per_second = rates.alone[kCopiesIn] * bytes;
    profile_.out_bytes_per_second = rates.alone[kCopiesOut] * bytes;
    profile_.update_bytes_per_second =
        rates.alone[kUpdates] * UpdateLoop::kBytes * static_cast<double>(UpdateLoop::kWindowElems);
    const auto part = [](double of_speed) { return std::clamp(of_speed, 0.01, 1.0); };
    for (size_t a = kComputes + 1; a < kNumActivities; ++a) {
      for (size_t b = 0; b < kNumActivities; ++b) {
        if (a != b) profile_.sharing[a][b] = part(rates.beside[a][b] / rates.alone[a]);
      }
      profile_.sharing[kComputes][a] = part(1 - rates.lost[a] * rates.alone[a] * profile_.sharing[a][kComputes]);
    }
  }

  // Two streams that wait for each other in turn.
  absl::Status MeasureHandover() {
    constexpr int kTurns = 200;
    std::vector<std::unique_ptr<Event>> events;
    for (int i = 0; i < 2 * kTurns; ++i) events.push_back(device_->NewEvent());
    Stream& out = device_->stream(StreamId::kOut);
    const auto bounce = [&]() -> absl::Status {
      for (const auto& event : events) event->Reset();
      for (int i = 0; i < kTurns; ++i) {
        Event &there = *events[static_cast<size_t>(2 * i)], &back = *events[static_cast<size_t>(2 * i + 1)];
        compute().Record(there);
        out.Wait(there, WaitCause::kStash);
        out.Record(back);
        compute().Wait(back, WaitCause::kStash);
      }
      EPS_RETURN_IF_ERROR(compute().Synchronize());
      return out.Synchronize();
    };
    EPS_RETURN_IF_ERROR(bounce());
    std::vector<TimedUnit> units = {{.what = "streams that wait for each other", .unit = bounce, .times = 2 * kTurns}};
    EPS_RETURN_IF_ERROR(TakeTurns(units, 1));
    profile_.handover_seconds = units[0].Seconds();
    return absl::OkStatus();
  }

  const MeasureRequest& request_;
  int64_t part_turns_ = 1, turns_done_ = 0;  // of the part that is being measured; its shares of all:
  double part_begin_ = 0, part_end_ = 0;
  RunConfig run_;
  ModelSpec model_;
  RelayPlan plan_;
  std::unique_ptr<Device> device_;
  ArenaMap arena_;
  LayerShape shape_;
  std::optional<PassMemory> memory_;
  std::unique_ptr<LayerRunner> runner_;
  HostMemory copied_in_, copied_out_;
  std::function<void(int64_t times)> blocks_;  // enqueues so many forwards of a block
  const std::vector<int> vnodes_ = {0};
  Profile profile_;
};

}  // namespace

absl::StatusOr<Profile> MeasureProfile(const MeasureRequest& request) { return Measurement(request).Run(); }

}  // namespace eps::worker
