#include "cli/verify/variants.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cli/whole_plan.h"
#include "common/base/byte_size.h"
#include "common/base/status_macros.h"
#include "common/schedule/group_limits.h"

namespace eps::cli {
namespace {

constexpr char kBreadthFirst[] = "relay.depth_first_blocks=0";

// Makes the variants of one request.
class Planner {
 public:
  explicit Planner(const VariantRequest& request) : request_(request) {}

  absl::StatusOr<std::vector<Variant>> Plan() {
    // Two are what is taken where nobody said how many: with one virtual node that variant is skipped.
    if (const int vnodes = request_.run.batch.virtual_nodes; request_.workers > std::max(2, vnodes)) {
      return absl::InvalidArgumentError(absl::StrCat("--workers: ", request_.workers, ", must be 2 to ",
                                                     std::max(2, vnodes), ", as batch.virtual_nodes is ", vnodes,
                                                     ": others would have nothing to do"));
    }
    EPS_ASSIGN_OR_RETURN(baseline_, PlanOf(request_.run, /*suggests=*/true));
    variants_.push_back({.name = "as the RunSpec says", .device_memory_bytes = request_.device_memory_bytes});
    if (Wants(VerifyTopic::kRelay)) AddRelay();
    if (Wants(VerifyTopic::kRecompute)) AddRecompute();
    if (Wants(VerifyTopic::kSwap)) AddSwap();
    if (Wants(VerifyTopic::kWorkers)) AddWorkers();
    if (Wants(VerifyTopic::kTransport)) AddTransport();
    return std::move(variants_);
  }

 private:
  bool Wants(VerifyTopic topic) const { return request_.topics.empty() || request_.topics.count(topic) > 0; }

  absl::StatusOr<WholePlan> PlanOf(const RunConfig& run, bool suggests) const {
    return MakeWholePlan({.run = run,
                          .device = request_.device,
                          .device_memory_bytes = request_.device_memory_bytes,
                          .host_memory_bytes = request_.host_memory_bytes,
                          .threads = 1,
                          .profile = request_.profile,
                          .suggests = suggests});
  }
  // What less would do with is for the run's user: a variant's fields are fixed.
  absl::StatusOr<WholePlan> PlanOfVariant(const RunConfig& run) const { return PlanOf(run, /*suggests=*/false); }

  Variant& Add(std::string name, std::vector<std::string> set) {
    return variants_.emplace_back(
        Variant{.name = std::move(name), .set = std::move(set), .device_memory_bytes = request_.device_memory_bytes});
  }
  // Leaves out what `run`, the variant's, has no room for.
  void CheckRoom(Variant& variant, const RunConfig& run) const {
    const absl::StatusOr<WholePlan> plan = PlanOfVariant(run);
    if (!plan.ok()) variant.skipped = std::string(plan.status().message());
  }

  void AddRelay() {
    RunConfig run = request_.run;
    if (!run.relay.resident) {
      run.relay.resident = true;
      CheckRoom(Add("everything resident", {"relay.resident=true"}), run);
    }
    if (run.relay.graphs != GraphUse::kAlways && request_.device != "cpu") {
      Variant& graphs = Add("work that comes again as graphs", {"relay.graphs=ALWAYS"});
      graphs.proof = "graphs_used";
      graphs.why_without_proof =
          "no graph was launched: of these steps no work came again (give more --steps), or the worker's log says "
          "graphs_not_used (--out DIR keeps it)";
    }
    run = request_.run;
    const auto blocks = static_cast<int>(run.model.num_layers);
    if (baseline_.device.inner.total > 0) {  // of blocks that have a backward and are not depth first
      run.relay.resident = false;
      run.relay.group_members = 1;
      run.relay.depth_first_blocks = blocks;
      CheckRoom(Add("relayed, all blocks depth first", {"relay.resident=false", "relay.group_members=1",
                                                        absl::StrCat("relay.depth_first_blocks=", blocks)}),
                run);
    }
    // What makes the device hold least: one layer, nothing kept, boundaries on the host.
    run.relay = {.inner = InnerPolicy::kRecompute,
                 .boundaries = BoundaryPolicy::kHost,
                 .weight_slots = 1,
                 .depth_first_blocks = 0};
    Variant& smallest = Add("", {"relay.resident=false", "relay.boundaries=HOST", "relay.inner=RECOMPUTE",
                                 "relay.weight_slots=1", "relay.group_members=1", kBreadthFirst});
    const absl::StatusOr<WholePlan> plan = PlanOfVariant(run);
    if (plan.ok()) smallest.device_memory_bytes = plan->smallest_cap_bytes;
    if (!plan.ok()) smallest.skipped = std::string(plan.status().message());
    smallest.name =
        absl::StrCat("relayed, smallest cap",
                     plan.ok() ? absl::StrCat(" (", FormatLeastByteSize(plan->smallest_cap_bytes), ")") : "");
  }

  void AddRecompute() {
    RunConfig run = request_.run;
    const bool depth_first = baseline_.device.depth_first_blocks > 0;
    if (depth_first || baseline_.device.inner.recomputed() < baseline_.device.inner.total) {
      Add("everything recomputed", {"relay.inner=RECOMPUTE", kBreadthFirst});
    }
    if (depth_first || !baseline_.device.inner.keeps_all()) {
      run.relay.inner = InnerPolicy::kKeep;
      run.relay.depth_first_blocks = 0;
      CheckRoom(Add("nothing recomputed", {"relay.inner=KEEP", kBreadthFirst}), run);
    }
  }

  void AddSwap() {
    RunConfig run = request_.run;
    run.relay.resident = false;
    run.relay.boundaries = BoundaryPolicy::kHost;
    run.relay.inner = InnerPolicy::kSwap;
    run.relay.depth_first_blocks = 0;
    const worker::InnerCounts& inner = baseline_.device.inner;
    const bool is_baseline = request_.run.relay.inner == InnerPolicy::kSwap &&
                             request_.run.relay.boundaries == BoundaryPolicy::kHost && !request_.run.relay.resident;
    if (!is_baseline && (inner.total > 0 || baseline_.device.depth_first_blocks > 0)) {
      CheckRoom(Add("everything swapped",
                    {"relay.resident=false", "relay.boundaries=HOST", "relay.inner=SWAP", kBreadthFirst}),
                run);
    }
    if (baseline_.device.host_boundary_slots + baseline_.device.inner.swapped == 0) return;
    run = request_.run;
    run.relay.boundaries = BoundaryPolicy::kDevice;
    run.relay.depth_first_blocks = 0;
    if (run.relay.inner != InnerPolicy::kRecompute) run.relay.inner = InnerPolicy::kKeep;
    std::vector<std::string> set = {"relay.boundaries=DEVICE", kBreadthFirst};
    if (run.relay.inner == InnerPolicy::kKeep) set.push_back("relay.inner=KEEP");
    CheckRoom(Add("nothing swapped", std::move(set)), run);
  }

  void AddWorkers() {
    const int workers = request_.workers;
    Variant several = {.name = absl::StrCat(workers, " workers"),
                       .set = {"relay.group_members=1"},
                       .workers = workers,
                       .device_memory_bytes = request_.device_memory_bytes};
    if (request_.run.batch.virtual_nodes < 2) {
      several.skipped = "batch.virtual_nodes is 1: a second worker has nothing to do";
    }
    Variant group = several;
    group.name = absl::StrCat(workers, " workers as a group");
    group.set = {absl::StrCat("relay.group_members=", workers), kBreadthFirst};
    variants_.push_back(std::move(several));
    if (workers > kMaxGroupMembers) return;
    if (request_.device != "cpu") {
      if (group.skipped.empty()) group.skipped = "its members would share one GPU, which NCCL does not allow";
    } else if (group.skipped.empty()) {
      RunConfig run = request_.run;
      run.relay.group_members = workers;
      CheckRoom(group, run);
    }
    variants_.push_back(std::move(group));
  }

  void AddTransport() {
    if (request_.run.transport != TransportChoice::kGrpc) {
      Add("over gRPC", {"transport=GRPC"});
    } else {
      Add("through shared memory", {"transport=SHARED_MEMORY"});
    }
  }

  const VariantRequest& request_;
  WholePlan baseline_;
  std::vector<Variant> variants_;
};

}  // namespace

absl::StatusOr<std::vector<Variant>> PlanVariants(const VariantRequest& request) { return Planner(request).Plan(); }

}  // namespace eps::cli
