#include "eps_server/service/worker_messages.h"

#include <cmath>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "common/base/host.h"
#include "common/base/ids.h"
#include "common/base/listen_address.h"
#include "common/base/protocol_version.h"
#include "common/base/status_macros.h"
#include "common/base/wait_cause.h"
#include "common/schedule/group_limits.h"
#include "common/tensor/dtype.h"

namespace eps::server {
namespace {

constexpr size_t kMaxWhyBytes = 4096;  // of what a worker says went wrong

absl::Status CheckNotNegative(absl::string_view field, int64_t value) {
  if (value >= 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(field, ": ", value, ", want at least 0"));
}

// "10.0.0.7" of "ipv4:10.0.0.7:4711", "::1" of "ipv6:%5B::1%5D:4711".
std::string HostOfPeer(const std::string& peer) {
  return HostOf(absl::StrReplaceAll(peer.substr(peer.find(':') + 1), {{"%5B", "["}, {"%5D", "]"}}));
}

}  // namespace

std::string PageAddress(const std::string& told, const std::string& peer) {
  const std::string host = HostOf(told), from = HostOfPeer(peer);
  if (IsLoopbackHost(host)) return IsLoopbackHost(from) ? told : "";
  const absl::StatusOr<ListenAddress> address = ParseListenAddress(told);
  if ((host != "0.0.0.0" && host != "::") || !address.ok()) return told;
  return ListenAddress{.host = from, .port = address->port}.ToString();
}

absl::Status CheckProtocolVersion(uint32_t worker_version) {
  if (worker_version == kProtocolVersion) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("protocol_version: the worker speaks ", worker_version,
                                                    ", this daemon ", kProtocolVersion,
                                                    "; use programs of one release"));
}

absl::StatusOr<WorkerMemory> ToMemory(const proto::Ready& ready) {
  EPS_RETURN_IF_ERROR(CheckNotNegative("ready.device_arena_bytes", ready.device_arena_bytes()));
  EPS_RETURN_IF_ERROR(CheckNotNegative("ready.device_outside_bytes", ready.device_outside_bytes()));
  EPS_RETURN_IF_ERROR(CheckNotNegative("ready.host_bytes", ready.host_bytes()));
  // A closed set: it is shown, and counted by.
  if (ready.transport() != "grpc" && ready.transport() != "shared_memory") {
    return absl::InvalidArgumentError("ready.transport: want grpc or shared_memory");
  }
  if (ready.group_kind().size() > kMaxGroupKindBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("ready.group_kind: ", ready.group_kind().size(), " bytes, at most ", kMaxGroupKindBytes));
  }
  if (!(ready.predicted_step_seconds() >= 0) || std::isinf(ready.predicted_step_seconds())) {
    return absl::InvalidArgumentError(
        absl::StrCat("ready.predicted_step_seconds: ", ready.predicted_step_seconds(), ", want at least 0"));
  }
  return WorkerMemory{.device_arena_bytes = ready.device_arena_bytes(),
                      .device_outside_bytes = ready.device_outside_bytes(),
                      .host_bytes = ready.host_bytes(),
                      .transport = ready.transport(),
                      .group_kind = ready.group_kind(),
                      .predicted_step_seconds = ready.predicted_step_seconds()};
}

absl::StatusOr<PassTiming> ToTiming(const proto::PassDone& done) {
  EPS_RETURN_IF_ERROR(CheckNotNegative("pass_done.device_peak_bytes", done.device_peak_bytes()));
  EPS_RETURN_IF_ERROR(CheckNotNegative("pass_done.device_outside_bytes", done.device_outside_bytes()));
  PassTiming timing = {.seconds = done.seconds(),
                       .wait_seconds = {},
                       .device_peak_bytes = done.device_peak_bytes(),
                       .device_outside_bytes = done.device_outside_bytes()};
  if (!(done.seconds() >= 0) || std::isinf(done.seconds())) {
    return absl::InvalidArgumentError(absl::StrCat("pass_done.seconds: ", done.seconds(), ", want at least 0"));
  }
  for (const auto& [cause, seconds] : done.wait_seconds()) {
    // A closed set, so that a worker cannot fill metrics and status with names of its own.
    if (!IsWaitCause(cause)) {
      return absl::InvalidArgumentError(
          absl::StrCat("pass_done.wait_seconds: an unknown cause, want one of ", absl::StrJoin(kWaitCauses, ", ")));
    }
    if (!(seconds >= 0) || std::isinf(seconds)) {
      return absl::InvalidArgumentError(
          absl::StrCat("pass_done.wait_seconds.", cause, ": ", seconds, ", want at least 0"));
    }
    timing.wait_seconds[cause] = seconds;
  }
  return timing;
}

std::vector<VnodeRecord> ToRecords(const proto::PassDone& done) {
  std::vector<VnodeRecord> records;
  for (const proto::Record& record : done.records()) {
    records.push_back({.vnode = record.vnode(),
                       .loss_sum = record.loss_sum(),
                       .counted_tokens = record.counted_tokens(),
                       .finite = record.finite(),
                       .correct = record.correct(),
                       .chosen_reward = record.chosen_reward(),
                       .rejected_reward = record.rejected_reward(),
                       .expert_rows = {record.expert_rows().begin(), record.expert_rows().end()}});
  }
  return records;
}

GroupReport ToGroupReport(const proto::WorkerEvent& event) {
  if (event.has_group_founded()) {
    return {.kind = GroupReport::Kind::kFounded,
            .group = event.group_founded().group(),
            .text = event.group_founded().token()};
  }
  if (event.has_group_joined()) return {.kind = GroupReport::Kind::kJoined, .group = event.group_joined().group()};
  return {.kind = GroupReport::Kind::kFailed,
          .group = event.group_failed().group(),
          .text = event.group_failed().message().substr(0, kMaxWhyBytes)};
}

absl::StatusOr<std::vector<float>> ToLogits(const proto::Inferred& inferred) {
  if (!inferred.error().empty()) {
    return absl::InternalError(absl::StrCat("the worker says: ", inferred.error().substr(0, kMaxWhyBytes)));
  }
  const std::string& bytes = inferred.logits();
  if (bytes.empty() || bytes.size() % sizeof(float) != 0) {
    return absl::InvalidArgumentError(absl::StrCat("inferred.logits: ", bytes.size(), " bytes"));
  }
  std::vector<float> logits(bytes.size() / sizeof(float));
  std::memcpy(logits.data(), bytes.data(), bytes.size());
  return logits;
}

absl::StatusOr<ContributionKey> ToKey(const proto::Offer& offer, uint64_t incarnation) {
  if (offer.incarnation() != incarnation) {
    return absl::FailedPreconditionError(
        absl::StrCat("offer: incarnation: ", offer.incarnation(), ", this daemon is ", incarnation, ": attach anew"));
  }
  if (!IsDtype(offer.dtype())) {
    return absl::InvalidArgumentError(absl::StrCat("offer: dtype: ", offer.dtype(), ", want ", kDtypeValues));
  }
  EPS_RETURN_IF_ERROR(CheckNotNegative("offer: first_chunk", offer.first_chunk()));
  if (offer.num_chunks() < 1) {
    return absl::InvalidArgumentError(absl::StrCat("offer: num_chunks: ", offer.num_chunks(), ", want at least 1"));
  }
  return ContributionKey{.step = StepId(offer.step()),
                         .blob = BlobId(offer.blob()),
                         .use = offer.use(),
                         .node = {offer.node_first(), offer.node_count()},
                         .chunks = {offer.first_chunk(), offer.num_chunks()},
                         .dtype = static_cast<Dtype>(offer.dtype()),
                         .nonfinite_vnode = offer.nonfinite_vnode()};
}

}  // namespace eps::server
