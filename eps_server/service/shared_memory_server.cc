#include "eps_server/service/shared_memory_server.h"

#include <errno.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <list>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/base/log.h"
#include "common/base/mutex.h"
#include "common/base/open_files.h"
#include "common/base/status_macros.h"
#include "common/base/thread.h"
#include "common/formats/shared_message.h"
#include "common/ipc/unix_socket.h"
#include "eps_server/service/shared_memory_connection.h"

namespace eps::server {
namespace {

// A connection has a few threads and three descriptors. Workers beyond it go through gRPC, unless the run forbids that.
constexpr size_t kMaxConnections = kSharedMemoryConnections;

class SharedMemoryServerImpl final : public SharedMemoryServer {
 public:
  SharedMemoryServerImpl(SharedMemoryOptions options, LocalListener listener, FileDescriptor wake)
      : options_(options),
        listener_(std::move(listener)),
        wake_(std::move(wake)),
        acceptor_([this] { AcceptUntilEnd(); }) {}

  ~SharedMemoryServerImpl() override {
    const uint64_t one = 1;
    EPS_CHECK(write(wake_.get(), &one, sizeof(one)) == sizeof(one));
    acceptor_.join();
    for (Served& served : served_) served.connection->Close(absl::UnavailableError("the daemon ends"));
    for (Served& served : served_) served.thread.join();
  }

  const std::string& path() const override { return listener_.path(); }

 private:
  struct Served {
    std::shared_ptr<SharedMemoryConnection> connection;
    std::atomic<bool> done = false;  // atomic, because its thread says it and the acceptor asks
    std::thread thread;
  };

  void AcceptUntilEnd() {
    while (true) {
      pollfd waiting[] = {{listener_.socket().get(), POLLIN, 0}, {wake_.get(), POLLIN, 0}};
      if (poll(waiting, 2, -1) < 0 && errno != EINTR) {
        return LogError("shared_memory_stops", {{"error", FileError(errno, "poll", path()).ToString()}});
      }
      if (waiting[1].revents != 0) return;
      if (waiting[0].revents != 0) Accept();
    }
  }

  void Accept() {
    JoinDone();
    absl::StatusOr<FileDescriptor> socket = AcceptLocal(listener_.socket());
    if (!socket.ok()) {
      if (absl::IsUnavailable(socket.status())) return;
      LogWarning("shared_memory_refused", {{"error", socket.status().ToString()}});
      absl::SleepFor(absl::Milliseconds(100));  // too many open files, perhaps: others close theirs
      return;
    }
    if (served_.size() >= kMaxConnections) {
      LogWarning("shared_memory_refused", {{"error", absl::StrCat(kMaxConnections, " connections are served")}});
      return;  // the peer sees the end
    }
    Served& served = served_.emplace_back();
    served.connection = std::make_shared<SharedMemoryConnection>(options_, *std::move(socket));
    absl::StatusOr<std::thread> thread = StartThread([&served] {
      served.connection->Run();
      served.done = true;
    });
    if (!thread.ok()) {
      LogWarning("shared_memory_refused", {{"error", thread.status().ToString()}});
      return served_.pop_back();
    }
    served.thread = *std::move(thread);
  }

  void JoinDone() {
    for (auto served = served_.begin(); served != served_.end();) {
      if (!served->done) {
        ++served;
        continue;
      }
      served->thread.join();
      served = served_.erase(served);
    }
  }

  // Fixed after construction.
  const SharedMemoryOptions options_;
  const LocalListener listener_;
  const FileDescriptor wake_;
  // Of the acceptor, and of the destructor after it.
  std::list<Served> served_;
  std::thread acceptor_;
};

}  // namespace

int64_t MaxInboxBytes(const ModelSpec& model, const RunConfig& run) {
  int64_t elems = 0;
  for (const LayerSpec& layer : model.layers) elems += layer.num_elems;
  return kStagingBytes + elems * run.batch.virtual_nodes * int64_t{sizeof(float)};
}

absl::StatusOr<std::unique_ptr<SharedMemoryServer>> SharedMemoryServer::Start(SharedMemoryOptions options) {
  if (options.store->wire_segment() == nullptr) {
    return absl::UnimplementedError("shared memory: this system has no sealed memfd");
  }
  EPS_ASSIGN_OR_RETURN(LocalListener listener, LocalListener::Create());
  FileDescriptor wake(eventfd(0, EFD_CLOEXEC));
  if (!wake.is_open()) return FileError(errno, "open", "an eventfd");
  return std::make_unique<SharedMemoryServerImpl>(options, std::move(listener), std::move(wake));
}

}  // namespace eps::server
