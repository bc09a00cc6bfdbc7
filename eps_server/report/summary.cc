#include "eps_server/report/summary.h"

#include <optional>

#include "eps_server/report/reward_fields.h"
#include "nlohmann/json.hpp"

namespace eps::server {

std::string SummaryJson(const RunStatus& status, const std::vector<double>& losses, double seconds_before) {
  const double seconds = seconds_before + status.seconds;
  nlohmann::ordered_json summary;
  summary["steps"] = status.step;
  summary["steps_planned"] = status.steps;
  if (status.evaluates) summary["evaluates"] = true;
  summary["skipped_steps"] = status.skipped_steps;
  summary["tokens"] = status.tokens;
  summary["counted"] = status.counted;
  summary["seconds"] = seconds;
  summary["tokens_per_second"] = seconds > 0 ? static_cast<double>(status.tokens) / seconds : 0.0;
  // What a counted token took in this sitting, as every sitting's: both rates are over all of them.
  const double flops_per_token =
      status.counts.tokens > 0 ? status.counts.model_flops / static_cast<double>(status.counts.tokens) : 0;
  summary["model_flops_per_second"] = flops_per_token > 0
                                          ? nlohmann::json(flops_per_token * summary["tokens_per_second"].get<double>())
                                          : nlohmann::json();
  // Of one worker: what several make of a step no plan says.
  const bool is_predicted = status.predicted_step_seconds > 0 && status.most_workers == 1;
  summary["step_seconds"] = {
      {"median", status.median_step_seconds},
      {"predicted", is_predicted ? nlohmann::json(status.predicted_step_seconds) : nlohmann::json()}};
  summary["loss_first"] =
      losses.empty() ? nlohmann::json() : nlohmann::json(status.first_loss.value_or(losses.front()));
  summary["loss_last"] = losses.empty() ? nlohmann::json() : nlohmann::json(status.last_loss.value_or(losses.back()));
  summary["loss"] = losses;
  if (const std::optional<EvaluationReport>& evaluation = status.evaluation; evaluation.has_value()) {
    summary["evaluation"] = {{"step", evaluation->version.value()},
                             {"loss", evaluation->loss},
                             {"accuracy", evaluation->accuracy},
                             {"tokens", evaluation->tokens},
                             {"seconds", evaluation->seconds}};
    if (evaluation->rewards.has_value()) {
      AddRewards(*evaluation->rewards, [&](const char* name, double value) { summary["evaluation"][name] = value; });
    }
  }
  summary["parameters"] = status.parameters;
  summary["trainable_parameters"] = status.trainable_parameters;
  summary["model_state_bytes"] = status.model_state_bytes;
  summary["device_cap_bytes"] = status.device_cap_bytes;
  summary["device_peak_bytes"] = status.device_peak_bytes;
  summary["workers"] = status.most_workers;
  summary["device_models"] = status.device_models;
  summary["wait_fraction"] = nlohmann::ordered_json::object();
  for (const auto& [cause, waited] : status.counts.wait_seconds) {  // of the sitting; RunStatus's are of the last steps
    summary["wait_fraction"][cause] = status.counts.pass_seconds > 0 ? waited / status.counts.pass_seconds : 0.0;
  }
  summary["contribution_window_bytes"] = status.window_bytes;
  summary["hold_bytes"] = status.hold_bytes;
  summary["resident_bytes"] = status.resident_bytes;
  summary["newest_checkpoint"] = status.newest_checkpoint;
  // A path need not be UTF-8, and the end of a run is no time to stumble over it.
  return summary.dump(2, ' ', /*ensure_ascii=*/false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace eps::server
