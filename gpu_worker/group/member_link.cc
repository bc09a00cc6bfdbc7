#include "gpu_worker/group/member_link.h"

#include <errno.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/base/monotonic_clock.h"
#include "common/base/status_macros.h"
#include "common/base/thread.h"
#include "common/schedule/group_limits.h"

namespace eps::worker {
namespace {

constexpr size_t kMaxReasonBytes = 512;  // of what goes to the other members
constexpr absl::Duration kHandshakeTime = absl::Seconds(5);
constexpr absl::Duration kTurn = absl::Milliseconds(100);  // how late who waits for a welcome sees an end

// The first words of a connection: who comes. The answer is a welcome.
struct Hello {
  uint64_t id = 0;
  int32_t rank = 0;
};

// The last word: why the group ends. The rank with which that began (int32), then its reason.
constexpr size_t kMaxWordBytes = sizeof(int32_t) + kMaxReasonBytes;

absl::Status CheckPlace(int rank, int size) {
  if (size < 2 || size > kMaxGroupMembers) {
    return absl::InvalidArgumentError(absl::StrCat("group: size: ", size, ", must be 2 to ", kMaxGroupMembers));
  }
  if (rank < 0 || rank >= size) {
    return absl::InvalidArgumentError(absl::StrCat("group: rank: ", rank, ", must be below ", size));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<MemberLink>> MemberLink::Listen(Options options, std::string& token) {
  EPS_RETURN_IF_ERROR(CheckPlace(options.rank, options.size));
  EPS_ASSIGN_OR_RETURN(LocalListener listener, LocalListener::Create());
  token = listener.path();
  std::unique_ptr<MemberLink> link(new MemberLink(std::move(options), std::move(listener), ""));
  EPS_RETURN_IF_ERROR(link->Start());
  return link;
}

absl::StatusOr<std::unique_ptr<MemberLink>> MemberLink::Connect(Options options, std::string token) {
  EPS_RETURN_IF_ERROR(CheckPlace(options.rank, options.size));
  std::unique_ptr<MemberLink> link(new MemberLink(std::move(options), std::nullopt, std::move(token)));
  EPS_RETURN_IF_ERROR(link->Start());
  return link;
}

MemberLink::~MemberLink() {
  End(absl::CancelledError("it was closed"));
  if (watcher_.joinable()) watcher_.join();
}

absl::Status MemberLink::Start() {
  wake_ = FileDescriptor(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake_.is_open()) return FileError(errno, "make an eventfd for", "a group");
  EPS_ASSIGN_OR_RETURN(watcher_, StartThread([this] { Watch(); }));
  return absl::OkStatus();
}

absl::Status MemberLink::status() const {
  MutexLock lock(mu_);
  return status_;
}

void MemberLink::End(const absl::Status& reason) {
  const absl::string_view message = reason.message();
  EndBy({options_.rank, message.empty() ? absl::StatusCodeToString(reason.code()) : std::string(message)});
}

void MemberLink::EndBy(Cause cause) {
  absl::Status ended;
  {
    MutexLock lock(mu_);
    if (!status_.ok()) return;
    ended = status_ = absl::AbortedError(absl::StrCat("the group has ended: ", Shown(cause)));
    cause_ = std::move(cause);
  }
  if (options_.on_end) options_.on_end(ended);
  const uint64_t one = 1;
  if (wake_.is_open() && write(wake_.get(), &one, sizeof(one)) < 0) return;  // full: the watcher wakes anyway
}

void MemberLink::Watch() {
  const absl::Status joined = options_.rank == 0 ? WelcomeAll() : Join();
  if (!joined.ok()) End(joined);
  options_.on_joined(joined.ok() ? absl::OkStatus() : status());
  if (joined.ok()) AwaitEnd();
  SayWhy();
  sockets_.clear();  // the others see that in any case
  listener_.reset();
}

absl::Status MemberLink::WelcomeAll() {
  std::vector<int> files;
  if (options_.welcome_file >= 0) files.push_back(options_.welcome_file);
  std::vector<bool> here(static_cast<size_t>(options_.size), false);
  here[0] = true;
  while (sockets_.size() + 1 < here.size()) {
    std::vector<pollfd> polled = Polled();
    polled.push_back({.fd = listener_->socket().get(), .events = POLLIN, .revents = 0});
    poll(polled.data(), polled.size(), -1);
    EPS_RETURN_IF_ERROR(status());
    if (std::optional<Cause> why = WhyOthersEnd(polled); why.has_value()) {
      EndBy(*std::move(why));
      return status();
    }
    absl::StatusOr<FileDescriptor> socket = AcceptLocal(listener_->socket());
    if (absl::IsUnavailable(socket.status())) continue;
    EPS_RETURN_IF_ERROR(socket.status());
    const absl::StatusOr<int> rank = ReceiveHello(*socket, here);
    if (!rank.ok()) continue;  // a stranger: turned away
    EPS_RETURN_IF_ERROR(SendPacket(*socket, "welcome", files, kHandshakeTime));
    here[static_cast<size_t>(*rank)] = true;
    sockets_.push_back({*rank, *std::move(socket)});
  }
  listener_.reset();  // nobody else is let in
  return absl::OkStatus();
}

absl::StatusOr<int> MemberLink::ReceiveHello(const FileDescriptor& socket, const std::vector<bool>& here) const {
  EPS_RETURN_IF_ERROR(CheckPeerUser(socket));
  // In short turns, as who joins waits for the welcome.
  const absl::Duration deadline = SteadyNow() + kHandshakeTime;
  absl::StatusOr<Packet> packet = absl::DeadlineExceededError("");
  while (absl::IsDeadlineExceeded(packet.status()) && SteadyNow() < deadline) {
    EPS_RETURN_IF_ERROR(status());
    packet = ReceivePacket(socket, sizeof(Hello), kTurn);
  }
  EPS_RETURN_IF_ERROR(packet.status());
  Hello hello;
  if (packet->bytes.size() != sizeof(hello)) return absl::InvalidArgumentError("hello: another length");
  memcpy(&hello, packet->bytes.data(), sizeof(hello));
  if (hello.id != options_.id) return absl::InvalidArgumentError("hello: another group");
  if (hello.rank < 1 || hello.rank >= options_.size || here[static_cast<size_t>(hello.rank)]) {
    return absl::InvalidArgumentError(absl::StrCat("hello: rank: ", hello.rank));
  }
  return hello.rank;
}

absl::Status MemberLink::Join() {
  EPS_ASSIGN_OR_RETURN(FileDescriptor socket, ConnectLocal(path_));
  const Hello hello = {.id = options_.id, .rank = options_.rank};
  char bytes[sizeof(hello)] = {};
  memcpy(bytes, &hello, sizeof(hello));
  EPS_RETURN_IF_ERROR(SendPacket(socket, absl::string_view(bytes, sizeof(bytes)), {}, kHandshakeTime));
  sockets_.push_back({0, std::move(socket)});
  // In short turns: End must not wait for a rank 0 that says nothing.
  absl::StatusOr<Packet> packet = absl::DeadlineExceededError("");
  while (absl::IsDeadlineExceeded(packet.status())) {
    EPS_RETURN_IF_ERROR(status());
    packet = ReceivePacket(sockets_[0].socket, kMaxWordBytes, kTurn);
  }
  EPS_RETURN_IF_ERROR_WITH(packet.status(), "member 0");
  return options_.on_welcome ? options_.on_welcome(*std::move(packet)) : absl::OkStatus();
}

void MemberLink::AwaitEnd() {
  while (status().ok()) {
    std::vector<pollfd> polled = Polled();
    poll(polled.data(), polled.size(), -1);
    if (std::optional<Cause> why = WhyOthersEnd(polled); why.has_value()) EndBy(*std::move(why));
  }
}

// To those who take it at once.
void MemberLink::SayWhy() {
  std::string last_word;
  {
    MutexLock lock(mu_);
    last_word = ToWord(cause_);
  }
  for (const Member& member : sockets_) {
    SendPacket(member.socket, last_word, {}, absl::ZeroDuration()).IgnoreError();
  }
}

std::vector<pollfd> MemberLink::Polled() const {
  std::vector<pollfd> polled = {{.fd = wake_.get(), .events = POLLIN, .revents = 0}};
  for (const Member& member : sockets_) {
    polled.push_back({.fd = member.socket.get(), .events = POLLIN, .revents = 0});
  }
  return polled;
}

// All that a member says after its hello is why it ends.
std::optional<MemberLink::Cause> MemberLink::WhyOthersEnd(const std::vector<pollfd>& polled) const {
  for (size_t i = 0; i < sockets_.size(); ++i) {
    if (polled[i + 1].revents == 0) continue;
    const absl::StatusOr<Packet> word = ReceivePacket(sockets_[i].socket, kMaxWordBytes, absl::ZeroDuration());
    return word.ok() ? FromWord(word->bytes, sockets_[i].rank) : Cause{.rank = sockets_[i].rank, .reason = ""};
  }
  return std::nullopt;
}

std::string MemberLink::Shown(const Cause& cause) const {
  if (cause.rank == options_.rank) return cause.reason;
  const std::string who = absl::StrCat("member ", cause.rank);
  return cause.reason.empty() ? absl::StrCat(who, " is gone") : absl::StrCat(who, ": ", cause.reason);
}

std::string MemberLink::ToWord(const Cause& cause) {
  const auto rank = static_cast<int32_t>(cause.rank);
  std::string word(sizeof(rank), '\0');
  memcpy(word.data(), &rank, sizeof(rank));
  // Of a long reason its end: what it comes from stands behind where it was met.
  const size_t begin = cause.reason.size() - std::min(cause.reason.size(), kMaxReasonBytes);
  return word.append(cause.reason, begin);
}

// A word that is none, or of a rank that cannot be, is of who said it.
MemberLink::Cause MemberLink::FromWord(absl::string_view word, int speaker) const {
  int32_t rank = -1;
  if (word.size() < sizeof(rank)) return {.rank = speaker, .reason = ""};
  memcpy(&rank, word.data(), sizeof(rank));
  word.remove_prefix(sizeof(rank));
  return {.rank = rank < 0 || rank >= options_.size ? speaker : rank, .reason = std::string(word)};
}

}  // namespace eps::worker
