#include "eps_server/service/generate_call.h"

#include <deque>
#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "common/grpc/grpc_status.h"

namespace eps::server {
namespace {

class GenerateCall final : public grpc::ServerWriteReactor<proto::GenerateReply> {
 public:
  explicit GenerateCall(ServingHost* serving) : serving_(serving) {}

  void Begin(const proto::GenerateRequest& request, std::shared_ptr<GenerateCall> self) {
    self_ = std::move(self);
    if (serving_ == nullptr) {
      return End(absl::FailedPreconditionError("this daemon trains; text comes from one that serves a checkpoint"));
    }
    GenerateOptions options = {
        .prompt = {request.prompt().begin(), request.prompt().end()},
        .max_tokens = request.max_tokens(),
        .sampling = {.temperature = request.temperature(), .top_k = request.top_k(), .seed = request.seed()}};
    absl::StatusOr<int64_t> text = serving_->Generate(
        std::move(options), {.on_token = [call = self_](ServingHost::Drawn drawn) { call->Add(std::move(drawn)); },
                             .on_end = [call = self_](absl::Status status) { call->End(status); }});
    if (!text.ok()) return End(text.status());
    bool gone = false;
    {
      MutexLock lock(mu_);
      text_id_ = *text;
      gone = ended_;
    }
    if (gone) serving_->CancelText(*text);
  }

 private:
  void Add(ServingHost::Drawn drawn) {
    {
      MutexLock lock(mu_);
      if (ending_ || ended_) return;
      drawn_.push_back(std::move(drawn));
    }
    Advance();
  }

  // Ends the call with `status` once every token is out; at once if the client is gone.
  void End(absl::Status status) {
    {
      MutexLock lock(mu_);
      if (ending_) return;
      ending_ = true;
      end_ = std::move(status);
    }
    Advance();
  }

  // Writes the next token, or finishes; one operation at a time.
  void Advance() {
    bool finish = false;
    absl::Status end;
    {
      MutexLock lock(mu_);
      if (writing_ || ended_) return;
      if (!drawn_.empty()) {
        const ServingHost::Drawn& next = drawn_.front();
        reply_.set_token(next.token);
        reply_.mutable_class_logits()->Assign(next.class_logits.begin(), next.class_logits.end());
        drawn_.pop_front();
        writing_ = true;
      } else if (ending_) {
        ended_ = finish = true;
        end = end_;
      } else {
        return;
      }
    }
    if (finish) {
      Finish(ToGrpc(end));
    } else {
      StartWrite(&reply_);
    }
  }

  void OnWriteDone(bool ok) override {
    {
      MutexLock lock(mu_);
      writing_ = false;
      if (!ok) drawn_.clear();
    }
    if (!ok) End(absl::CancelledError("generate: the client is gone"));
    Advance();
  }

  void OnCancel() override {
    {
      MutexLock lock(mu_);
      drawn_.clear();
    }
    End(absl::CancelledError("generate: cancelled"));
  }

  void OnDone() override {
    int64_t text_id = 0;
    {
      MutexLock lock(mu_);
      text_id = text_id_;
    }
    if (text_id > 0) serving_->CancelText(text_id);
    self_.reset();
  }

  ServingHost* const serving_;
  proto::GenerateReply reply_;  // used by gRPC between StartWrite and OnWriteDone

  Mutex mu_;
  std::deque<ServingHost::Drawn> drawn_
      ABSL_GUARDED_BY(mu_);  // drawn and not yet written: a slow client's, at most max_tokens
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  bool ending_ ABSL_GUARDED_BY(mu_) = false;  // no more tokens will come
  bool ended_ ABSL_GUARDED_BY(mu_) = false;   // Finish was called, or is about to be
  absl::Status end_ ABSL_GUARDED_BY(mu_);
  int64_t text_id_ ABSL_GUARDED_BY(mu_) = 0;

  std::shared_ptr<GenerateCall> self_;  // until OnDone
};

}  // namespace

grpc::ServerWriteReactor<proto::GenerateReply>* StartGenerateCall(ServingHost* serving,
                                                                  const proto::GenerateRequest& request) {
  auto call = std::make_shared<GenerateCall>(serving);
  GenerateCall* reactor = call.get();
  reactor->Begin(request, std::move(call));
  return reactor;
}

}  // namespace eps::server
