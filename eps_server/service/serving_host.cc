#include "eps_server/service/serving_host.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"

namespace eps::server {
namespace {

constexpr int64_t kMaxTokens = 1000000;

absl::Status Wrong(absl::string_view field, double found, absl::string_view wanted) {
  return absl::InvalidArgumentError(absl::StrCat(field, ": ", found, ", want ", wanted));
}

}  // namespace

absl::Status ServingHost::Check(const GenerateOptions& options) const {
  if (options.prompt.empty()) return Wrong("prompt", 0, "at least one token");
  for (const int32_t token : options.prompt) {
    if (token < 0 || token >= vocab_) return Wrong("prompt", token, absl::StrCat("tokens below ", vocab_));
  }
  if (options.max_tokens < 1 || options.max_tokens > kMaxTokens) {
    return Wrong("max_tokens", static_cast<double>(options.max_tokens), absl::StrCat("1 to ", kMaxTokens));
  }
  if (is_classifier_ && options.max_tokens != 1) {
    return Wrong("max_tokens", static_cast<double>(options.max_tokens), "1 of a classifier");
  }
  if (!(options.sampling.temperature >= 0) || std::isinf(options.sampling.temperature)) {
    return Wrong("temperature", options.sampling.temperature, "at least 0, and finite");
  }
  if (options.sampling.top_k < 0) return Wrong("top_k", options.sampling.top_k, "at least 0");
  return absl::OkStatus();
}

absl::StatusOr<int64_t> ServingHost::Generate(GenerateOptions options, Text text) {
  EPS_RETURN_IF_ERROR(Check(options));
  std::vector<Sending> sendings;
  int64_t id = 0;
  {
    MutexLock lock(mu_);
    id = ++last_text_;
    TextState& state = texts_[id];
    state.tokens = options.prompt;
    state.options = std::move(options);
    state.begun = clock_();
    state.text = std::move(text);
    sendings = Distribute();
  }
  Send(sendings);
  return id;
}

void ServingHost::CancelText(int64_t text_id) {
  TextState dropped;  // let go outside of the lock
  std::vector<Sending> sendings;
  {
    MutexLock lock(mu_);
    const auto it = texts_.find(text_id);
    if (it == texts_.end()) return;
    const auto worker = workers_.find(it->second.worker.value());
    if (worker != workers_.end()) --worker->second.requests;
    dropped = std::move(it->second);
    texts_.erase(it);
    sendings = Distribute();
  }
  Send(sendings);
}

absl::StatusOr<WorkerId> ServingHost::Attach(WorkerInfo info) {
  EPS_RETURN_IF_ERROR(CheckWorkerInfo(info));
  WorkerId id;
  {
    MutexLock lock(mu_);
    if (workers_.size() >= kMaxWorkers) {
      return absl::UnavailableError(absl::StrCat(workers_.size(), " workers are attached, and no more can be"));
    }
    id = WorkerId(++last_worker_);
    Worker& worker = workers_[id.value()];
    worker.status.id = id;
    worker.status.info = info;
    worker.deadline = clock_() + lease();
  }
  LogAttached(id, info);
  return id;
}

absl::StatusOr<ServingHost::Worker*> ServingHost::Find(WorkerId worker) {
  const auto it = workers_.find(worker.value());
  if (it == workers_.end()) return absl::NotFoundError(absl::StrCat("worker_id: ", worker.value(), " is unknown"));
  it->second.deadline = clock_() + lease();
  return &it->second;
}

void ServingHost::EndExpired() {
  EndExpiredLeases();
  EndExpiredTexts();
}

void ServingHost::EndExpiredTexts() {
  std::vector<TextState> expired;  // ended outside of the lock
  {
    MutexLock lock(mu_);
    const absl::Duration now = clock_();
    if (!workers_.empty()) last_manned_ = now;
    for (auto it = texts_.begin(); it != texts_.end();) {
      const bool waits = it->second.worker == WorkerId() && !it->second.answering;
      if (waits && now - std::max(it->second.begun, last_manned_) > longest_wait()) {
        expired.push_back(std::move(it->second));
        it = texts_.erase(it);
      } else {
        ++it;
      }
    }
  }
  for (const TextState& text : expired) {
    text.text.on_end(absl::UnavailableError(
        absl::StrCat("no worker was there for ", absl::FormatDuration(longest_wait()), " to write the text")));
  }
}

void ServingHost::EndExpiredLeases() {
  std::vector<WorkerId> expired;
  std::vector<std::shared_ptr<EventChannel>> channels;
  {
    MutexLock lock(mu_);
    for (auto& [number, worker] : workers_) {
      if (worker.deadline > clock_()) continue;
      expired.push_back(worker.status.id);
      if (worker.channel != nullptr) channels.push_back(worker.channel);
    }
  }
  const absl::Status why = absl::AbortedError("the worker's lease has run out");
  for (const WorkerId worker : expired) Disconnect(worker, why);
  for (const auto& channel : channels) channel->Close(why);
}

absl::Status ServingHost::Connect(WorkerId worker, std::shared_ptr<EventChannel> channel) {
  MutexLock lock(mu_);
  EPS_ASSIGN_OR_RETURN(Worker* const found, Find(worker));
  if (found->channel != nullptr) return absl::FailedPreconditionError("worker_id: it is connected already");
  found->channel = std::move(channel);
  return absl::OkStatus();
}

absl::Status ServingHost::Heartbeat(WorkerId worker) {
  MutexLock lock(mu_);
  return Find(worker).status();
}

absl::Status ServingHost::Ready(WorkerId worker, WorkerMemory memory) {
  std::vector<Sending> sendings;
  {
    MutexLock lock(mu_);
    EPS_ASSIGN_OR_RETURN(Worker* const found, Find(worker));
    if (found->channel == nullptr) return absl::FailedPreconditionError("worker_id: it has no event stream");
    found->status.memory = memory;
    found->ready = true;
    sendings = Distribute();
  }
  Send(sendings);
  return absl::OkStatus();
}

absl::Status ServingHost::Inferred(WorkerId worker, int64_t request_id, absl::StatusOr<std::vector<float>> logits) {
  if (logits.ok() && static_cast<int64_t>(logits->size()) != num_outputs_) {
    return Wrong("inferred.logits", static_cast<double>(logits->size()), absl::StrCat(num_outputs_, " of them"));
  }
  Text text;
  SamplingOptions sampling;
  int64_t index = 0;
  {
    MutexLock lock(mu_);
    EPS_RETURN_IF_ERROR(Find(worker).status());
    const auto it = texts_.find(request_id);
    // It may have been cancelled, or given to another worker.
    if (it == texts_.end() || it->second.worker != worker || it->second.answering) return absl::OkStatus();
    it->second.answering = true;  // nobody else touches it until its token is out
    text = it->second.text;
    sampling = it->second.options.sampling;
    index = it->second.written;
  }
  const absl::StatusOr<int32_t> token = logits.ok() ? SampleToken(*logits, sampling, index) : logits.status();
  if (token.ok()) text.on_token({*token, is_classifier_ ? *std::move(logits) : std::vector<float>()});

  bool ended = false;
  std::vector<Sending> sendings;
  {
    MutexLock lock(mu_);
    const auto it = texts_.find(request_id);
    if (it == texts_.end()) return absl::OkStatus();
    TextState& state = it->second;
    if (const auto found = workers_.find(state.worker.value()); found != workers_.end()) --found->second.requests;
    state.worker = WorkerId();
    state.answering = false;
    if (token.ok()) state.tokens.push_back(*token);
    ++state.written;
    ended = !token.ok() || state.written == state.options.max_tokens;
    if (ended) texts_.erase(it);
    sendings = Distribute();
  }
  Send(sendings);
  if (ended) text.on_end(token.status());
  return absl::OkStatus();
}

absl::Status ServingHost::Leave(WorkerId worker) {
  std::vector<Sending> sendings;
  {
    MutexLock lock(mu_);
    EPS_ASSIGN_OR_RETURN(Worker* const found, Find(worker));
    found->leaving = true;
    sendings = Distribute();
  }
  Send(sendings);
  return absl::OkStatus();
}

void ServingHost::Disconnect(WorkerId worker, absl::Status why) {
  std::vector<Sending> sendings;
  int texts_to_move = 0;
  bool is_lost = false;
  {
    MutexLock lock(mu_);
    const auto gone = workers_.find(worker.value());
    if (gone == workers_.end()) return;  // it has left, or its lease ran out
    texts_to_move = gone->second.requests;
    workers_.erase(gone);
    is_lost = !finishes_;
    num_lost_ += is_lost ? 1 : 0;
    for (auto& [id, text] : texts_) {
      if (text.worker == worker) text.worker = WorkerId();
    }
    sendings = Distribute();
  }
  if (is_lost) {
    LogWarning("worker_lost", {{"worker", worker.value()},
                               {"texts_to_move", texts_to_move},
                               {"why", why.ok() ? absl::string_view("it left") : why.message()}});
  } else {
    LogInfo("worker_left", {{"worker", worker.value()}});
  }
  Send(sendings);
}

std::vector<ServingHost::Sending> ServingHost::Distribute() {
  std::vector<Sending> sendings;
  for (auto& [id, text] : texts_) {
    if (text.worker != WorkerId() || text.answering) continue;
    Worker* least = nullptr;
    for (auto& [number, worker] : workers_) {
      if (!worker.ready || worker.leaving) continue;
      if (least == nullptr || worker.requests < least->requests) least = &worker;
    }
    if (least == nullptr) break;
    ++least->requests;
    text.worker = least->status.id;
    const int64_t num_tokens = std::min<int64_t>(static_cast<int64_t>(text.tokens.size()), context_);
    sendings.push_back({.channel = least->channel,
                        .worker = least->status.id,
                        .text_id = id,
                        .tokens = std::vector<int32_t>(text.tokens.end() - num_tokens, text.tokens.end())});
  }
  for (auto it = workers_.begin(); it != workers_.end();) {
    const Worker& worker = it->second;
    if (!worker.leaving || worker.requests > 0) {
      ++it;
      continue;
    }
    sendings.push_back({.channel = worker.channel, .worker = worker.status.id, .is_finish = true});
    it = workers_.erase(it);
  }
  return sendings;
}

void ServingHost::Send(const std::vector<Sending>& sendings) {
  for (const Sending& sending : sendings) {
    if (sending.is_finish) {
      LogInfo("worker_left", {{"worker", sending.worker.value()}});
      sending.channel->SendFinish({.ok = true, .reason = "it asked to leave"});
    } else {
      sending.channel->SendInfer(sending.text_id, sending.tokens);
    }
  }
}

std::vector<WorkerStatus> ServingHost::Workers() const {
  MutexLock lock(mu_);
  return List();
}

void ServingHost::FillWorkers(RunStatus& status) const {
  MutexLock lock(mu_);
  status.workers = List();
  status.lease_seconds = absl::ToDoubleSeconds(lease());
  status.counts.workers_attached = last_worker_;
  status.counts.workers_lost = num_lost_;
}

std::vector<WorkerStatus> ServingHost::List() const {
  const absl::Duration now = clock_();
  std::vector<WorkerStatus> statuses;
  for (const auto& [id, worker] : workers_) {
    WorkerStatus status = worker.status;
    status.state = worker.leaving        ? WorkerState::kLeaving
                   : !worker.ready       ? WorkerState::kAttaching
                   : worker.requests > 0 ? WorkerState::kRunning
                                         : WorkerState::kIdle;
    status.silent_for = now - (worker.deadline - lease());
    statuses.push_back(std::move(status));
  }
  return statuses;
}

void ServingHost::Finish() {
  std::vector<std::shared_ptr<EventChannel>> channels;
  {
    MutexLock lock(mu_);
    finishes_ = true;
    for (const auto& [id, worker] : workers_) {
      if (worker.channel != nullptr) channels.push_back(worker.channel);
    }
  }
  for (const auto& channel : channels) channel->SendFinish({.ok = true, .reason = "the daemon ends"});
}

}  // namespace eps::server
