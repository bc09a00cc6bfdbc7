#include "common/ipc/unix_socket.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/monotonic_clock.h"
#include "common/base/status_macros.h"

namespace eps {
namespace {

constexpr char kSocketName[] = "/data";
constexpr int kBacklog = 64;

std::string FolderPrefix() { return absl::StrCat("eps-", getuid(), "-"); }

std::string RuntimeFolder() {
  for (const char* name : {"XDG_RUNTIME_DIR", "TMPDIR"}) {
    const char* folder = getenv(name);
    if (folder != nullptr && folder[0] == '/' && access(folder, W_OK | X_OK) == 0) return folder;
  }
  return "/tmp";
}

absl::StatusOr<sockaddr_un> AddressOf(const std::string& path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) {
    return absl::InvalidArgumentError(absl::StrCat("socket path ", path, ": ", path.size(), " bytes, at most ",
                                                   sizeof(address.sun_path) - 1, ": set XDG_RUNTIME_DIR or TMPDIR"));
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

absl::StatusOr<FileDescriptor> NewSocket() {
  FileDescriptor socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.is_open()) return FileError(errno, "open", "a socket");
  return socket;
}

const sockaddr* Generic(const sockaddr_un& address) { return reinterpret_cast<const sockaddr*>(&address); }

void RemoveFolder(const std::string& socket_path) {
  unlink(socket_path.c_str());
  rmdir(DirName(socket_path).c_str());
}

// A socket at its final path is listening, or its process has died: then a connection is refused.
void RemoveLeftOvers(const std::string& runtime_folder) {
  constexpr int kMostLookedAt = 1000;
  int looked_at = 0;
  std::error_code error;
  std::filesystem::directory_iterator entry(runtime_folder, error), end;
  for (; !error && entry != end && looked_at < kMostLookedAt; entry.increment(error), ++looked_at) {
    const std::string folder = entry->path().string();
    if (!absl::StartsWith(entry->path().filename().string(), FolderPrefix())) continue;
    struct stat status = {};
    if (lstat(folder.c_str(), &status) != 0 || !S_ISDIR(status.st_mode) || status.st_uid != getuid()) continue;
    const std::string path = folder + kSocketName;
    const auto address = AddressOf(path);
    const auto probe = NewSocket();
    if (!address.ok() || !probe.ok()) continue;
    if (connect(probe->get(), Generic(*address), sizeof(*address)) != 0 && errno == ECONNREFUSED) RemoveFolder(path);
  }
}

// Waits for `events`, until `deadline` of SteadyNow at most. Errors: DEADLINE_EXCEEDED
absl::Status WaitFor(const FileDescriptor& socket, short events, absl::Duration deadline) {
  while (true) {
    const auto left = std::clamp<int64_t>(absl::ToInt64Milliseconds(deadline - SteadyNow()), 0, 60'000);
    pollfd waiting = {.fd = socket.get(), .events = events, .revents = 0};
    const int ready = poll(&waiting, 1, static_cast<int>(left));
    if (ready > 0) return absl::OkStatus();
    if (ready < 0 && errno != EINTR) return FileError(errno, "poll", "a socket");
    if (SteadyNow() >= deadline) return absl::DeadlineExceededError("the peer says nothing");
  }
}

absl::Status PeerIsGone() { return absl::UnavailableError("the peer is gone"); }

bool MeansGone(int error_number) { return error_number == EPIPE || error_number == ECONNRESET; }

}  // namespace

absl::StatusOr<LocalListener> LocalListener::Create() {
  const std::string runtime_folder = RuntimeFolder();
  RemoveLeftOvers(runtime_folder);
  std::string folder = absl::StrCat(runtime_folder, "/", FolderPrefix(), "XXXXXX");
  LocalListener listener;
  EPS_ASSIGN_OR_RETURN(FileDescriptor socket, NewSocket());
  // Bound beside its place, and put there when it listens: who finds it there finds it alive, or dead for good.
  const std::string path = folder + kSocketName;
  EPS_RETURN_IF_ERROR(AddressOf(path + ".new").status());
  if (mkdtemp(folder.data()) == nullptr) return FileError(errno, "make", folder);  // 0700
  listener.path_ = folder + kSocketName;
  listener.socket_ = std::move(socket);  // from here on the folder is removed
  const std::string bound = listener.path_ + ".new";
  EPS_ASSIGN_OR_RETURN(const sockaddr_un address, AddressOf(bound));
  if (bind(listener.socket_.get(), Generic(address), sizeof(address)) != 0) return FileError(errno, "bind", bound);
  if (chmod(bound.c_str(), 0600) != 0 || listen(listener.socket_.get(), kBacklog) != 0 ||
      rename(bound.c_str(), listener.path_.c_str()) != 0) {
    const absl::Status status = FileError(errno, "listen at", bound);
    unlink(bound.c_str());
    return status;
  }
  return listener;
}

LocalListener::~LocalListener() {
  if (socket_.is_open()) RemoveFolder(path_);
}

absl::StatusOr<FileDescriptor> AcceptLocal(const FileDescriptor& listener) {
  FileDescriptor socket(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (socket.is_open()) return socket;
  if (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED) return absl::UnavailableError("nobody is there");
  return absl::ErrnoToStatus(errno, "cannot accept at a socket");  // FileError's UNAVAILABLE is not "nobody is there"
}

absl::StatusOr<FileDescriptor> ConnectLocal(const std::string& path) {
  EPS_ASSIGN_OR_RETURN(const sockaddr_un address, AddressOf(path));
  EPS_ASSIGN_OR_RETURN(FileDescriptor socket, NewSocket());
  if (connect(socket.get(), Generic(address), sizeof(address)) != 0) {
    // EAGAIN: the queue of those who wait to be accepted is full.
    if (errno == ECONNREFUSED || errno == EAGAIN) {
      return absl::UnavailableError(absl::StrCat("connect to ", path, ": ", strerror(errno)));
    }
    return FileError(errno, "connect to", path);
  }
  EPS_RETURN_IF_ERROR_WITH(CheckPeerUser(socket), path);
  return socket;
}

absl::Status CheckPeerUser(const FileDescriptor& socket) {
  ucred peer = {};
  socklen_t num_bytes = sizeof(peer);
  if (getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &num_bytes) != 0) {
    return FileError(errno, "ask for the peer of", "a socket");
  }
  if (peer.uid == geteuid()) return absl::OkStatus();
  return absl::PermissionDeniedError(absl::StrCat("the peer's user id is ", peer.uid, ", want ", geteuid()));
}

absl::Status SendPacket(const FileDescriptor& socket, absl::string_view bytes, absl::Span<const int> files,
                        absl::Duration timeout) {
  EPS_CHECK(files.size() <= kMaxPacketFiles);
  const absl::Duration deadline = SteadyNow() + timeout;
  iovec data = {.iov_base = const_cast<char*>(bytes.data()), .iov_len = bytes.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxPacketFiles * sizeof(int))] = {};
  msghdr message = {};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  if (!files.empty()) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(files.size() * sizeof(int));
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(files.size() * sizeof(int));
    std::memcpy(CMSG_DATA(header), files.data(), files.size() * sizeof(int));
  }
  while (true) {
    const ssize_t sent = sendmsg(socket.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) return absl::OkStatus();
    if (MeansGone(errno)) return PeerIsGone();
    if (errno != EAGAIN && errno != EINTR) return FileError(errno, "send to", "a socket");
    EPS_RETURN_IF_ERROR(WaitFor(socket, POLLOUT, deadline));
  }
}

absl::StatusOr<Packet> ReceivePacket(const FileDescriptor& socket, size_t max_bytes, absl::Duration timeout) {
  const absl::Duration deadline = SteadyNow() + timeout;
  Packet packet;
  packet.bytes.resize(max_bytes);
  iovec data = {.iov_base = packet.bytes.data(), .iov_len = packet.bytes.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxPacketFiles * sizeof(int))];
  msghdr message = {};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  ssize_t received = -1;
  for (bool reset = false; received < 0;) {
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    received = recvmsg(socket.get(), &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    if (received >= 0) break;
    // A peer that went without reading everything: what it had sent before can still be read.
    if (errno == ECONNRESET && !std::exchange(reset, true)) continue;
    if (MeansGone(errno)) return PeerIsGone();
    if (errno != EAGAIN && errno != EINTR) return FileError(errno, "receive from", "a socket");
    EPS_RETURN_IF_ERROR(WaitFor(socket, POLLIN, deadline));
  }
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int file = -1;
      std::memcpy(&file, CMSG_DATA(header) + i * sizeof(int), sizeof(int));
      packet.files.emplace_back(file);
    }
  }
  if ((message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("a packet of more than ", max_bytes, " bytes or ", kMaxPacketFiles, " files"));
  }
  if (received == 0) return PeerIsGone();
  packet.bytes.resize(static_cast<size_t>(received));
  return packet;
}

}  // namespace eps
