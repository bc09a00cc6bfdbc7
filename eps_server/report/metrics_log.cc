#include "eps_server/report/metrics_log.h"

#include <cmath>
#include <filesystem>
#include <system_error>

#include "common/base/file_util.h"
#include "common/base/status_macros.h"
#include "eps_server/report/reward_fields.h"
#include "eps_server/report/step_lines.h"
#include "nlohmann/json.hpp"

namespace eps::server {
namespace {

void AddRewardsTo(nlohmann::ordered_json& line, const PairRewards& rewards) {
  AddRewards(rewards, [&line](const char* name, double value) { line[name] = value; });
}

}  // namespace

std::string MetricsLine(const StepReport& report) {
  nlohmann::ordered_json line;
  line["step"] = report.step.value();
  line["loss"] = report.loss;  // not a number: null
  line["learning_rate"] = report.learning_rate;
  line["gradient_norm"] = report.gradient_norm;
  line["skipped"] = report.skipped;
  line["loss_scale"] = report.loss_scale;
  line["tokens"] = report.tokens;
  line["tokens_per_second"] = report.tokens_per_second;
  line["model_flops"] = report.model_flops;
  line["step_seconds"] = report.seconds;
  line["checkpoint_wait_seconds"] = report.held_seconds;
  line["waits"] = nlohmann::ordered_json::object();
  for (const auto& [cause, share] : report.wait_fraction) line["waits"][cause] = share;
  line["device_peak_bytes"] = report.device_peak_bytes;
  line["workers"] = report.workers;
  if (report.pairs.has_value()) {
    line["accuracy"] = report.pairs->accuracy;
    AddRewardsTo(line, report.pairs->rewards);
  }
  if (report.expert_load.has_value()) {
    const ExpertLoad& load = *report.expert_load;
    line["experts"] = {{"busiest", load.busiest},
                       {"busiest_block", load.busiest_block},
                       {"busiest_expert", load.busiest_expert},
                       {"mean_busiest", load.mean_busiest},
                       {"idle", load.idle}};
  }
  return line.dump() + "\n";
}

std::string EvaluationLine(const EvaluationReport& report) {
  nlohmann::ordered_json line;
  line["step"] = report.version.value();
  line["loss"] = report.loss;  // not a number: null
  if (!report.is_of_samples) line["perplexity"] = std::exp(report.loss);
  line["accuracy"] = report.accuracy;
  if (report.rewards.has_value()) AddRewardsTo(line, *report.rewards);
  line["tokens"] = report.tokens;
  line["seconds"] = report.seconds;
  return line.dump() + "\n";
}

absl::StatusOr<std::unique_ptr<MetricsLog>> MetricsLog::Open(const RunFolder& folder, bool evaluates,
                                                             int64_t first_step) {
  EPS_ASSIGN_OR_RETURN(std::unique_ptr<GrowingFile> steps, OpenStepLines(folder.metrics(), first_step));
  std::unique_ptr<GrowingFile> evaluations;
  const std::string evaluations_path = folder.evaluations();
  if (!evaluates && first_step == 0) EPS_RETURN_IF_ERROR(RemoveIfThere(evaluations_path));
  // Of a run that evaluates no more what is beyond its checkpoint goes, too.
  if (std::error_code ignored; evaluates || std::filesystem::exists(evaluations_path, ignored)) {
    EPS_ASSIGN_OR_RETURN(evaluations, OpenStepLines(evaluations_path, first_step));
  }
  return std::unique_ptr<MetricsLog>(new MetricsLog(std::move(steps), std::move(evaluations)));
}

void MetricsLog::OnCommit(const StepReport& report) { steps_->Append(MetricsLine(report)); }
void MetricsLog::OnEvaluation(const EvaluationReport& report) { evaluations_->Append(EvaluationLine(report)); }

}  // namespace eps::server
