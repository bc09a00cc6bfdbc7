#include "cli/sampling_server.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include <chrono>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "cli/endpoint_wait.h"
#include "common/base/byte_size.h"
#include "common/base/control_groups.h"
#include "common/base/exit_code.h"
#include "common/base/file_util.h"
#include "common/base/status_macros.h"
#include "common/base/thread.h"
#include "common/grpc/client_credentials.h"
#include "common/grpc/grpc_status.h"
#include "common/grpc/thread_needs.h"
#include "common/run_folder/endpoint_file.h"
#include "grpcpp/completion_queue.h"

namespace eps::cli {
namespace {

// A model may be made for far more tokens than the text will have, and a plan for all of them fits few devices.
constexpr int64_t kContextStep = 64;
constexpr absl::Duration kLookEvery = absl::Milliseconds(20);

// Of one call, whose operations are begun one at a time, without tags.
class CallEvents {
 public:
  ~CallEvents() {
    queue_.Shutdown();
    void* tag = nullptr;
    for (bool ok = false; queue_.Next(&tag, &ok);) {
    }
  }

  grpc::CompletionQueue* queue() { return &queue_; }

  // Whether the operation that was begun last went well; nullopt: it has not ended within `timeout`.
  std::optional<bool> Wait(absl::Duration timeout) {
    void* tag = nullptr;
    bool ok = false;
    const auto deadline = std::chrono::system_clock::now() + absl::ToChronoMilliseconds(timeout);
    if (queue_.AsyncNext(&tag, &ok, deadline) == grpc::CompletionQueue::TIMEOUT) return std::nullopt;
    return ok;
  }

 private:
  grpc::CompletionQueue queue_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<SamplingServer>> SamplingServer::Start(const std::string& checkpoint,
                                                                      const std::vector<std::string>& set,
                                                                      int64_t text_tokens, const WorkerFlags& flags,
                                                                      SignalQueue& signals) {
  const int threads = UsableCores();
  EPS_RETURN_IF_ERROR(CheckThreadRoom(RunThreads(1, threads)));
  auto server = std::unique_ptr<SamplingServer>(new SamplingServer(signals));
  EPS_ASSIGN_OR_RETURN(const std::string programs, ProgramFolder());
  EPS_RETURN_IF_ERROR(server->StartDaemon(programs, checkpoint, set, text_tokens));
  std::vector<std::string> arguments = flags.ToArguments(server->address_, threads, 0);
  arguments.insert(arguments.end(), {"--token-file", server->doors_.token_file});
  EPS_ASSIGN_OR_RETURN(server->worker_, Spawn({.name = "gpu_worker",
                                               .program = programs + "/gpu_worker",
                                               .arguments = arguments,
                                               .log_path = server->folder_ + "/gpu_worker.log",
                                               .signal_when_parent_dies = SIGKILL}));
  EPS_RETURN_IF_ERROR(server->Connect());
  return server;
}

absl::Status SamplingServer::StartDaemon(const std::string& programs, const std::string& checkpoint,
                                         const std::vector<std::string>& set, int64_t text_tokens) {
  EPS_ASSIGN_OR_RETURN(std::string folder, TemporaryFolder());
  folder += "/eps-sample-XXXXXX";
  if (mkdtemp(folder.data()) == nullptr) return FileError(errno, "make", folder);
  folder_ = folder;
  // Where the daemon's socket goes: so that nothing is left even when it is killed.
  setenv("XDG_RUNTIME_DIR", folder.c_str(), 1);
  EPS_ASSIGN_OR_RETURN(doors_, WriteRunToken(folder));
  std::vector<std::string> arguments = {
      "--serve",      checkpoint,       "--serve-context", absl::StrCat(RoundUp(text_tokens, kContextStep)),
      "--out",        folder,           "--listen",        "127.0.0.1:0",
      "--token-file", doors_.token_file};
  for (const std::string& field : set) arguments.insert(arguments.end(), {"--set", field});
  EPS_ASSIGN_OR_RETURN(daemon_, Spawn({.name = "eps_server",
                                       .program = programs + "/eps_server",
                                       .arguments = arguments,
                                       .log_path = folder_ + "/eps_server.log",
                                       .signal_when_parent_dies = SIGKILL}));
  EPS_ASSIGN_OR_RETURN(const Endpoint endpoint,
                       WaitForEndpoint(folder_, daemon_.pid, [this](absl::Duration pause) { return Check(pause); }));
  address_ = endpoint.address;
  return absl::OkStatus();
}

SamplingServer::~SamplingServer() {
  for (ChildProcess* child : {&worker_, &daemon_}) {
    if (child->running()) kill(child->pid, SIGKILL);
    while (child->running()) {
      Reap({child});
      absl::SleepFor(absl::Milliseconds(1));
    }
  }
  std::error_code ignored;
  if (!folder_.empty()) std::filesystem::remove_all(folder_, ignored);
}

absl::Status SamplingServer::Connect() {
  EPS_ASSIGN_OR_RETURN(auto credentials, NewChannelCredentials(doors_, address_, absl::Now()));
  client_.emplace(address_, std::move(credentials));
  return absl::OkStatus();
}

absl::Status SamplingServer::Check(absl::Duration timeout) {
  if (signals_.Wait(timeout).has_value() || signals_.last() != 0) {
    return absl::CancelledError(absl::StrCat("ended by a signal (", strsignal(signals_.last()), ")"));
  }
  Reap({&daemon_, &worker_});
  for (const ChildProcess* child : {&daemon_, &worker_}) {
    if (child->pid < 0 || child->running()) continue;
    const std::string words = LastWords(*child);
    const std::string message = words.empty() ? absl::StrCat(child->name, " ended: ", EndOf(*child)) : words;
    if (WIFEXITED(*child->wait_status) && WEXITSTATUS(*child->wait_status) == kExitBadInput) {
      return absl::InvalidArgumentError(message);
    }
    if (WIFEXITED(*child->wait_status) && WEXITSTATUS(*child->wait_status) == kExitDoesNotFit) {
      return absl::ResourceExhaustedError(message);
    }
    return absl::InternalError(message);
  }
  return absl::OkStatus();
}

absl::Status SamplingServer::Generate(const proto::GenerateRequest& request,
                                      const std::function<bool(const proto::GenerateReply&)>& take) {
  grpc::ClientContext context;
  CallEvents events;
  // A worker that could not start never answers, and the daemon waits for another one: the call must not.
  absl::Status processes;
  const auto next = [&] {
    std::optional<bool> went_well;
    while (!went_well) {
      if (processes.ok()) processes = Check(absl::ZeroDuration());
      if (!processes.ok()) context.TryCancel();
      went_well = events.Wait(kLookEvery);
    }
    return *went_well;
  };
  const auto stream = client_->stub().AsyncGenerate(&context, request, events.queue(), nullptr);
  bool taken = true;
  proto::GenerateReply reply;
  for (bool open = next(); open && taken;) {
    stream->Read(&reply, nullptr);
    open = next();
    if (open) taken = take(reply);
  }
  if (!taken) context.TryCancel();
  grpc::Status status;
  stream->Finish(&status, nullptr);
  next();
  if (!taken) return absl::OkStatus();
  // A process that ends takes the call with it: why it ended says more.
  if (processes.ok() && !status.ok()) processes = Check(kLookEvery);
  if (!processes.ok()) return processes;
  const absl::Status answer = FromGrpc(status);
  // Its files are whole, or the daemon would have ended: the model itself has diverged, and no other input mends it.
  return absl::IsDataLoss(answer) ? absl::InternalError(answer.message()) : answer;
}

}  // namespace eps::cli
