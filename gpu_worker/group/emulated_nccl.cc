#include "gpu_worker/group/emulated_nccl.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <future>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/base/mutex.h"
#include "common/base/status_macros.h"
#include "gpu_worker/device/cuda/emulator/emulated_runtime.h"

namespace eps::worker {
namespace {

constexpr int kRubbish = 0xAB;  // what is taken for the bytes of a member that has aborted
constexpr int kLooksInProgress = 2;

// The communicators of one id, and what is on its way between them.
struct World {
  Mutex mu;
  CondVar changed;
  std::set<int> begun ABSL_GUARDED_BY(mu), aborted ABSL_GUARDED_BY(mu);
  std::map<std::pair<int, int>, std::deque<std::vector<std::byte>>> sent ABSL_GUARDED_BY(mu);  // (from, to)
};

struct Comm {
  std::shared_ptr<World> world;
  int rank = 0, size = 0;
  int looks_left = 0;                 // at its state, until what was asked last is in its stream
  std::atomic<bool> aborted = false;  // atomic, as those who wait for their turn look at it without the world's lock
};

// What a device carries, whatever its streams: one after the other, as it was asked for. So does NCCL with what is asked
// of one communicator; and of two, where something waits for the whole device between them.
class IssueOrder {
 public:
  uint64_t Take() {
    MutexLock lock(mu_);
    waiting_.insert(++last_);
    return last_;
  }
  // Until all before it are over, or the communicator is aborted.
  void Await(uint64_t turn, const std::atomic<bool>& aborted) {
    MutexLock lock(mu_);
    while (*waiting_.begin() != turn && !aborted) changed_.Wait(mu_);
  }
  void Pass(uint64_t turn) {
    MutexLock lock(mu_);
    waiting_.erase(turn);
    changed_.NotifyAll();
  }
  void Abort(std::atomic<bool>& aborted) {
    MutexLock lock(mu_);
    aborted = true;
    changed_.NotifyAll();
  }

 private:
  Mutex mu_;
  CondVar changed_;
  uint64_t last_ ABSL_GUARDED_BY(mu_) = 0;
  std::set<uint64_t> waiting_ ABSL_GUARDED_BY(mu_);  // with the one under way
};

// By id, for all APIs of this process, as NCCL's ids are.
std::shared_ptr<World> WorldOf(const std::string& id) {
  static Mutex& mu = *new Mutex;
  static auto& worlds = *new std::map<std::string, std::shared_ptr<World>>;
  MutexLock lock(mu);
  std::shared_ptr<World>& world = worlds[id];
  if (world == nullptr) world = std::make_shared<World>();
  return world;
}

std::string NextId() {
  static Mutex& mu = *new Mutex;
  static int last = 0;
  MutexLock lock(mu);
  return absl::StrCat("emulated nccl ", ++last);
}

// Of one that has aborted nothing more is given or taken.
void Run(const Comm& comm, const std::vector<NcclTransfer>& transfers) {
  World& world = *comm.world;
  MutexLock lock(world.mu);
  if (world.aborted.count(comm.rank) > 0) return;
  for (const NcclTransfer& transfer : transfers) {
    if (transfer.send == nullptr) continue;
    const auto* bytes = static_cast<const std::byte*>(transfer.send);
    world.sent[{comm.rank, transfer.peer}].emplace_back(bytes, bytes + transfer.num_bytes);
  }
  world.changed.NotifyAll();
  for (const NcclTransfer& transfer : transfers) {
    if (transfer.receive == nullptr) continue;
    auto& incoming = world.sent[{transfer.peer, comm.rank}];
    while (incoming.empty() && world.aborted.count(comm.rank) + world.aborted.count(transfer.peer) == 0) {
      world.changed.Wait(world.mu);
    }
    if (world.aborted.count(comm.rank) > 0) return;
    if (incoming.empty()) {
      std::memset(transfer.receive, kRubbish, transfer.num_bytes);
      continue;
    }
    EPS_CHECK(incoming.front().size() == transfer.num_bytes);
    std::memcpy(transfer.receive, incoming.front().data(), transfer.num_bytes);
    incoming.pop_front();
  }
}

class EmulatedNccl final : public NcclApi {
 public:
  std::string version() const override { return "nccl-emulated"; }
  absl::StatusOr<std::string> NewId() override { return NextId(); }

  absl::StatusOr<NcclComm> Begin(const std::string& id, int rank, int size) override {
    auto comm = std::make_shared<Comm>();
    comm->world = WorldOf(id);
    comm->rank = rank;
    comm->size = size;
    {
      MutexLock lock(comm->world->mu);
      if (!comm->world->begun.insert(rank).second) return absl::InternalError("a rank that is there already");
    }
    MutexLock lock(mu_);
    comms_.emplace(comm.get(), comm);
    return comm.get();
  }

  absl::Status State(NcclComm handle) override {
    const std::shared_ptr<Comm> comm = At(handle);
    {
      MutexLock lock(comm->world->mu);
      if (static_cast<int>(comm->world->begun.size()) < comm->size) {
        return absl::UnavailableError("not all have begun");
      }
    }
    if (comm->looks_left == 0) return absl::OkStatus();
    --comm->looks_left;
    return absl::UnavailableError("what was asked last is not in its stream yet");
  }

  absl::Status Transfer(NcclComm handle, const std::vector<NcclTransfer>& transfers, void* stream) override {
    const std::shared_ptr<Comm> comm = At(handle);
    if (comm->looks_left > 0) return absl::InternalError("asked while what was asked last is in progress");
    comm->looks_left = kLooksInProgress;
    cuda::LaunchInEmulatedStream(stream, [comm, order = order_, turn = order_->Take(), transfers] {
      order->Await(turn, comm->aborted);
      if (!comm->aborted) Run(*comm, transfers);  // one that waited when that came is not in turn
      order->Pass(turn);
    });
    return absl::OkStatus();
  }

  absl::StatusOr<void*> NewScratch(size_t num_bytes, void*) override { return new std::byte[num_bytes]; }
  absl::Status FreeScratch(void* scratch, void* stream) override {
    const auto reached = std::make_shared<std::promise<void>>();  // who sets it may still be at it once that is seen
    cuda::LaunchInEmulatedStream(stream, [reached] { reached->set_value(); });
    reached->get_future().wait();
    delete[] static_cast<std::byte*>(scratch);
    return absl::OkStatus();
  }

  void Abort(NcclComm handle) override {
    const std::shared_ptr<Comm> comm = At(handle);
    order_->Abort(comm->aborted);
    {
      MutexLock lock(comm->world->mu);
      comm->world->aborted.insert(comm->rank);
      comm->world->changed.NotifyAll();
    }
    MutexLock lock(mu_);
    comms_.erase(handle);
  }

 private:
  // Ends the program for one that was aborted.
  std::shared_ptr<Comm> At(NcclComm handle) {
    MutexLock lock(mu_);
    const auto found = comms_.find(handle);
    EPS_CHECK(found != comms_.end());
    return found->second;
  }

  const std::shared_ptr<IssueOrder> order_ = std::make_shared<IssueOrder>();  // what is in a stream may outlive this

  Mutex mu_;
  std::map<NcclComm, std::shared_ptr<Comm>> comms_ ABSL_GUARDED_BY(mu_);
};

}  // namespace

std::unique_ptr<NcclApi> NewEmulatedNccl() { return std::make_unique<EmulatedNccl>(); }

}  // namespace eps::worker
