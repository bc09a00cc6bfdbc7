#include "eps_server/membership/membership.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/base/listen_address.h"
#include "common/base/log.h"
#include "common/base/state_names.h"
#include "common/base/status_macros.h"
#include "common/checkpoint/run_state.h"
#include "common/schedule/chunk_range.h"

namespace eps::server {
namespace {

constexpr size_t kMaxDeviceName = 64, kMaxHostName = 64, kMaxAddress = 256;  // bytes; proto/control.proto
constexpr size_t kMaxGone = 16;  // for Status: enough to see what happened, bounded for a worker that comes and goes

// Prometheus will be sent there: HOST:PORT, where HOST is an address and no name.
absl::Status CheckMetricsAddress(const std::string& address) {
  if (address.empty()) return absl::OkStatus();
  if (address.size() > kMaxAddress) {
    return absl::InvalidArgumentError(
        absl::StrCat("metrics_address: ", address.size(), " bytes, at most ", kMaxAddress));
  }
  // The very text: what is shown must not end a line, and no zero byte hide what follows it.
  const absl::StatusOr<ListenAddress> parsed = ParseListenAddress(address);
  if (!parsed.ok() || parsed->port == 0 || parsed->ToString() != address) {
    return absl::InvalidArgumentError(
        absl::StrCat("metrics_address: ", absl::CHexEscape(address), ", want HOST:PORT, a numeric address"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckWorkerInfo(const WorkerInfo& info) {
  if (info.device_name.size() > kMaxDeviceName) {
    return absl::InvalidArgumentError(
        absl::StrCat("device_name: ", info.device_name.size(), " bytes, at most ", kMaxDeviceName));
  }
  if (info.device_model.size() > kMaxDeviceModelBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("device_model: ", info.device_model.size(), " bytes, at most ", kMaxDeviceModelBytes));
  }
  if (!IsDeviceModel(info.device_model)) {  // a text of manifests
    return absl::InvalidArgumentError(absl::StrCat("device_model: \"", absl::CHexEscape(info.device_model),
                                                   "\", must be printable ASCII, and not empty"));
  }
  if (info.host_name.size() > kMaxHostName) {
    return absl::InvalidArgumentError(
        absl::StrCat("host_name: ", info.host_name.size(), " bytes, at most ", kMaxHostName));
  }
  if (info.device_cap_bytes <= 0) {
    return absl::InvalidArgumentError(absl::StrCat("device_cap_bytes: ", info.device_cap_bytes, ", must be positive"));
  }
  if (info.threads < 0) {
    return absl::InvalidArgumentError(absl::StrCat("threads: ", info.threads, ", must not be negative"));
  }
  return CheckMetricsAddress(info.metrics_address);
}

void LogAttached(WorkerId worker, const WorkerInfo& info) {
  LogInfo("worker_attached", {{"worker", worker.value()},
                              {"device", info.device_name},
                              {"device_model", info.device_model},
                              {"device_cap_bytes", info.device_cap_bytes},
                              {"host", info.host_name},
                              {"process", info.process_id},
                              {"threads", info.threads}});
}

absl::string_view WorkerStateName(WorkerState state) {
  switch (state) {
    case WorkerState::kAttaching:
      return worker_state::kAttaching;
    case WorkerState::kIdle:
      return worker_state::kIdle;
    case WorkerState::kRunning:
      return worker_state::kRunning;
    case WorkerState::kLeaving:
      return worker_state::kLeaving;
    case WorkerState::kLost:
      return worker_state::kLost;
    case WorkerState::kLeft:
      return worker_state::kLeft;
  }
  return "unknown";
}

absl::StatusOr<WorkerId> Membership::Attach(WorkerInfo info, absl::Duration now) {
  EPS_RETURN_IF_ERROR(CheckWorkerInfo(info));
  if (workers_.size() >= kMaxWorkers) {
    return absl::UnavailableError(absl::StrCat(workers_.size(), " workers are attached, and no more can be"));
  }
  const WorkerId id(next_id_++);
  Worker& worker = workers_[id];
  worker.status.id = id;
  worker.status.info = std::move(info);
  worker.deadline = now + lease_;
  return id;
}

absl::StatusOr<Membership::Worker*> Membership::Find(WorkerId worker, absl::Duration now) {
  const auto found = workers_.find(worker);
  if (found == workers_.end()) {
    return absl::NotFoundError(absl::StrCat("worker_id: ", worker.value(), " is unknown, or was lost"));
  }
  found->second.deadline = now + lease_;
  return &found->second;
}

absl::Status Membership::Connect(WorkerId worker, std::shared_ptr<WorkerChannel> channel, absl::Duration now) {
  EPS_ASSIGN_OR_RETURN(Worker * found, Find(worker, now));
  if (found->channel != nullptr) {
    return absl::FailedPreconditionError(absl::StrCat("worker_id: ", worker.value(), " has an event stream already"));
  }
  found->channel = std::move(channel);
  return absl::OkStatus();
}

absl::Status Membership::Renew(WorkerId worker, absl::Duration now) { return Find(worker, now).status(); }

absl::StatusOr<bool> Membership::Ready(WorkerId worker, WorkerMemory memory, absl::Duration now) {
  EPS_ASSIGN_OR_RETURN(Worker * found, Find(worker, now));
  if (found->channel == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat("worker_id: ", worker.value(), " has no event stream"));
  }
  const bool is_new = !std::exchange(found->ready, true);
  largest_cap_bytes_ = std::max(largest_cap_bytes_, found->status.info.device_cap_bytes);
  found->status.memory = memory;
  if (!found->is_leaving()) found->status.state = WorkerState::kIdle;
  return is_new;
}

absl::Status Membership::RecordPass(WorkerId worker, PassTiming timing, absl::Duration now) {
  EPS_ASSIGN_OR_RETURN(Worker * found, Find(worker, now));
  found->status.memory.device_outside_bytes = timing.device_outside_bytes;
  found->status.last_pass = std::move(timing);
  return absl::OkStatus();
}

absl::StatusOr<bool> Membership::Leave(WorkerId worker, absl::Duration now) {
  EPS_ASSIGN_OR_RETURN(Worker * found, Find(worker, now));
  return std::exchange(found->status.state, WorkerState::kLeaving) != WorkerState::kLeaving;
}

absl::StatusOr<std::vector<WorkerId>> Membership::Drain(absl::Span<const WorkerId> workers) {
  const std::set<WorkerId> asked(workers.begin(), workers.end());
  for (const WorkerId id : asked) {
    const auto worker = workers_.find(id);
    if (worker == workers_.end()) {
      return absl::NotFoundError(absl::StrCat("worker ", id.value(), ": none of that number is attached"));
    }
    // It listens to no order before it is.
    if (!worker->second.ready) {
      return absl::FailedPreconditionError(absl::StrCat("worker ", id.value(), ": is not ready yet; try again"));
    }
  }
  const std::vector<WorkerId> ready = ReadyWorkers();
  if (std::all_of(ready.begin(), ready.end(), [&](WorkerId id) { return asked.count(id) > 0; })) {
    return absl::FailedPreconditionError(
        "no other worker is ready; attach one and wait until it is, or end the run: eps stop");
  }
  std::vector<WorkerId> told;
  for (const WorkerId id : asked) {
    Worker& worker = workers_.at(id);
    if (worker.is_leaving()) continue;
    worker.status.state = WorkerState::kLeaving;
    told.push_back(id);
  }
  return told;
}

void Membership::LetGo(WorkerId worker) { workers_.at(worker).let_go = true; }

bool Membership::IsLetGo(WorkerId worker) const {
  const auto found = workers_.find(worker);
  return found != workers_.end() && found->second.let_go;
}

std::shared_ptr<WorkerChannel> Membership::Remove(WorkerId worker, WorkerState gone_as) {
  const auto found = workers_.find(worker);
  if (found == workers_.end()) return nullptr;
  std::shared_ptr<WorkerChannel> channel = std::move(found->second.channel);
  if (!found->second.let_go) {
    gone_.push_back(std::move(found->second.status));
    gone_.back().state = gone_as;
    if (gone_.size() > kMaxGone) gone_.pop_front();
  }
  workers_.erase(found);
  return channel;
}

const std::string& Membership::DeviceModel(WorkerId worker) const {
  return workers_.at(worker).status.info.device_model;
}

std::string Membership::OtherDeviceModel(absl::string_view device_model) const {
  for (const auto& [id, worker] : workers_) {
    if (!worker.let_go && worker.status.info.device_model != device_model) return worker.status.info.device_model;
  }
  return "";
}

std::vector<WorkerId> Membership::Expired(absl::Duration now) const {
  std::vector<WorkerId> expired;
  for (const auto& [id, worker] : workers_) {
    if (worker.deadline <= now) expired.push_back(id);
  }
  return expired;
}

std::vector<WorkerId> Membership::ReadyWorkers() const {
  std::vector<WorkerId> ready;
  for (const auto& [id, worker] : workers_) {
    if (worker.may_be_given_work()) ready.push_back(id);
  }
  return ready;
}

std::vector<WorkerId> Membership::LeavingWorkers() const {
  std::vector<WorkerId> leaving;
  for (const auto& [id, worker] : workers_) {
    if (worker.is_leaving() && !worker.let_go) leaving.push_back(id);
  }
  return leaving;
}

std::vector<WorkerId> Membership::WorkersForTheRest() const {
  std::vector<WorkerId> workers = ReadyWorkers();
  return workers.empty() ? LeavingWorkers() : workers;
}

int Membership::num_ready() const {
  return static_cast<int>(std::count_if(workers_.begin(), workers_.end(),
                                        [](const auto& w) { return w.second.ready && !w.second.let_go; }));
}

int Membership::num_alive() const {
  return static_cast<int>(
      std::count_if(workers_.begin(), workers_.end(), [](const auto& w) { return !w.second.let_go; }));
}

std::vector<Groups::Candidate> Membership::GroupCandidates() const {
  std::vector<Groups::Candidate> candidates;
  for (const auto& [id, worker] : workers_) {
    if (worker.may_be_given_work()) candidates.push_back({.worker = id, .kind = worker.status.memory.group_kind});
  }
  return candidates;
}

std::shared_ptr<WorkerChannel> Membership::channel(WorkerId worker) const {
  const auto found = workers_.find(worker);
  return found == workers_.end() ? nullptr : found->second.channel;
}

std::vector<std::shared_ptr<WorkerChannel>> Membership::Channels() const {
  std::vector<std::shared_ptr<WorkerChannel>> channels;
  for (const auto& [id, worker] : workers_) {
    if (worker.channel != nullptr && !worker.let_go) channels.push_back(worker.channel);
  }
  return channels;
}

std::vector<WorkerStatus> Membership::List(absl::Duration now) const {
  std::vector<WorkerStatus> list(gone_.begin(), gone_.end());
  for (const auto& [id, worker] : workers_) {
    list.push_back(worker.status);
    list.back().silent_for = std::max(absl::ZeroDuration(), now - (worker.deadline - lease_));
  }
  return list;
}

std::vector<std::vector<int>> SplitVnodes(absl::Span<const int> vnodes, int num_workers) {
  std::vector<std::vector<int>> parts(static_cast<size_t>(num_workers));
  for (int i = 0; i < num_workers; ++i) {
    const ChunkRange part = PartOf(static_cast<int64_t>(vnodes.size()), i, num_workers);
    parts[static_cast<size_t>(i)].assign(vnodes.begin() + part.first, vnodes.begin() + part.end());
  }
  return parts;
}

}  // namespace eps::server
