#ifndef EPS_SERVER_STEP_EVALUATION_H_
#define EPS_SERVER_STEP_EVALUATION_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/base/ids.h"
#include "common/schedule/vnode_batch.h"
#include "common/spec/run_config.h"
#include "eps_server/step/run_status.h"
#include "eps_server/step/step_report.h"
#include "eps_server/step/vnode_ledger.h"

namespace eps::server {

// Where the evaluation of a version stands: its rounds are read, given out and added up, one after the other. Each is
// cut into vnodes as a step is, so that the result is the same for any number of workers. Decides nothing: the owner
// says when it begins, and who computes what.
//
// Threads: none of its own; the owner guards it. Time is passed in.
class Evaluation {
 public:
  // num_rounds: of the data, at least 1 where config.is_on(). resumed: the version that the sitting begins with. It is
  // evaluated anew where it is due, because nothing says whether it was; that of a run that is done is not.
  Evaluation(const EvaluationConfig& config, int64_t steps, int64_t num_rounds, Version resumed);

  // Whether `version`, which was not evaluated in this sitting, is to be.
  bool IsDue(Version version) const;
  // version: due.
  void Begin(Version version, absl::Duration now);
  bool is_on() const { return version_.has_value(); }

  // The round whose samples are to be read now, told once; StartRound follows.
  std::optional<int64_t> NextRead();
  // Of the round that is being read. Nothing happens if the evaluation was ended meanwhile.
  void StartRound(std::vector<VnodeBatch> batches);
  // Of the round in work; null: there is none.
  const VnodeLedger* ledger() const { return ledger_.get(); }

  // As the ledger's; what it returns is of the round in work, which there is.
  Assignment Assign(WorkerId worker, absl::Span<const int> vnodes);
  // `worker` is gone. Returns how many of its vnodes others must run.
  int Lose(WorkerId worker);
  // Those of a round that is over are dropped. Errors: VnodeLedger::AddRecords's · INVALID_ARGUMENT naming the field: a
  // round that was not given out
  absl::Status AddRecords(WorkerId worker, Version version, int64_t round, absl::Span<const VnodeRecord> records);

  // If every record of the round in work is in: adds them up. True: it did, and there is no round in work.
  bool FinishRound();
  // Ends it if it was the last round, with what came out: with rewards, whatever it is of.
  std::optional<EvaluationReport> Finish(absl::Duration now);
  // Ends it with nothing.
  void Abandon();

  // nullopt: none goes on.
  std::optional<EvaluationProgress> Progress(absl::Duration now) const;
  // How long the evaluations that are still to be made take, the rest of the one that goes on among them, of a run that
  // ends at version `end` and has committed `committed`. Each is taken to be as long as the newest of this sitting; while
  // there is none, as the one that goes on promises, or else rounds of `round_seconds`.
  double SecondsLeft(Version committed, int64_t end, absl::Duration now, double round_seconds) const;
  // As VnodeLedger's, of the round in work.
  int TakeRedone() { return ledger_ == nullptr ? 0 : ledger_->TakeRedone(); }

 private:
  const EvaluationConfig config_;
  const int64_t steps_;
  const int64_t num_rounds_;
  Version newest_;                  // begun in this sitting, or not to be evaluated; -1: none
  std::optional<Version> version_;  // that is evaluated
  int64_t round_ = 0;               // that is to be read, is read or is in work
  bool is_reading_ = false;
  std::unique_ptr<VnodeLedger> ledger_;
  absl::Duration begun_at_;
  double newest_seconds_ = 0;  // that the newest one took; 0: there is none
  VnodeTotals totals_;         // of the rounds that are over

  // Versions from `first` to `last` that are due, both included.
  int64_t NumDue(int64_t first, int64_t last) const;
};

}  // namespace eps::server

#endif  // EPS_SERVER_STEP_EVALUATION_H_
