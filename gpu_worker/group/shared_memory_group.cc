#include "gpu_worker/group/shared_memory_group.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/base/mutex.h"
#include "common/base/status_macros.h"
#include "common/ipc/shared_segment.h"
#include "common/ipc/unix_socket.h"
#include "gpu_worker/group/member_link.h"
#include "gpu_worker/group/shared_ring.h"

namespace eps::worker {
namespace {

// How late a member that waits in an exchange sees an end that nobody rang for: its process was killed in mid-word.
constexpr absl::Duration kLook = absl::Milliseconds(100);

// What goes before the bytes of an exchange, so that members that do not exchange the same find out.
struct Preamble {
  uint64_t number = 0;  // of the exchange in its lane
  uint64_t num_bytes = 0;
};

// The shared memory: for each lane a bell of each member, then a ring for each ordered pair. Zeros are its beginning.
class SharedRings {
 public:
  static int64_t NumBytes(int size) {
    return static_cast<int64_t>(kNumGroupLanes * (static_cast<size_t>(size) * kBellStride +
                                                  static_cast<size_t>(size) * size * sizeof(SharedRing)));
  }
  SharedRings(absl::Span<std::byte> memory, int size) : memory_(memory.data()), size_(static_cast<size_t>(size)) {}

  SharedBell& Bell(GroupLane lane, int rank) const {
    return *reinterpret_cast<SharedBell*>(memory_ + LaneOffset(lane) + static_cast<size_t>(rank) * kBellStride);
  }
  SharedRing& Ring(GroupLane lane, int from, int to) const {
    const size_t pair = static_cast<size_t>(from) * size_ + static_cast<size_t>(to);
    return *reinterpret_cast<SharedRing*>(memory_ + LaneOffset(lane) + size_ * kBellStride + pair * sizeof(SharedRing));
  }

 private:
  static constexpr size_t kBellStride = alignof(SharedRing);  // each in a cache line of its own
  size_t LaneOffset(GroupLane lane) const {
    return static_cast<size_t>(lane) * (size_ * kBellStride + size_ * size_ * sizeof(SharedRing));
  }

  std::byte* const memory_;
  const size_t size_;
};

// One direction between two members in one exchange: where it has come to.
template <typename Byte>
class Flow {
 public:
  Flow(std::vector<absl::Span<Byte>> spans) : spans_(std::move(spans)) {
    for (const absl::Span<Byte> span : spans_) num_bytes_ += span.size();
  }
  uint64_t num_bytes() const { return num_bytes_; }
  // What is left of the first span that is not done; empty: all are done.
  absl::Span<Byte> Rest() {
    while (index_ < spans_.size() && at_ == spans_[index_].size()) {
      ++index_;
      at_ = 0;
    }
    return index_ < spans_.size() ? spans_[index_].subspan(at_) : absl::Span<Byte>();
  }
  void Advance(size_t count) { at_ += count; }

 private:
  std::vector<absl::Span<Byte>> spans_;
  uint64_t num_bytes_ = 0;
  size_t index_ = 0, at_ = 0;
};

absl::Span<const std::byte> BytesOf(const Preamble& preamble) {
  return absl::MakeConstSpan(reinterpret_cast<const std::byte*>(&preamble), sizeof(preamble));
}
absl::Span<std::byte> BytesOf(Preamble& preamble) {
  return absl::MakeSpan(reinterpret_cast<std::byte*>(&preamble), sizeof(preamble));
}

class SharedMemoryGroup final : public Group {
 public:
  explicit SharedMemoryGroup(GroupOptions options) : options_(std::move(options)) {}
  ~SharedMemoryGroup() override { link_.reset(); }  // before what it calls back

  absl::Status Found(std::string& token) {
    EPS_ASSIGN_OR_RETURN(SharedSegment memory,
                         SharedSegment::Create("eps-group", SharedRings::NumBytes(size()), SegmentWriter::kBoth));
    MemberLink::Options options = LinkOptions();
    options.welcome_file = memory.file().get();
    UseMemory(std::move(memory));
    EPS_ASSIGN_OR_RETURN(link_, MemberLink::Listen(std::move(options), token));
    return absl::OkStatus();
  }

  absl::Status Join(std::string token) {
    MemberLink::Options options = LinkOptions();
    options.on_welcome = [this](Packet welcome) -> absl::Status {
      if (welcome.files.size() != 1) return absl::InternalError("member 0 sent no memory");
      EPS_ASSIGN_OR_RETURN(
          SharedSegment memory,
          SharedSegment::Map(std::move(welcome.files[0]), SharedRings::NumBytes(size()), SegmentWriter::kBoth));
      UseMemory(std::move(memory));
      return absl::OkStatus();
    };
    EPS_ASSIGN_OR_RETURN(link_, MemberLink::Connect(std::move(options), std::move(token)));
    return absl::OkStatus();
  }

  int rank() const override { return options_.rank; }
  int size() const override { return options_.size; }

  void Enqueue(GroupLane lane, Exchange exchange) override {
    StreamOf(*options_.device, lane).HostCall([this, lane, exchange = std::move(exchange)] {
      return Carry(lane, exchange);
    });
  }

  absl::Status status() const override { return link_->status(); }
  void End(absl::Status reason) override { link_->End(reason); }

 private:
  MemberLink::Options LinkOptions() {
    return {.id = options_.id,
            .rank = options_.rank,
            .size = options_.size,
            .on_joined = options_.on_joined,
            .on_end = [this](const absl::Status& why) { OnEnd(why); }};
  }

  // For this member's own exchanges; the others see the end of the link.
  void OnEnd(const absl::Status& why) {
    MutexLock lock(mu_);
    ended_ = why;
    changed_.NotifyAll();
    if (!rings_.has_value()) return;
    for (const GroupLane lane : {GroupLane::kPull, GroupLane::kPush}) rings_->Bell(lane, rank()).Ring();
  }

  void UseMemory(SharedSegment memory) {
    MutexLock lock(mu_);
    memory_.emplace(std::move(memory));
    rings_.emplace(memory_->bytes(), size());
    changed_.NotifyAll();
  }

  // ---- exchanges ----
  absl::Status ended() const {
    MutexLock lock(mu_);
    return ended_;
  }
  absl::StatusOr<SharedRings> WaitForRings() {
    MutexLock lock(mu_);
    while (ended_.ok() && !rings_.has_value()) changed_.Wait(mu_);
    EPS_RETURN_IF_ERROR(ended_);
    return *rings_;
  }

  absl::Status Carry(GroupLane lane, const Exchange& exchange) {
    EPS_ASSIGN_OR_RETURN(const SharedRings rings, WaitForRings());
    const absl::Status status = CarryOver(rings, lane, exchange);
    if (absl::IsInternal(status)) End(status);
    return status;
  }

  struct Peer {
    int rank = 0;
    Preamble given, got;
    Flow<const std::byte> gives, gives_head;
    Flow<std::byte> gets, gets_head;
    bool checked = false;
  };

  absl::Status CarryOver(const SharedRings& rings, GroupLane lane, const Exchange& exchange) {
    const uint64_t number = ++exchanges_[static_cast<size_t>(lane)];
    std::vector<std::unique_ptr<Peer>> peers;  // which point into themselves
    for (int other = 0; other < size(); ++other) {
      if (other == rank()) continue;
      const auto at = static_cast<size_t>(other);
      auto peer = std::unique_ptr<Peer>(new Peer{.rank = other,
                                                 .given = {},
                                                 .got = {},
                                                 .gives = {exchange.gives[at]},
                                                 .gives_head = {{}},
                                                 .gets = {exchange.gets[at]},
                                                 .gets_head = {{}}});
      peer->given = {.number = number, .num_bytes = peer->gives.num_bytes()};
      peer->gives_head = Flow<const std::byte>({BytesOf(std::as_const(peer->given))});
      peer->gets_head = Flow<std::byte>({BytesOf(peer->got)});
      peers.push_back(std::move(peer));
    }
    SharedBell& bell = rings.Bell(lane, rank());
    while (true) {
      EPS_RETURN_IF_ERROR(ended());
      const uint32_t seen = bell.Read();
      bool moved = false, done = true;
      for (const std::unique_ptr<Peer>& peer : peers) {
        EPS_ASSIGN_OR_RETURN(const bool some, Move(rings, lane, number, *peer));
        if (some) rings.Bell(lane, peer->rank).Ring();
        moved |= some;
        done &=
            peer->gives.Rest().empty() && peer->gives_head.Rest().empty() && peer->checked && peer->gets.Rest().empty();
      }
      if (done) return absl::OkStatus();
      if (!moved) bell.Wait(seen, kLook);
    }
  }

  // Moves what can be moved without waiting; true if anything was.
  absl::StatusOr<bool> Move(const SharedRings& rings, GroupLane lane, uint64_t number, Peer& peer) const {
    bool moved = Pass(peer.gives_head, [&](auto bytes) { return rings.Ring(lane, rank(), peer.rank).Write(bytes); });
    if (peer.gives_head.Rest().empty()) {
      moved |= Pass(peer.gives, [&](auto bytes) { return rings.Ring(lane, rank(), peer.rank).Write(bytes); });
    }
    SharedRing& incoming = rings.Ring(lane, peer.rank, rank());
    moved |= Pass(peer.gets_head, [&](auto bytes) { return incoming.Read(bytes); });
    if (!peer.gets_head.Rest().empty()) return moved;
    if (!peer.checked) {
      if (peer.got.number != number || peer.got.num_bytes != peer.gets.num_bytes()) {
        return absl::InternalError(absl::StrCat("group: member ", peer.rank, " gives ", peer.got.num_bytes,
                                                " bytes in exchange ", peer.got.number, ", member ", rank(), " wants ",
                                                peer.gets.num_bytes(), " in exchange ", number));
      }
      peer.checked = true;
    }
    moved |= Pass(peer.gets, [&](auto bytes) { return incoming.Read(bytes); });
    return moved;
  }

  template <typename Byte, typename Copy>
  static bool Pass(Flow<Byte>& flow, Copy copy) {
    bool moved = false;
    while (!flow.Rest().empty()) {
      const size_t count = copy(flow.Rest());
      if (count == 0) break;
      flow.Advance(count);
      moved = true;
    }
    return moved;
  }

  // Fixed after construction.
  const GroupOptions options_;
  // Each of its lane's stream.
  std::array<uint64_t, kNumGroupLanes> exchanges_ = {};

  mutable Mutex mu_;
  CondVar changed_;
  absl::Status ended_ ABSL_GUARDED_BY(mu_);  // as the link says
  std::optional<SharedSegment> memory_ ABSL_GUARDED_BY(mu_);
  std::optional<SharedRings> rings_ ABSL_GUARDED_BY(mu_);  // none: not joined yet. Into memory_, which stays

  std::unique_ptr<MemberLink> link_;  // last: it calls back into all of the above
};

class SharedMemoryGroupMaker final : public GroupMaker {
 public:
  std::string kind() const override { return "shared_memory"; }

  absl::StatusOr<std::unique_ptr<Group>> Found(GroupOptions options, std::string& token) override {
    auto group = std::make_unique<SharedMemoryGroup>(std::move(options));
    EPS_RETURN_IF_ERROR(group->Found(token));
    return group;
  }

  absl::StatusOr<std::unique_ptr<Group>> Join(GroupOptions options, absl::string_view token) override {
    auto group = std::make_unique<SharedMemoryGroup>(std::move(options));
    EPS_RETURN_IF_ERROR(group->Join(std::string(token)));
    return group;
  }
};

}  // namespace

std::unique_ptr<GroupMaker> NewSharedMemoryGroupMaker() { return std::make_unique<SharedMemoryGroupMaker>(); }

}  // namespace eps::worker
