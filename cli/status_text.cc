#include "cli/status_text.h"

#include <cstdint>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "cli/progress.h"
#include "cli/worker_count.h"
#include "common/base/byte_size.h"
#include "common/base/state_names.h"

namespace eps::cli {
namespace {

std::string Line(absl::string_view what, const std::string& value) {
  return absl::StrFormat("%-20s %s\n", what, Printable(value));
}
// None where there is nothing to say.
std::string LineOf(absl::string_view what, const std::string& value) { return value.empty() ? "" : Line(what, value); }

// What a loss is a mean of: "token", "sample", "pair".
absl::string_view UnitOfLoss(const proto::StatusReply& status) {
  const std::string counted = WhatIsCounted(status);
  return counted == "pairs" ? "pair" : counted == "samples" ? "sample" : "token";
}

std::string LossLines(const proto::StatusReply& status) {
  if (status.step() == 0) return Line("loss", "-");
  return Line("loss",
              absl::StrCat(status.loss(), " nats a ", UnitOfLoss(status), "; gradient norm ",
                           Known(status.gradient_norm() >= 0, absl::StrCat(status.gradient_norm())), ", learning rate ",
                           Known(status.learning_rate() >= 0, absl::StrCat(status.learning_rate()))));
}

// What is added to an evaluation of pairs.
std::string RewardsOf(const proto::EvaluationStatus& evaluation) {
  if (!evaluation.has_pairs()) return "";
  const proto::PairsStatus& pairs = evaluation.pairs();
  return absl::StrCat(", rewards ", FormatRewards(pairs.chosen_reward(), pairs.rejected_reward()));
}

std::string EvaluationLines(const proto::StatusReply& status) {
  const std::string in_progress = LineOf("evaluating", FormatEvaluating(status));
  if (!status.has_evaluation()) return in_progress;
  const proto::EvaluationStatus& newest = status.evaluation();
  return in_progress + Line("evaluation", absl::StrCat(newest.loss(), " nats a ", UnitOfLoss(status), " after step ",
                                                       newest.step(), "; accuracy ", newest.accuracy(), " of ",
                                                       newest.tokens(), " ", WhatIsCounted(status), RewardsOf(newest),
                                                       ", ", FormatSeconds(newest.seconds())));
}

std::string SpeedLines(const proto::StatusReply& status) {
  const bool has_done_one = status.last_step_seconds() > 0;  // in this sitting
  return absl::StrCat(
      Line("speed",
           absl::StrCat(Known(has_done_one, absl::StrCat(static_cast<int64_t>(status.tokens_per_second()))), " ",
                        WhatIsCounted(status), "/s, ",
                        Known(status.model_flops_per_second() > 0, FormatFlopRate(status.model_flops_per_second())),
                        " of the model, ", status.tokens(), " ", WhatIsCounted(status), " in all")),
      Line("compute waits for", Known(has_done_one, FormatWaits(status))),
      LineOf("this step waits for", FormatStepWait(status)));
}

std::string CheckpointLines(const proto::StatusReply& status) {
  const std::string age = FormatCheckpointAge(status);
  std::string text =
      Line("newest checkpoint", status.newest_checkpoint().empty() ? "none" : status.newest_checkpoint());
  if (!age.empty()) {
    absl::StrAppend(&text, Line("checkpoints", absl::StrCat(status.checkpoints_written(),
                                                            " written in this sitting; the newest ", age)));
  }
  absl::StrAppend(&text, LineOf("being written", FormatCheckpointWriting(status)));
  if (status.checkpoint_failures() == 0) return text;
  const std::string newest =
      status.checkpoint_error().empty() ? "was written" : absl::StrCat("failed: ", status.checkpoint_error());
  return text + Line("checkpoints failed",
                     absl::StrCat(status.checkpoint_failures(), " of this sitting; the newest ", newest));
}

// "silent 7.700 s of 10.0 s", after which it is lost.
std::string Silence(const proto::WorkerStatus& worker, double lease_seconds) {
  if (!IsAttached(worker)) return "";
  return absl::StrCat(", silent ", FormatSeconds(worker.silent_seconds()),
                      lease_seconds > 0 ? absl::StrCat(" of ", FormatSeconds(lease_seconds)) : "");
}

std::string WorkerLine(const proto::WorkerStatus& worker, double lease_seconds) {
  const auto part = [](absl::string_view before, absl::string_view text, absl::string_view after = "") {
    return text.empty() ? "" : absl::StrCat(before, text, after);
  };
  const std::string group = worker.group_members() == 0 ? ""
                                                        : absl::StrCat(", in worker ", worker.group_founder(),
                                                                       "'s group of ", worker.group_members());
  return Line(
      absl::StrCat("worker ", worker.worker_id()),
      absl::StrCat(worker.state(), Silence(worker, lease_seconds), ", ", worker.device_name(),
                   part(" (", worker.device_model(), ")"), ", pid ", worker.process_id(),
                   part(" on ", worker.host_name()), part(", over ", worker.transport()), group, ", vnodes {",
                   absl::StrJoin(worker.vnodes(), ","), "}, device ", FormatByteSize(worker.device_peak_bytes()),
                   " of ", FormatByteSize(worker.device_cap_bytes()), ", last pass ",
                   Known(worker.pass_seconds() > 0, FormatSeconds(worker.pass_seconds())),
                   part(", page ", worker.metrics_address())));
}

std::string KeyLines(const proto::StatusReply& status) {
  const std::string& why = status.keys().not_reloaded();
  return absl::StrCat(
      LineOf("certificate", FormatCertificateEnd(status)),
      LineOf("keys", why.empty() ? "" : absl::StrCat("new ones are NOT in use, the old ones go on: ", why)));
}

// "", where all of them train, or the daemon trains none.
std::string TrainableText(const proto::StatusReply& status) {
  const int64_t trainable = status.trainable_parameters();
  return trainable == 0 || trainable == status.parameters() ? "" : absl::StrCat("of which ", trainable, " train, ");
}

std::string WorkerLines(const proto::StatusReply& status) {
  const std::string order = FormatStartOrder(status);
  std::string text =
      absl::StrCat(Line("workers", absl::StrCat("attached ", status.workers_attached(), ", lost ",
                                                status.workers_lost(), ", virtual nodes redone ",
                                                status.vnodes_redone(), order.empty() ? "" : "; ", order)),
                   LineOf("waits for workers", FormatAwaitedWorkers(status)));
  for (const proto::WorkerStatus& worker : status.workers()) {
    absl::StrAppend(&text, WorkerLine(worker, status.lease_seconds()));
  }
  return text;
}

}  // namespace

std::string StatusText(const proto::StatusReply& status) {
  const std::string words = StateWords(status.state());
  const std::string state =
      Line("state", status.failure().empty() ? words : absl::StrCat(words, ": ", status.failure()));
  if (status.has_start_work()) {  // nothing else is known yet
    const std::string work = FormatStartWork(status);
    return state + Line("at work on", work.empty() ? "nothing that takes long yet" : work);
  }
  return absl::StrCat(
      state,
      Line("step", absl::StrCat(status.step(), " of ", status.steps(), ", eta ", FormatEta(status.eta_seconds()))),
      LineOf("at work on", FormatLongStep(status)),
      Line("last step", absl::StrCat(FormatLastStep(status), "; skipped ", status.skipped_steps(), ", waited too long ",
                                     status.step_waits())),
      LossLines(status), LineOf("pairs", FormatPairs(status)), LineOf("experts", FormatExpertLoad(status)),
      EvaluationLines(status), SpeedLines(status),
      Line("model", absl::StrCat(status.parameters(), " parameters, ", TrainableText(status), "state ",
                                 FormatByteSize(status.model_state_bytes()))),
      Line("daemon memory", absl::StrCat(FormatByteSize(status.resident_bytes()), " resident; contributions ",
                                         FormatByteSize(status.contribution_window_used_bytes()), " of ",
                                         FormatByteSize(status.contribution_window_bytes()))),
      CheckpointLines(status), KeyLines(status), WorkerLines(status));
}

}  // namespace eps::cli
