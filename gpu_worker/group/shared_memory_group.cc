#include "gpu_worker/group/shared_memory_group.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/base/file_util.h"
#include "common/base/mutex.h"
#include "common/base/status_macros.h"
#include "common/base/thread.h"
#include "common/ipc/shared_segment.h"
#include "common/ipc/unix_socket.h"
#include "gpu_worker/group/shared_ring.h"

namespace eps::worker {
namespace {

constexpr int kMaxMembers = 64;
constexpr size_t kMaxWordBytes = 512;
constexpr absl::Duration kHandshakeTime = absl::Seconds(5);
// How late a member that waits in an exchange sees an end that nobody rang for: its process was killed in mid-word.
constexpr absl::Duration kLook = absl::Milliseconds(100);

// The first words of a connection: who comes, and the answer is the memory.
struct Hello {
  uint64_t id = 0;
  int32_t rank = 0;
};

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
  // Rank 0 listens, the others connect to `path`.
  SharedMemoryGroup(GroupOptions options, std::optional<LocalListener> listener, std::string path)
      : options_(std::move(options)), path_(std::move(path)), listener_(std::move(listener)) {}
  ~SharedMemoryGroup() override {
    End(absl::CancelledError("the group was closed"));
    if (watcher_.joinable()) watcher_.join();
  }

  absl::Status Start() {
    wake_ = FileDescriptor(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!wake_.is_open()) return FileError(errno, "make an eventfd for", "a group");
    EPS_ASSIGN_OR_RETURN(watcher_, StartThread([this] { Watch(); }));
    return absl::OkStatus();
  }

  int rank() const override { return options_.rank; }
  int size() const override { return options_.size; }

  void Enqueue(GroupLane lane, Stream& stream, Exchange exchange) override {
    stream.HostCall([this, lane, exchange = std::move(exchange)] { return Carry(lane, exchange); });
  }

  absl::Status status() const override {
    MutexLock lock(mu_);
    return status_;
  }

  void End(absl::Status reason) override {
    {
      MutexLock lock(mu_);
      if (!status_.ok()) return;
      status_ = absl::AbortedError(absl::StrCat("the group has ended: ", reason.message()));
      changed_.NotifyAll();
      if (rings_.has_value()) {  // for our own exchanges: the others see the end of the connection
        for (const GroupLane lane : {GroupLane::kPull, GroupLane::kPush}) rings_->Bell(lane, rank()).Ring();
      }
    }
    const uint64_t one = 1;
    if (write(wake_.get(), &one, sizeof(one)) < 0) return;  // full: the watcher wakes anyway
  }

 private:
  // ---- exchanges ----
  absl::StatusOr<SharedRings> WaitForRings() {
    MutexLock lock(mu_);
    while (status_.ok() && !rings_.has_value()) changed_.Wait(mu_);
    EPS_RETURN_IF_ERROR(status_);
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
      EPS_RETURN_IF_ERROR(status());
      const uint32_t seen = bell.Read();
      bool moved = false, done = true;
      for (const std::unique_ptr<Peer>& peer : peers) {
        EPS_ASSIGN_OR_RETURN(const bool some, Move(rings, lane, number, *peer));
        if (some) rings.Bell(lane, peer->rank).Ring();
        moved |= some;
        done &= peer->gives.Rest().empty() && peer->gives_head.Rest().empty() && peer->checked &&
                peer->gets.Rest().empty();
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

  // ---- joining, and the ends of the others ----
  void Watch() {
    const absl::Status joined = listener_.has_value() ? Welcome() : Connect();
    if (!joined.ok()) End(joined);
    options_.on_joined(joined.ok() ? absl::OkStatus() : status());
    if (joined.ok()) AwaitEnd();
    // The reason travels, where it is taken at once; the end of the connection is seen in any case.
    const std::string last_word(status().message().substr(0, kMaxWordBytes));
    for (const Member& member : sockets_) {
      SendPacket(member.socket, last_word, {}, absl::InfinitePast()).IgnoreError();
    }
    sockets_.clear();
    listener_.reset();
  }

  absl::Status Welcome() {
    EPS_ASSIGN_OR_RETURN(SharedSegment memory, SharedSegment::Create("eps-group", SharedRings::NumBytes(size()),
                                                                     SegmentWriter::kBoth));
    std::vector<bool> here(static_cast<size_t>(size()), false);
    here[0] = true;
    while (sockets_.size() + 1 < static_cast<size_t>(size())) {
      std::vector<pollfd> polled = Polled();
      polled.push_back({.fd = listener_->socket().get(), .events = POLLIN, .revents = 0});
      poll(polled.data(), polled.size(), -1);
      EPS_RETURN_IF_ERROR(status());
      EPS_RETURN_IF_ERROR(CheckOthers(polled));
      absl::StatusOr<FileDescriptor> socket = AcceptLocal(listener_->socket());
      if (absl::IsUnavailable(socket.status())) continue;
      EPS_RETURN_IF_ERROR(socket.status());
      if (absl::StatusOr<int> rank = ReceiveHello(*socket, here); rank.ok()) {
        EPS_RETURN_IF_ERROR(SendPacket(*socket, "welcome", {memory.file().get()}, absl::Now() + kHandshakeTime));
        here[static_cast<size_t>(*rank)] = true;
        sockets_.push_back({*rank, *std::move(socket)});
      }  // else a stranger: turned away
    }
    UseMemory(std::move(memory));
    return absl::OkStatus();
  }

  absl::StatusOr<int> ReceiveHello(const FileDescriptor& socket, const std::vector<bool>& here) const {
    EPS_RETURN_IF_ERROR(CheckPeerUser(socket));
    EPS_ASSIGN_OR_RETURN(const Packet packet, ReceivePacket(socket, sizeof(Hello), absl::Now() + kHandshakeTime));
    Hello hello;
    if (packet.bytes.size() != sizeof(hello)) return absl::InvalidArgumentError("hello: another length");
    memcpy(&hello, packet.bytes.data(), sizeof(hello));
    if (hello.id != options_.id) return absl::InvalidArgumentError("hello: another group");
    if (hello.rank < 1 || hello.rank >= size() || here[static_cast<size_t>(hello.rank)]) {
      return absl::InvalidArgumentError(absl::StrCat("hello: rank: ", hello.rank));
    }
    return hello.rank;
  }

  absl::Status Connect() {
    EPS_ASSIGN_OR_RETURN(FileDescriptor socket, ConnectLocal(path_));
    const Hello hello = {.id = options_.id, .rank = rank()};
    char bytes[sizeof(hello)] = {};
    memcpy(bytes, &hello, sizeof(hello));
    EPS_RETURN_IF_ERROR(SendPacket(socket, absl::string_view(bytes, sizeof(bytes)), {}, absl::Now() + kHandshakeTime));
    sockets_.push_back({0, std::move(socket)});
    // In short turns: End must not wait for a rank 0 that says nothing.
    absl::StatusOr<Packet> packet = absl::DeadlineExceededError("");
    while (absl::IsDeadlineExceeded(packet.status())) {
      EPS_RETURN_IF_ERROR(status());
      packet = ReceivePacket(sockets_[0].socket, kMaxGroupTokenBytes, absl::Now() + kLook);
    }
    EPS_RETURN_IF_ERROR_WITH(packet.status(), "member 0");
    if (packet->files.size() != 1) return absl::InternalError("member 0 sent no memory");
    EPS_ASSIGN_OR_RETURN(SharedSegment memory, SharedSegment::Map(std::move(packet->files[0]),
                                                                  SharedRings::NumBytes(size()), SegmentWriter::kBoth));
    UseMemory(std::move(memory));
    return absl::OkStatus();
  }

  void UseMemory(SharedSegment memory) {
    MutexLock lock(mu_);
    memory_.emplace(std::move(memory));
    rings_.emplace(memory_->bytes(), size());
    changed_.NotifyAll();
  }

  std::vector<pollfd> Polled() const {
    std::vector<pollfd> polled = {{.fd = wake_.get(), .events = POLLIN, .revents = 0}};
    for (const Member& member : sockets_) {
      polled.push_back({.fd = member.socket.get(), .events = POLLIN, .revents = 0});
    }
    return polled;
  }
  // All that a member says after its hello is why it ends.
  absl::Status CheckOthers(const std::vector<pollfd>& polled) const {
    for (size_t i = 0; i < sockets_.size(); ++i) {
      if (polled[i + 1].revents == 0) continue;
      const absl::StatusOr<Packet> word = ReceivePacket(sockets_[i].socket, kMaxWordBytes, absl::InfinitePast());
      const std::string who = absl::StrCat("member ", sockets_[i].rank);
      return absl::UnavailableError(word.ok() ? absl::StrCat(who, ": ", word->bytes) : absl::StrCat(who, " is gone"));
    }
    return absl::OkStatus();
  }
  void AwaitEnd() {
    while (status().ok()) {
      std::vector<pollfd> polled = Polled();
      poll(polled.data(), polled.size(), -1);
      if (absl::Status lost = CheckOthers(polled); !lost.ok()) End(std::move(lost));
    }
  }

  struct Member {
    int rank = 0;
    FileDescriptor socket;
  };

  // Fixed after construction.
  const GroupOptions options_;
  const std::string path_;  // of rank 0's socket; there ""
  FileDescriptor wake_;     // an eventfd: the group has ended
  // Of the watcher.
  std::optional<LocalListener> listener_;
  std::vector<Member> sockets_;
  // Each of its lane's stream.
  std::array<uint64_t, kNumGroupLanes> exchanges_ = {};

  mutable Mutex mu_;
  CondVar changed_;
  absl::Status status_ ABSL_GUARDED_BY(mu_);
  std::optional<SharedSegment> memory_ ABSL_GUARDED_BY(mu_);
  std::optional<SharedRings> rings_ ABSL_GUARDED_BY(mu_);  // none: not joined yet. Into memory_, which stays

  std::thread watcher_;  // last: it uses all of the above
};

absl::Status CheckOptions(const GroupOptions& options) {
  if (options.size < 2 || options.size > kMaxMembers) {
    return absl::InvalidArgumentError(absl::StrCat("group: size: ", options.size, ", must be 2 to ", kMaxMembers));
  }
  if (options.rank < 0 || options.rank >= options.size) {
    return absl::InvalidArgumentError(absl::StrCat("group: rank: ", options.rank, ", must be below ", options.size));
  }
  EPS_CHECK(options.on_joined != nullptr);
  return absl::OkStatus();
}

class SharedMemoryGroupMaker final : public GroupMaker {
 public:
  std::string kind() const override { return "shared_memory"; }

  absl::StatusOr<std::unique_ptr<Group>> Found(GroupOptions options, std::string& token) override {
    EPS_RETURN_IF_ERROR(CheckOptions(options));
    EPS_ASSIGN_OR_RETURN(LocalListener listener, LocalListener::Create());
    token = listener.path();
    auto group = std::make_unique<SharedMemoryGroup>(std::move(options), std::move(listener), "");
    EPS_RETURN_IF_ERROR(group->Start());
    return group;
  }

  absl::StatusOr<std::unique_ptr<Group>> Join(GroupOptions options, absl::string_view token) override {
    EPS_RETURN_IF_ERROR(CheckOptions(options));
    auto group = std::make_unique<SharedMemoryGroup>(std::move(options), std::nullopt, std::string(token));
    EPS_RETURN_IF_ERROR(group->Start());
    return group;
  }
};

}  // namespace

std::unique_ptr<GroupMaker> NewSharedMemoryGroupMaker() { return std::make_unique<SharedMemoryGroupMaker>(); }

}  // namespace eps::worker
