#include "cli/daemon_client.h"

#include <errno.h>
#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <limits>
#include <system_error>

#include "CLI/CLI.hpp"
#include "absl/strings/cord.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "cli/common_flags.h"
#include "cli/run_report.h"
#include "common/base/exit_code.h"
#include "common/base/file_util.h"
#include "common/base/flags.h"
#include "common/base/status_macros.h"
#include "common/base/thread.h"
#include "common/grpc/client_credentials.h"
#include "common/grpc/door_flags.h"
#include "common/grpc/grpc_status.h"
#include "common/grpc/page_advice.h"
#include "common/grpc/thread_needs.h"
#include "common/run_folder/endpoint_file.h"
#include "common/run_folder/run_folder.h"
#include "common/security/secret_file.h"
#include "common/security/token.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/support/channel_arguments.h"

namespace eps::cli {

namespace {

// EPERM: it is another user's, and there.
bool IsAlive(int64_t process_id) {
  if (process_id < 1 || process_id > std::numeric_limits<pid_t>::max()) return false;  // of many, or of nobody
  return kill(static_cast<pid_t>(process_id), 0) == 0 || errno == EPERM;
}

// Whether some process has it; asking takes it for an instant.
bool IsLocked(const std::string& folder) { return absl::IsFailedPrecondition(LockDirectory(folder).status()); }

// Of the daemon that runs for `out`. It has its folder's lock as long as it is at work; one that lingers after the end of
// its run has nothing but its page.
// Errors: ReadEndpointFile's · UNAVAILABLE none does, and where the run stands · ABORTED one has the folder, and no file
//         says where it listens
absl::StatusOr<Endpoint> FindDaemon(const std::string& out) {
  absl::StatusOr<Endpoint> endpoint = ReadEndpointFile(out, EndpointFile::kStarting);
  if (endpoint.ok() && IsAlive(endpoint->process_id)) return endpoint;
  endpoint = ReadEndpointFile(out, EndpointFile::kRunning);
  if (!endpoint.ok() && !absl::IsNotFound(endpoint.status())) return endpoint;
  const bool is_gone = endpoint.ok() ? !IsAlive(endpoint->process_id) || LockDirectory(out).ok() : !IsLocked(out);
  if (is_gone) return absl::UnavailableError(NotRunningText(out));
  if (endpoint.ok()) return endpoint;
  return absl::AbortedError(
      absl::StrCat("a daemon has ", out,
                   ", and no endpoints.json is there that says where it listens: it starts at this moment, or the file "
                   "was removed; give --connect HOST:PORT, as its log has it (daemon_listening)"));
}

// What to do where the daemon's address was found and gave no answer. Who listens there without TLS is refused nothing
// but closes the connection, as a daemon with TLS does.
std::string AdviceFor(const absl::Status& status, const DaemonFlags& flags) {
  if (flags.connect.empty()) {  // its process lives and has the folder, or nobody would have been asked
    constexpr absl::string_view kEnds = "the run is ending, and its daemon takes no more calls";
    // `eps train` has the run's logs locked, and its daemon no TLS.
    const bool has_no_tls =
        absl::StrContains(status.message(), "Connection refused") || IsLocked(RunFolder(flags.out).logs());
    if (has_no_tls) return absl::StrCat("; ", kEnds);
    return absl::StrCat("; ", kEnds,
                        flags.doors.ca_file.empty()
                            ? ", or that daemon speaks TLS and wants --tls-ca FILE"
                            : ", or docs/operations.md, Across machines, says what this may mean");
  }
  if (absl::StrContains(status.message(), "Connection refused")) {
    return "; a run that has ended has no daemon: give --out DIR, its folder, to see where it stands";
  }
  if (const absl::string_view page = PageAdvice(status); !page.empty()) return std::string(page);
  if (!flags.doors.ca_file.empty()) return "; docs/operations.md, Across machines, says what this may mean";
  return "; a daemon that speaks TLS wants --tls-ca FILE, and then may want --token-file, or "
         "--tls-cert and --tls-key; or its connections are all taken, as its log says then (connection_refused)";
}

// The payload of a call that was not answered in time; a command's own DEADLINE_EXCEEDED has none.
constexpr absl::string_view kNoAnswer = "eps/no_answer";

// Why that may be. Who listens takes calls, as its process lives; what it does about them is another matter.
absl::Status ExplainSilence(const absl::Status& status, const DaemonFlags& flags) {
  if (!flags.connect.empty()) {
    return absl::DeadlineExceededError(absl::StrCat("--connect ", flags.connect, ": ", status.message()));
  }
  const absl::StatusOr<Endpoint> endpoint = FindDaemon(flags.out);
  if (absl::IsUnavailable(endpoint.status())) return endpoint.status();  // it has ended meanwhile
  const std::string who =
      endpoint.ok() ? absl::StrCat(" (", endpoint->address, ", pid ", endpoint->process_id, ")") : "";
  return absl::DeadlineExceededError(
      absl::StrCat("the daemon of ", flags.out, who, " gave ", status.message(), ": its process lives; see its log"));
}

}  // namespace

absl::StatusOr<ClientDoors> WriteRunToken(const std::string& out) {
  ClientDoors doors;
  doors.token_file = RunFolder(out).token();
  unlink(doors.token_file.c_str());  // of the sitting before
  EPS_ASSIGN_OR_RETURN(const std::string token, NewToken());
  EPS_RETURN_IF_ERROR(WriteSecretFile(doors.token_file, token + "\n"));
  return doors;
}

void DaemonFlags::AddTo(CLI::App& command) {
  auto* connect_option =
      command.add_option("--connect", connect, "The daemon's gRPC address")->type_name("HOST:PORT")->check(IsAddress());
  command.add_option("--out", out, "The folder of the run, whose endpoints.json names the address")
      ->type_name("DIR")
      ->excludes(connect_option);
  AddClientDoorFlags(command, doors);
}

absl::StatusOr<DaemonClient> DaemonFlags::Client() const {
  if (connect.empty() && out.empty()) {
    return absl::InvalidArgumentError("one of --connect HOST:PORT and --out DIR is needed");
  }
  std::string address = connect;
  ClientDoors shown = doors;
  if (address.empty()) {
    EPS_ASSIGN_OR_RETURN(const Endpoint endpoint, FindDaemon(out));
    address = endpoint.address;
    std::error_code ignored;
    const std::string token = RunFolder(out).token();
    if (shown.token_file.empty() && std::filesystem::exists(token, ignored)) shown.token_file = token;
  }
  EPS_RETURN_IF_ERROR(CheckThreadRoom(ClientThreads()));
  EPS_ASSIGN_OR_RETURN(auto credentials, NewChannelCredentials(shown, address, absl::Now()));
  return DaemonClient(address, std::move(credentials));
}

int DaemonFlags::Run(const std::function<absl::Status(DaemonClient&)>& command) const {
  absl::StatusOr<DaemonClient> client = Client();
  if (!client.ok()) return ReportStart(client.status());
  const absl::Status status = command(*client);
  if (status.ok()) return kExitDone;
  PrintError(Explain(status));
  return kExitFailed;
}

bool DaemonFlags::HasNoDaemon() const {
  return connect.empty() && !out.empty() && absl::IsUnavailable(FindDaemon(out).status());
}

bool DaemonFlags::IsOver() const { return HasNoDaemon() && !IsLocked(RunFolder(out).logs()); }

bool DaemonFlags::IsOfFinishedRun() const { return HasNoDaemon() && IsFinished(out) && !HasFailed(out); }

absl::Status DaemonFlags::Explain(const absl::Status& status) const {
  if (status.GetPayload(kNoAnswer).has_value()) return ExplainSilence(status, *this);
  if (!absl::IsUnavailable(status)) return status;
  if (HasNoDaemon()) return absl::UnavailableError(NotRunningText(out));  // it has ended meanwhile
  const std::string where = connect.empty() ? "" : absl::StrCat("--connect ", connect, ": ");
  return absl::UnavailableError(absl::StrCat(where, status.message(), AdviceFor(status, *this)));
}

DaemonClient::DaemonClient(const std::string& address, std::shared_ptr<grpc::ChannelCredentials> credentials) {
  if (credentials == nullptr) credentials = grpc::InsecureChannelCredentials();
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);  // http_proxy is for the web: a daemon is spoken to directly
  stub_ = proto::Control::NewStub(grpc::CreateCustomChannel(address, credentials, arguments));
}

namespace {

template <typename Request, typename Reply>
absl::StatusOr<Reply> Call(proto::Control::Stub& stub,
                           grpc::Status (proto::Control::Stub::*method)(grpc::ClientContext*, const Request&, Reply*),
                           const Request& request, absl::Duration timeout) {
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + timeout));
  Reply reply;
  const grpc::Status status = (stub.*method)(&context, request, &reply);
  if (status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED) {  // no daemon answers so
    absl::Status silence =
        absl::DeadlineExceededError(absl::StrCat("no answer for ", absl::ToDoubleSeconds(timeout), " s"));
    silence.SetPayload(kNoAnswer, absl::Cord());
    return silence;
  }
  if (!status.ok()) return FromGrpc(status);
  return reply;
}

// Once more over a new connection, where one breaks.
template <typename Request>
absl::StatusOr<proto::StatusReply> AskForStatus(proto::Control::Stub& stub,
                                                grpc::Status (proto::Control::Stub::*method)(grpc::ClientContext*,
                                                                                             const Request&,
                                                                                             proto::StatusReply*),
                                                const Request& request, absl::Duration timeout) {
  absl::StatusOr<proto::StatusReply> reply = Call(stub, method, request, timeout);
  const bool has_broken = absl::IsUnavailable(reply.status()) || absl::IsCancelled(reply.status());
  return has_broken ? Call(stub, method, request, timeout) : reply;
}

}  // namespace

absl::StatusOr<proto::StatusReply> DaemonClient::Status(absl::Duration timeout) {
  return AskForStatus(*stub_, &proto::Control::Stub::GetStatus, proto::StatusRequest(), timeout);
}

absl::StatusOr<proto::StatusReply> DaemonClient::FollowOrders(const proto::WorkerStarter& starter,
                                                              absl::Duration timeout) {
  return AskForStatus(*stub_, &proto::Control::Stub::FollowOrders, starter, timeout);
}

absl::Status DaemonClient::ExpectWorkers(int workers, absl::Duration timeout) {
  proto::ExpectWorkersRequest request;
  request.set_workers(workers);
  return Call(*stub_, &proto::Control::Stub::ExpectWorkers, request, timeout).status();
}

absl::StatusOr<proto::CheckpointReply> DaemonClient::Checkpoint(absl::Duration timeout) {
  return Call(*stub_, &proto::Control::Stub::Checkpoint, proto::CheckpointRequest(), timeout);
}

absl::StatusOr<proto::StopReply> DaemonClient::Stop(const std::string& reason, absl::Duration timeout) {
  proto::StopRequest request;
  request.set_reason(reason);
  return Call(*stub_, &proto::Control::Stub::Stop, request, timeout);
}

absl::Status DaemonClient::Drain(absl::Span<const int64_t> workers, absl::Duration timeout) {
  proto::DrainRequest request;
  request.mutable_worker_id()->Add(workers.begin(), workers.end());
  return Call(*stub_, &proto::Control::Stub::Drain, request, timeout).status();
}

absl::StatusOr<int64_t> DaemonClient::StartWorkers(int workers, absl::Duration timeout) {
  proto::StartWorkersRequest request;
  request.set_workers(workers);
  EPS_ASSIGN_OR_RETURN(const proto::StartWorkersReply reply,
                       Call(*stub_, &proto::Control::Stub::StartWorkers, request, timeout));
  return reply.number();
}

}  // namespace eps::cli
