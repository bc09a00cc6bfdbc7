#include "gpu_worker/group/nccl_group.h"

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/base/host.h"
#include "common/base/mutex.h"
#include "common/base/status_macros.h"
#include "common/base/thread.h"
#include "gpu_worker/group/member_link.h"

namespace eps::worker {
namespace {

constexpr std::array<GroupLane, kNumGroupLanes> kLanes = {GroupLane::kPull, GroupLane::kPush};
// Between two looks at what NCCL does by itself: joining takes seconds, connecting to a peer for the first time less.
constexpr absl::Duration kLook = absl::Microseconds(100);
// Between two looks at what it says of exchanges that are on the GPU.
constexpr std::chrono::milliseconds kWatch(100);

class NcclGroup final : public Group {
 public:
  NcclGroup(std::shared_ptr<NcclApi> api, GroupOptions options) : api_(std::move(api)), options_(std::move(options)) {}
  ~NcclGroup() override {
    if (link_ != nullptr) link_->End(absl::CancelledError("it was closed"));
    for (std::thread& aborter : aborters_) {
      if (aborter.joinable()) aborter.join();
    }
    if (!begun_) return;
    // What was given to the streams ends now, and looks at this no more once they are idle.
    for (const GroupLane lane : kLanes) StreamOf(*options_.device, lane).Synchronize().IgnoreError();
  }

  absl::Status Found(std::string& token) {
    std::array<std::string, kNumGroupLanes> ids;
    token.clear();
    for (std::string& id : ids) {
      EPS_ASSIGN_OR_RETURN(id, api_->NewId());
      EPS_CHECK(id.size() <= NcclApi::kMaxIdBytes);
      token.push_back(static_cast<char>(id.size()));
      token.append(id);
    }
    std::string link_token;
    EPS_ASSIGN_OR_RETURN(link_, MemberLink::Listen(LinkOptions(), link_token));
    token.append(link_token);
    return Begin(ids);
  }

  absl::Status Join(absl::string_view token) {
    std::array<std::string, kNumGroupLanes> ids;
    for (std::string& id : ids) {
      const size_t size = token.empty() ? 0 : static_cast<unsigned char>(token.front());
      if (size == 0 || size > NcclApi::kMaxIdBytes || token.size() < 1 + size) {
        return absl::InvalidArgumentError("group: token: not one of an NCCL group");
      }
      id = std::string(token.substr(1, size));
      token.remove_prefix(1 + size);
    }
    EPS_ASSIGN_OR_RETURN(link_, MemberLink::Connect(LinkOptions(), std::string(token)));
    return Begin(ids);
  }

  int rank() const override { return options_.rank; }
  int size() const override { return options_.size; }

  void Enqueue(GroupLane lane, Exchange exchange) override {
    StreamOf(*options_.device, lane).IssueNative([this, lane, transfers = NcclTransfers(exchange)](void* stream) {
      return Transfer(lane, transfers, stream);
    });
  }

  absl::Status status() const override { return link_->status(); }
  void End(absl::Status reason) override { link_->End(reason); }

 private:
  struct Lane {
    // Held over calls of NCCL, which return at once, so that none meets the abort.
    Mutex mu;
    NcclComm comm ABSL_GUARDED_BY(mu) = nullptr;  // null: not begun, or aborted
  };
  Lane& At(GroupLane lane) { return lanes_[static_cast<size_t>(lane)]; }

  MemberLink::Options LinkOptions() {
    return {.id = options_.id,
            .rank = options_.rank,
            .size = options_.size,
            .on_joined = [this](const absl::Status& status) { OnPartJoined(status); },
            .on_end =
                [this](const absl::Status& why) {
                  MutexLock lock(mu_);
                  ended_ = why;
                  changed_.NotifyAll();
                }};
  }

  // Each lane's communicator joins where its stream's work is issued: the device is current there. One lane after the
  // other, the same first with every member: what NCCL sets up for one must not wait on the GPU for what it does for
  // another.
  absl::Status Begin(const std::array<std::string, kNumGroupLanes>& ids) {
    for (const GroupLane lane : kLanes) {
      EPS_ASSIGN_OR_RETURN(aborters_[static_cast<size_t>(lane)], StartThread([this, lane] { AbortAtEnd(At(lane)); }));
    }
    begun_ = true;
    for (const GroupLane lane : kLanes) {
      StreamOf(*options_.device, lane).IssueNative([this, lane, id = ids[static_cast<size_t>(lane)]](void* stream) {
        absl::Status joined = AwaitLanesBefore(lane);
        if (joined.ok()) joined = JoinLane(lane, id, stream);
        if (!joined.ok()) joined = EndFor(std::move(joined));
        OnLaneJoined();
        OnPartJoined(joined);
        return absl::OkStatus();  // a group that does not come about is no fault of the stream
      });
    }
    return absl::OkStatus();
  }

  absl::Status AwaitLanesBefore(GroupLane lane) {
    MutexLock lock(mu_);
    while (ended_.ok() && lanes_joined_ < static_cast<int>(lane)) changed_.Wait(mu_);
    return ended_;
  }
  void OnLaneJoined() {
    MutexLock lock(mu_);
    ++lanes_joined_;
    changed_.NotifyAll();
  }

  absl::Status JoinLane(GroupLane which, const std::string& id, void* stream) {
    Lane& lane = At(which);
    {
      MutexLock lock(lane.mu);
      EPS_RETURN_IF_ERROR(ended());
      EPS_ASSIGN_OR_RETURN(lane.comm, api_->Begin(id, rank(), size()));
    }
    EPS_RETURN_IF_ERROR(AwaitIssued(lane));
    return TouchPeers(which, stream);
  }

  // A byte to and from each other member: NCCL connects two when they first exchange something, for which it allocates
  // and waits, and in mid-step that could be for what never ends before.
  absl::Status TouchPeers(GroupLane lane, void* stream) {
    const auto peers = static_cast<size_t>(size());
    EPS_ASSIGN_OR_RETURN(void* const scratch, api_->NewScratch(2 * peers, stream));
    auto* bytes = static_cast<std::byte*>(scratch);
    std::vector<NcclTransfer> transfers;
    for (size_t peer = 0; peer < peers; ++peer) {
      if (static_cast<int>(peer) == rank()) continue;
      transfers.push_back({.peer = static_cast<int>(peer), .send = bytes + peer, .num_bytes = 1});
      transfers.push_back({.peer = static_cast<int>(peer), .receive = bytes + peers + peer, .num_bytes = 1});
    }
    const absl::Status moved = Transfer(lane, transfers, stream);
    const absl::Status freed = api_->FreeScratch(scratch, stream);
    EPS_RETURN_IF_ERROR(moved);
    EPS_RETURN_IF_ERROR(freed);
    return ended();  // an exchange that was cut short ends like any other
  }

  // Until what was asked of NCCL is done or in its stream.
  absl::Status AwaitIssued(Lane& lane) {
    while (true) {
      {
        MutexLock lock(lane.mu);
        EPS_RETURN_IF_ERROR(CheckUsable(lane));
        const absl::Status state = api_->State(lane.comm);
        if (!absl::IsUnavailable(state)) return state;
      }
      absl::SleepFor(kLook);
    }
  }

  absl::Status Transfer(GroupLane which, const std::vector<NcclTransfer>& transfers, void* stream) {
    Lane& lane = At(which);
    absl::Status status = absl::OkStatus();
    {
      MutexLock lock(lane.mu);
      EPS_RETURN_IF_ERROR(CheckUsable(lane));
      status = api_->Transfer(lane.comm, transfers, stream);
    }
    if (status.ok()) status = AwaitIssued(lane);
    return status.ok() ? status : EndFor(std::move(status));
  }

  // What is told of `reason`: the group's first one, whichever thread saw it, and always ABORTED. Whatever NCCL says is
  // the group's end, and not this worker's: one whose device is broken finds that out alone.
  absl::Status EndFor(absl::Status reason) {
    End(std::move(reason));
    return link_->status();
  }

  absl::Status CheckUsable(const Lane& lane) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(lane.mu) {
    EPS_RETURN_IF_ERROR(ended());
    return lane.comm != nullptr ? absl::OkStatus() : absl::AbortedError("the group has ended: it was not joined");
  }

  absl::Status ended() const ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    return ended_;
  }

  // Of the link and each lane: once all have joined, or the first has not.
  void OnPartJoined(const absl::Status& status) {
    {
      MutexLock lock(mu_);
      if (told_ || (status.ok() && ++parts_joined_ < 1 + kNumGroupLanes)) return;
      told_ = true;
    }
    options_.on_joined(status);
  }

  // An exchange that NCCL's own threads carry, where GPUs do not reach each other, may break after it was issued: its
  // kernel then waits for ever, and State alone tells.
  void AbortAtEnd(Lane& lane) {
    while (!HasEndedWithin(kWatch)) {
      if (absl::Status broken = Look(lane); !broken.ok()) End(std::move(broken));
    }
    MutexLock lock(lane.mu);
    if (NcclComm comm = std::exchange(lane.comm, nullptr); comm != nullptr) api_->Abort(comm);
  }

  bool HasEndedWithin(std::chrono::milliseconds time) {
    MutexLock lock(mu_);
    if (ended_.ok()) changed_.WaitFor(mu_, time);
    return !ended_.ok();
  }
  absl::Status Look(Lane& lane) {
    MutexLock lock(lane.mu);
    if (lane.comm == nullptr) return absl::OkStatus();
    const absl::Status state = api_->State(lane.comm);
    return absl::IsUnavailable(state) ? absl::OkStatus() : state;
  }

  // Fixed after construction.
  const std::shared_ptr<NcclApi> api_;
  const GroupOptions options_;
  std::array<Lane, kNumGroupLanes> lanes_;

  mutable Mutex mu_;  // inside of a lane's
  CondVar changed_;
  absl::Status ended_ ABSL_GUARDED_BY(mu_);    // as the link says
  int lanes_joined_ ABSL_GUARDED_BY(mu_) = 0;  // or failed to, which has ended the group
  int parts_joined_ ABSL_GUARDED_BY(mu_) = 0;
  bool told_ ABSL_GUARDED_BY(mu_) = false;

  bool begun_ = false;  // the streams have been given work
  // A thread each: an abort may wait for what runs on the GPU, and so for the other lane's.
  std::array<std::thread, kNumGroupLanes> aborters_;
  std::unique_ptr<MemberLink> link_;  // last: it calls back into all of the above
};

class NcclGroupMaker final : public GroupMaker {
 public:
  explicit NcclGroupMaker(std::shared_ptr<NcclApi> api) : api_(std::move(api)) {}

  std::string kind() const override {
    // By loopback only those of one network namespace reach each other, and not every container of a host.
    const char* network = std::getenv("NCCL_SOCKET_IFNAME");
    const bool is_loopback = network != nullptr && absl::string_view(network) == "lo";
    return is_loopback ? absl::StrCat(api_->version(), " network ", NetworkIdentity()) : api_->version();
  }

  absl::StatusOr<std::unique_ptr<Group>> Found(GroupOptions options, std::string& token) override {
    auto group = std::make_unique<NcclGroup>(api_, std::move(options));
    EPS_RETURN_IF_ERROR(group->Found(token));
    return group;
  }

  absl::StatusOr<std::unique_ptr<Group>> Join(GroupOptions options, absl::string_view token) override {
    auto group = std::make_unique<NcclGroup>(api_, std::move(options));
    EPS_RETURN_IF_ERROR(group->Join(token));
    return group;
  }

 private:
  const std::shared_ptr<NcclApi> api_;
};

}  // namespace

std::vector<NcclTransfer> NcclTransfers(const Exchange& exchange) {
  std::vector<NcclTransfer> transfers;
  for (size_t peer = 0; peer < exchange.gives.size(); ++peer) {
    for (const absl::Span<const std::byte> span : exchange.gives[peer]) {
      if (span.empty()) continue;
      transfers.push_back({.peer = static_cast<int>(peer), .send = span.data(), .num_bytes = span.size()});
    }
    for (const absl::Span<std::byte> span : exchange.gets[peer]) {
      if (span.empty()) continue;
      transfers.push_back({.peer = static_cast<int>(peer), .receive = span.data(), .num_bytes = span.size()});
    }
  }
  return transfers;
}

std::unique_ptr<GroupMaker> NewNcclGroupMaker(std::shared_ptr<NcclApi> api) {
  return std::make_unique<NcclGroupMaker>(std::move(api));
}

}  // namespace eps::worker
