#include "gpu_worker/group/nccl_group.h"

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <optional>
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
#include "common/ipc/shared_segment.h"
#include "common/ipc/unix_socket.h"
#include "gpu_worker/group/member_link.h"

namespace eps::worker {
namespace {

// Between two looks at what NCCL does by itself: what it issues takes microseconds, for which nobody sleeps; joining
// takes seconds, connecting to a peer for the first time less.
constexpr std::chrono::microseconds kIssueTime(50);
constexpr absl::Duration kLook = absl::Microseconds(100);
// Between two looks at what it says of exchanges that are on the GPU.
constexpr std::chrono::milliseconds kWatch(100);
// How long a member's word of why it ends may take, by way of member 0, once its exchanges are cut short.
constexpr std::chrono::milliseconds kWordTime(5000);

// The memory that the members share: who was the first to cut its exchanges short. Zeros are its beginning.
struct CutPage {
  std::atomic<uint32_t> by = 0;  // rank + 1; 0: nobody
};
static_assert(std::atomic<uint32_t>::is_always_lock_free);
constexpr int64_t kCutPageBytes = 4096;

class NcclGroup final : public Group {
 public:
  NcclGroup(std::shared_ptr<NcclApi> api, GroupOptions options) : api_(std::move(api)), options_(std::move(options)) {}
  ~NcclGroup() override {
    if (!begun_) TellNobody();  // who was never given the group has its error
    if (link_ != nullptr) link_->End(absl::CancelledError("it was closed"));
    if (aborter_.joinable()) aborter_.join();
    if (!begun_) return;
    // What was given to the streams ends now, and looks at this no more once they are idle.
    for (const GroupLane lane : {GroupLane::kPull, GroupLane::kPush}) {
      StreamOf(*options_.device, lane).Synchronize().IgnoreError();
    }
  }

  absl::Status Found(std::string& token) {
    EPS_ASSIGN_OR_RETURN(SharedSegment page, SharedSegment::Create("eps-group", kCutPageBytes, SegmentWriter::kBoth));
    MemberLink::Options options = LinkOptions();
    options.welcome_file = page.file().get();
    UsePage(std::move(page));
    // Before the id, for which NCCL starts a thread that waits for the others.
    std::string link_token;
    EPS_ASSIGN_OR_RETURN(link_, MemberLink::Listen(std::move(options), link_token));
    EPS_ASSIGN_OR_RETURN(const std::string id, api_->NewId());
    EPS_CHECK(id.size() <= NcclApi::kMaxIdBytes);
    token = absl::StrCat(std::string(1, static_cast<char>(id.size())), id, link_token);
    return Begin(id);
  }

  absl::Status Join(absl::string_view token) {
    const size_t size = token.empty() ? 0 : static_cast<unsigned char>(token.front());
    if (size == 0 || size > NcclApi::kMaxIdBytes || token.size() < 1 + size) {
      return absl::InvalidArgumentError("group: token: not one of an NCCL group");
    }
    const std::string id(token.substr(1, size));
    token.remove_prefix(1 + size);
    MemberLink::Options options = LinkOptions();
    options.on_welcome = [this](Packet welcome) -> absl::Status {
      if (welcome.files.size() != 1) return absl::InternalError("member 0 sent no memory");
      EPS_ASSIGN_OR_RETURN(SharedSegment page,
                           SharedSegment::Map(std::move(welcome.files[0]), kCutPageBytes, SegmentWriter::kBoth));
      UsePage(std::move(page));
      return absl::OkStatus();
    };
    EPS_ASSIGN_OR_RETURN(link_, MemberLink::Connect(std::move(options), std::string(token)));
    return Begin(id);
  }

  int rank() const override { return options_.rank; }
  int size() const override { return options_.size; }

  void Enqueue(GroupLane lane, Exchange exchange) override {
    IssueInTurn(lane, [this, transfers = NcclTransfers(exchange)](Turn& turn, void* stream) {
      EPS_RETURN_IF_ERROR(AwaitTurn(turn.number()));
      EPS_RETURN_IF_ERROR(Transfer(transfers, stream));
      turn.Pass();
      return absl::OkStatus();
    });
  }

  // A kernel that a peer's abort has ended says nothing of it: the page does, which is written before. The word that
  // follows has the reason.
  absl::Status status() const override {
    const absl::Status ended = link_->status();
    const uint32_t by = ended.ok() ? WhoHasCut() : 0;
    if (by == 0) return ended;
    if (!HasEndedWithin(kWordTime)) {
      link_->End(absl::UnavailableError(absl::StrCat("member ", by - 1, " has cut its exchanges short")));
    }
    return link_->status();
  }
  void End(absl::Status reason) override { link_->End(reason); }

 private:
  // A place in the order in which exchanges are issued; joining has the first. A stream that has failed drops what it
  // was given, and this with it: what comes later would wait for ever.
  class Turn {
   public:
    Turn(NcclGroup* group, uint64_t number) : group_(*group), number_(number) {}
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;
    ~Turn() {
      if (!passed_) group_.LeaveOut();
    }
    uint64_t number() const { return number_; }
    void Pass() {
      passed_ = true;
      group_.PassTurn();
    }

   private:
    NcclGroup& group_;
    const uint64_t number_;
    bool passed_ = false;
  };

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

  // The communicator joins where the in-stream's work is issued: the device is current there.
  absl::Status Begin(const std::string& id) {
    EPS_ASSIGN_OR_RETURN(aborter_, StartThread([this] { AbortAtEnd(); }));
    begun_ = true;
    IssueInTurn(GroupLane::kPull, [this, id](Turn& turn, void* stream) {
      absl::Status joined = JoinOthers(id, stream);
      if (joined.ok()) {
        turn.Pass();
      } else {
        joined = EndFor(std::move(joined));
      }
      OnPartJoined(joined);
      return absl::OkStatus();  // a group that does not come about is no fault of the stream
    });
    return absl::OkStatus();
  }

  template <typename IssueCall>
  void IssueInTurn(GroupLane lane, IssueCall issue) {
    StreamOf(*options_.device, lane)
        .IssueNative([turn = std::make_shared<Turn>(this, enqueued_++), issue = std::move(issue)](void* stream) {
          return issue(*turn, stream);
        });
  }

  absl::Status JoinOthers(const std::string& id, void* stream) {
    EPS_RETURN_IF_ERROR(AwaitPage());
    {
      MutexLock lock(comm_mu_);
      EPS_RETURN_IF_ERROR(ended());
      EPS_ASSIGN_OR_RETURN(comm_, api_->Begin(id, rank(), size()));
    }
    EPS_RETURN_IF_ERROR(AwaitIssued());
    return TouchPeers(stream);
  }

  // A byte to and from each other member: NCCL connects two when they first exchange something, for which it allocates
  // and waits, and in mid-step that could be for what never ends before.
  absl::Status TouchPeers(void* stream) {
    const auto peers = static_cast<size_t>(size());
    EPS_ASSIGN_OR_RETURN(void* const scratch, api_->NewScratch(2 * peers, stream));
    auto* bytes = static_cast<std::byte*>(scratch);
    std::vector<NcclTransfer> transfers;
    for (size_t peer = 0; peer < peers; ++peer) {
      if (static_cast<int>(peer) == rank()) continue;
      transfers.push_back({.peer = static_cast<int>(peer), .send = bytes + peer, .num_bytes = 1});
      transfers.push_back({.peer = static_cast<int>(peer), .receive = bytes + peers + peer, .num_bytes = 1});
    }
    const absl::Status moved = Transfer(transfers, stream);
    const absl::Status freed = api_->FreeScratch(scratch, stream);
    EPS_RETURN_IF_ERROR(moved);
    EPS_RETURN_IF_ERROR(freed);
    return ended();  // an exchange that was cut short ends like any other
  }

  // Until what was asked of NCCL is done or in its stream.
  absl::Status AwaitIssued() {
    const auto asked_at = std::chrono::steady_clock::now();
    while (true) {
      {
        MutexLock lock(comm_mu_);
        EPS_RETURN_IF_ERROR(CheckUsable());
        const absl::Status state = api_->State(comm_);
        if (!absl::IsUnavailable(state)) return state;
      }
      if (std::chrono::steady_clock::now() - asked_at < kIssueTime) {
        std::this_thread::yield();
      } else {
        absl::SleepFor(kLook);
      }
    }
  }

  absl::Status Transfer(const std::vector<NcclTransfer>& transfers, void* stream) {
    if (transfers.empty()) return ended();  // NCCL would never free what it keeps of an empty group of calls
    absl::Status status = absl::OkStatus();
    {
      MutexLock lock(comm_mu_);
      EPS_RETURN_IF_ERROR(CheckUsable());
      status = api_->Transfer(comm_, transfers, stream);
    }
    if (status.ok()) status = AwaitIssued();
    return status.ok() ? status : EndFor(std::move(status));
  }

  // What is told of `reason`: the group's first one, whichever thread saw it, and always ABORTED. Whatever NCCL says is
  // the group's end, and not this worker's: one whose device is broken finds that out alone.
  // It may follow from another's end, whose word goes first.
  absl::Status EndFor(absl::Status reason) {
    if (!HasEndedWithin(WhoHasCut() != 0 ? kWordTime : kWatch)) End(std::move(reason));
    return link_->status();
  }

  absl::Status CheckUsable() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(comm_mu_) {
    EPS_RETURN_IF_ERROR(ended());
    return comm_ != nullptr ? absl::OkStatus() : absl::AbortedError("the group has ended: it was not joined");
  }

  absl::Status ended() const ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    return ended_;
  }

  // ---- turns ----
  absl::Status AwaitTurn(uint64_t number) {
    MutexLock lock(mu_);
    while (ended_.ok() && next_turn_ != number) changed_.Wait(mu_);
    return ended_;
  }
  void PassTurn() {
    MutexLock lock(mu_);
    ++next_turn_;
    changed_.NotifyAll();
  }
  void LeaveOut() {
    MutexLock lock(mu_);
    left_out_ = true;
  }

  // Of the link and the communicator: once all have joined, or the first has not.
  void OnPartJoined(const absl::Status& status) {
    {
      MutexLock lock(mu_);
      if (told_ || (status.ok() && ++parts_joined_ < 2)) return;
      told_ = true;
    }
    options_.on_joined(status);
  }
  void TellNobody() {
    MutexLock lock(mu_);
    told_ = true;
  }

  // ---- the end ----
  void UsePage(SharedSegment page) {
    MutexLock lock(mu_);
    page_.emplace(std::move(page));
    changed_.NotifyAll();
  }
  // Before there is a communicator, whose abort it is to tell.
  absl::Status AwaitPage() {
    MutexLock lock(mu_);
    while (ended_.ok() && !page_.has_value()) changed_.Wait(mu_);
    return ended_;
  }
  CutPage* cut_page() const {
    MutexLock lock(mu_);
    return page_.has_value() ? reinterpret_cast<CutPage*>(page_->bytes().data()) : nullptr;
  }
  uint32_t WhoHasCut() const {
    const CutPage* page = cut_page();
    return page == nullptr ? 0 : page->by.load();
  }

  // An exchange that NCCL's own threads carry, where GPUs do not reach each other, may break after it was issued: its
  // kernel then waits for ever, and State alone tells. What is seen here ends the group one look later: it may have a
  // cause, and who knows that says it first.
  void AbortAtEnd() {
    while (true) {
      absl::Status broken = Look();
      if (HasEndedWithin(kWatch)) break;
      if (!broken.ok()) End(std::move(broken));
    }
    Abort();
    OnPartJoined(ended());  // the stream may have dropped what would tell
  }
  // First the page, then the abort, after which kernels of the others may end as if they had all of it. The abort waits
  // for the GPU, and nobody else has the communicator any more.
  void Abort() {
    NcclComm comm = nullptr;
    {
      MutexLock lock(comm_mu_);
      comm = std::exchange(comm_, nullptr);
    }
    if (comm == nullptr) return;
    uint32_t nobody = 0;
    cut_page()->by.compare_exchange_strong(nobody, static_cast<uint32_t>(rank()) + 1);
    api_->Abort(comm);
  }

  bool HasEndedWithin(std::chrono::milliseconds time) const {
    const auto deadline = std::chrono::steady_clock::now() + time;
    MutexLock lock(mu_);
    while (ended_.ok()) {
      const auto left = deadline - std::chrono::steady_clock::now();
      if (left <= left.zero()) break;
      changed_.WaitFor(mu_, left);
    }
    return !ended_.ok();
  }
  absl::Status Look() {
    {
      MutexLock lock(mu_);
      if (left_out_) return absl::AbortedError("an exchange was left out, as its stream had failed");
    }
    MutexLock lock(comm_mu_);
    if (comm_ == nullptr) return absl::OkStatus();
    const absl::Status state = api_->State(comm_);
    return absl::IsUnavailable(state) ? absl::OkStatus() : state;
  }

  // Fixed after construction.
  const std::shared_ptr<NcclApi> api_;
  const GroupOptions options_;

  // Held over calls of NCCL, so that none meets the abort. They return at once, but for what Begin opens of the
  // network.
  Mutex comm_mu_;
  NcclComm comm_ ABSL_GUARDED_BY(comm_mu_) = nullptr;  // null: not begun, or aborted. One that is there has a page_

  mutable Mutex mu_;  // inside of comm_mu_
  mutable CondVar changed_;
  absl::Status ended_ ABSL_GUARDED_BY(mu_);                 // as the link says
  std::optional<SharedSegment> page_ ABSL_GUARDED_BY(mu_);  // a CutPage; none: not welcomed yet. It stays
  uint64_t next_turn_ ABSL_GUARDED_BY(mu_) = 0;             // whose it is to issue
  bool left_out_ ABSL_GUARDED_BY(mu_) = false;              // a turn that will not come
  int parts_joined_ ABSL_GUARDED_BY(mu_) = 0;
  bool told_ ABSL_GUARDED_BY(mu_) = false;

  uint64_t enqueued_ = 0;  // turns; of who enqueues
  bool begun_ = false;     // the streams have been given work
  std::thread aborter_;
  std::unique_ptr<MemberLink> link_;  // last: it calls back into all of the above
};

class NcclGroupMaker final : public GroupMaker {
 public:
  explicit NcclGroupMaker(std::shared_ptr<NcclApi> api) : api_(std::move(api)) {}

  std::string kind() const override {
    // By loopback only those of one network namespace reach each other, and not every container of a host.
    const char* network = std::getenv("NCCL_SOCKET_IFNAME");
    const bool is_loopback = network != nullptr && absl::string_view(network) == "lo";
    constexpr absl::string_view kJoining = " page";  // what members show each other when they join
    return absl::StrCat(api_->version(), kJoining, is_loopback ? absl::StrCat(" network ", NetworkIdentity()) : "");
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
