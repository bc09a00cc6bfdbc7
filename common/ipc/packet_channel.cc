#include "common/ipc/packet_channel.h"

#include <errno.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace eps {

absl::StatusOr<std::unique_ptr<PacketChannel>> PacketChannel::Create(FileDescriptor socket, Options options) {
  FileDescriptor wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake.is_open()) return FileError(errno, "open", "an eventfd");
  return std::unique_ptr<PacketChannel>(new PacketChannel(std::move(socket), std::move(wake), std::move(options)));
}

PacketChannel::Sent PacketChannel::TrySend(absl::string_view packet) {
  while (true) {
    if (send(socket_.get(), packet.data(), packet.size(), MSG_NOSIGNAL | MSG_DONTWAIT) >= 0) return Sent::kYes;
    if (errno == EAGAIN) return Sent::kLater;
    if (errno == EINTR) continue;
    // Of a peer that is gone Run reads what it said last, and its end. One that lives would wait for the packet for
    // ever.
    const bool is_gone = errno == EPIPE || errno == ECONNRESET || errno == ENOTCONN;
    if (!is_gone && !ended_) {
      ended_ = true;
      reason_ = absl::UnavailableError(
          absl::StrCat("a packet of ", packet.size(), " bytes cannot be sent: ", std::strerror(errno)));
    }
    return Sent::kNever;
  }
}

absl::Status PacketChannel::PeerIsGone() const {
  return absl::UnavailableError(absl::StrCat(options_.peer, " is gone"));
}

void PacketChannel::Wake() const {
  const uint64_t one = 1;
  // Fails only when it is awake for 2^64 reasons already.
  if (write(wake_.get(), &one, sizeof(one)) < 0) return;
}

void PacketChannel::Send(std::string packet) {
  {
    // A packet that does not block is sent under the lock: so the order of packets is that of the calls.
    MutexLock lock(mu_);
    if (ended_) return;
    if (!queue_.empty() || TrySend(packet) == Sent::kLater) queue_.push_back(std::move(packet));
    if (queue_.size() > options_.max_queued) {
      ended_ = true;
      reason_ =
          absl::ResourceExhaustedError(absl::StrCat(options_.peer, " has not taken ", options_.max_queued, " packets"));
    }
    if (!ended_ && queue_.size() != 1) return;
  }
  Wake();
}

void PacketChannel::Flush() {
  MutexLock lock(mu_);
  while (!queue_.empty() && !ended_) {
    if (TrySend(queue_.front()) == Sent::kLater) return;
    queue_.pop_front();
  }
}

void PacketChannel::Close(absl::Status reason, absl::string_view last_word) {
  {
    MutexLock lock(mu_);
    if (ended_) return;
    ended_ = true;
    reason_ = std::move(reason);
    if (!last_word.empty()) TrySend(last_word);
    queue_.clear();
  }
  // The peer sees the end now, and not when the channel is destroyed; it can still read the last word.
  shutdown(socket_.get(), SHUT_RDWR);
  Wake();
}

bool PacketChannel::Ended(bool* queued) {
  MutexLock lock(mu_);
  *queued = !queue_.empty();
  return ended_;
}

absl::Status PacketChannel::Receive(const std::function<absl::Status(absl::string_view)>& on_packet) {
  constexpr int kMostAtOnce = 16;  // then what is queued gets its turn
  for (int i = 0; i < kMostAtOnce; ++i) {
    const ssize_t received = recv(socket_.get(), buffer_.data(), buffer_.size(), MSG_DONTWAIT | MSG_TRUNC);
    if (received < 0) {
      if (errno == EAGAIN) return absl::OkStatus();
      if (errno == EINTR) continue;
      // A peer that went without reading everything: what it had sent before can still be read.
      if (errno == ECONNRESET && !std::exchange(reset_, true)) continue;
      return PeerIsGone();
    }
    if (received == 0) return PeerIsGone();
    if (static_cast<size_t>(received) > buffer_.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("a packet of ", received, " bytes, at most ", options_.max_packet_bytes));
    }
    EPS_RETURN_IF_ERROR(on_packet(absl::string_view(buffer_.data(), static_cast<size_t>(received))));
  }
  return absl::OkStatus();
}

absl::Status PacketChannel::Run(const std::function<absl::Status(absl::string_view)>& on_packet) {
  buffer_.resize(options_.max_packet_bytes);
  bool queued = false;
  while (!Ended(&queued)) {
    pollfd waiting[] = {{socket_.get(), static_cast<short>(queued ? POLLIN | POLLOUT : POLLIN), 0},
                        {wake_.get(), POLLIN, 0}};
    if (poll(waiting, 2, -1) < 0 && errno != EINTR) {
      Close(FileError(errno, "poll", "a socket"));
      break;
    }
    if (waiting[1].revents != 0) {
      uint64_t reasons;
      if (read(wake_.get(), &reasons, sizeof(reasons)) < 0) continue;  // another turn of the loop has seen them
    }
    if (waiting[0].revents == 0) continue;
    Flush();
    if ((waiting[0].revents & ~POLLOUT) == 0) continue;
    if (absl::Status status = Receive(on_packet); !status.ok()) Close(std::move(status));
  }
  shutdown(socket_.get(), SHUT_RDWR);  // whatever ended it: the peer sees it now
  MutexLock lock(mu_);
  return reason_;
}

}  // namespace eps
