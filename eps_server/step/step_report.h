#ifndef EPS_SERVER_STEP_STEP_REPORT_H_
#define EPS_SERVER_STEP_STEP_REPORT_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "common/base/ids.h"
#include "common/schedule/loss_scale.h"
#include "eps_server/step/expert_load.h"

namespace eps::server {

// Of preferences: what pairs' better answers are worth to the model, and the others; means over pairs (PreferenceConfig).
struct PairRewards {
  double chosen = 0, rejected = 0;

  double margin() const { return chosen - rejected; }
};

// How a step's pairs were told apart, by the weights that it began with.
struct PairOutcome {
  double accuracy = 0;  // the share whose better answer is preferred
  PairRewards rewards;
};

// A committed step, as metrics.jsonl and the log show it.
struct StepReport {
  StepId step;
  double loss = 0;  // nats per counted token, sample or pair; NaN where none is
  double learning_rate = 0;
  double gradient_norm = 0;  // before clipping; -1 if it is not finite
  bool skipped = false;      // the gradient was not finite: nothing changed
  double loss_scale = 1;     // that the gradient came multiplied by
  LossScale next_loss_scale;
  double seconds = 0;       // from the commit before, or from its own start if that was later
  double held_seconds = 0;  // of these, in which an update waited for a checkpoint to copy its blob
  int64_t tokens = 0;       // counted in this step
  double tokens_per_second = 0;
  double model_flops = 0;                       // that the step's mathematics asked for (ModelFlops)
  std::map<std::string, double> wait_fraction;  // share of the workers' pass time in which compute waited, by cause
  double pass_seconds = 0;                      // that they are shares of, added over the workers
  int64_t device_peak_bytes = 0;                // the largest over the workers so far
  int workers = 0;                              // that are ready
  std::optional<PairOutcome> pairs;             // nullopt: the run is not of preferences, or no pair was counted
  std::optional<ExpertLoad> expert_load;        // nullopt: there are no experts, or none are told of
};

// An evaluation, as evaluations.jsonl and the log show it.
struct EvaluationReport {
  Version version;      // whose weights it is of
  double loss = 0;      // nats per what is counted; not a number where the weights give none, or nothing is counted
  double accuracy = 0;  // share of what is counted: VnodeRecord::correct
  std::optional<PairRewards> rewards;  // of preferences, where a pair is counted
  int64_t tokens = 0;                  // counted
  double seconds = 0;
  bool is_of_samples = false;  // it is of a sample as a whole, its class or its better answer: no perplexity
};

class StepObserver {
 public:
  virtual ~StepObserver() = default;
  // In step order, from one thread, after the step is visible in Status(). May do I/O; a slow one
  // delays the next gate.
  virtual void OnCommit(const StepReport& report) = 0;
  // The same of an evaluation: after the step that made its version, before the next one begins.
  virtual void OnEvaluation(const EvaluationReport& report) { static_cast<void>(report); }
};

}  // namespace eps::server

#endif  // EPS_SERVER_STEP_STEP_REPORT_H_
