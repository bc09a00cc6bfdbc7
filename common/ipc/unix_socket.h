#ifndef EPS_COMMON_IPC_UNIX_SOCKET_H_
#define EPS_COMMON_IPC_UNIX_SOCKET_H_

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/base/file_util.h"

namespace eps {

// A listening SOCK_SEQPACKET socket in a folder of its own, "eps-UID-RANDOM/data" under $XDG_RUNTIME_DIR, or else under
// $TMPDIR or /tmp: a socket's path may have 107 bytes, so it does not lie in a run's folder. Folder and socket belong
// to the user alone (0700, 0600); both are removed at the end. Those that killed processes of the same user have left
// there are removed at the next start.
class LocalListener {
 public:
  // Errors: INVALID_ARGUMENT the path is too long · FileError's
  static absl::StatusOr<LocalListener> Create();
  LocalListener(LocalListener&& other) noexcept = default;
  ~LocalListener();

  const std::string& path() const { return path_; }
  const FileDescriptor& socket() const { return socket_; }

 private:
  LocalListener() = default;

  std::string path_;
  FileDescriptor socket_;  // not open: there is nothing to remove
};

// Accepts one connection, non-blocking as all of them. Errors: UNAVAILABLE nobody is there; the caller polls ·
// the system's
absl::StatusOr<FileDescriptor> AcceptLocal(const FileDescriptor& listener);
// Errors: NOT_FOUND, UNAVAILABLE, PERMISSION_DENIED nobody listens there, or it is another user · FileError's
absl::StatusOr<FileDescriptor> ConnectLocal(const std::string& path);
// Errors: PERMISSION_DENIED the process at the other end is another user's
absl::Status CheckPeerUser(const FileDescriptor& socket);

// A packet with descriptors, for the first words of a connection.
struct Packet {
  std::string bytes;
  std::vector<FileDescriptor> files;
};
inline constexpr size_t kMaxPacketFiles = 4;

// Waits for `timeout` at most. Errors: UNAVAILABLE the peer is gone · DEADLINE_EXCEEDED · the system's
absl::Status SendPacket(const FileDescriptor& socket, absl::string_view bytes, absl::Span<const int> files,
                        absl::Duration timeout);
// Also: INVALID_ARGUMENT longer than max_bytes, or more files than kMaxPacketFiles
absl::StatusOr<Packet> ReceivePacket(const FileDescriptor& socket, size_t max_bytes, absl::Duration timeout);

}  // namespace eps

#endif  // EPS_COMMON_IPC_UNIX_SOCKET_H_
