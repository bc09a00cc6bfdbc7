// What is wrong with a run, as banners. Pure.

import { formatSeconds, listOf, numberOf, plural, textOf, wordsOf } from "./format.js";
import { hasStepOfSitting, isOver } from "./state.js";
import { isSilent } from "./workers.js";

const MOST_WORKERS_NAMED = 8;
const MOST_SKIPPED_IN_A_ROW = 20;  // kMaxSkippedInARow
const EXPIRES_SOON_SECONDS = 14 * 86400;  // kExpiresSoon
const STEP_WAIT_NAMES = { no_worker: "a worker" };  // of others their words do
const STEP_WAIT_MEANINGS = {
  data: "The step's samples are being read.",
  no_worker: "No worker is ready.",
  compute: "Passes of these workers are missing.",
  push: "All passes are done; gradients are missing.",
  update: "The optimizer makes the next version of the blobs that are left.",
  checkpoint: "A checkpoint has to copy blobs before they are updated.",
};

export function failureBanners(status) {
  const failure = textOf(status.failure);
  if (status.state !== "failed" && failure === "") return [];
  return [{ severity: "bad", title: "Failed", text: failure || "no reason was given" }];
}

// What is wrong now; the badge has the worst of them.
export function currentWarnings(status) {
  return [
    ...stepWaitWarnings(status),
    ...notFiniteWarnings(status),
    ...checkpointWarnings(status),
    ...keyWarnings(status),
    ...silenceWarnings(status),
  ];
}

function stepWaitWarnings(status) {
  const wait = status.step_wait;
  if (!wait) return [];
  const cause = textOf(wait.cause);
  const ids = listOf(wait.worker_id);
  const named = ids.slice(0, MOST_WORKERS_NAMED).map(textOfId).join(", ");
  const more = ids.length > MOST_WORKERS_NAMED ? ` and ${ids.length - MOST_WORKERS_NAMED} more` : "";
  const workers = ids.length === 0 ? "" : `, of worker${ids.length === 1 ? "" : "s"} ${named}${more}`;
  const waited = STEP_WAIT_NAMES[cause] ?? wordsOf(cause);
  const title = `This step waits for ${waited}, ${formatSeconds(wait.seconds)}${workers}`;
  return [{ severity: "warning", title, text: STEP_WAIT_MEANINGS[cause] ?? "" }];
}

// FP16's loss scale is found by steps that are skipped; once it has fallen to 1, nothing is left to be found.
export const findsLossScale = (status) => numberOf(status.loss_scale, 1) > 1;

// Of the last step. A failed run's reason says it already.
function notFiniteWarnings(status) {
  if (status.state === "failed" || !hasStepOfSitting(status)) return [];
  const loss = numberOf(status.loss);
  const isSkipped = numberOf(status.gradient_norm) < 0;  // no norm: it was not finite
  const findsScale = findsLossScale(status);
  const soon = findsScale ? "" : ` A run fails after ${MOST_SKIPPED_IN_A_ROW} such steps in a row.`;
  const text = isSkipped ? `The model was not changed.${soon}` : "";
  // NaN, with a norm: no token was counted.
  const isLossWrong = isSkipped ? !Number.isFinite(loss) : Math.abs(loss) === Infinity;
  if (isLossWrong) return [{ severity: "bad", title: "The last step's loss is not finite", text }];
  if (!isSkipped || findsScale) return [];
  return [{ severity: "warning", title: "The last step's gradient is not finite", text }];
}

function checkpointWarnings(status) {
  const error = textOf(status.checkpoint_error);
  if (error === "") return [];
  const failures = numberOf(status.checkpoint_failures);
  const count = failures > 1 ? `; ${failures} have failed in this sitting` : "";
  return [{ severity: "bad", title: `The newest checkpoint could not be written${count}`, text: error }];
}

function keyWarnings(status) {
  const warnings = [];
  const why = textOf(status.keys?.not_reloaded);
  if (why !== "") {
    warnings.push({ severity: "bad", title: "New keys are not in use, the old ones go on", text: why });
  }
  const left = numberOf(status.keys?.expires_in_seconds);
  if (left !== 0 && left <= EXPIRES_SOON_SECONDS) {
    const title = left > 0 ? `A certificate ends in ${formatSeconds(left)}` : "A certificate has ended";
    warnings.push({ severity: left > 0 ? "warning" : "bad", title, text: "docs/security.md, Keys, says how another takes its place." });
  }
  return warnings;
}

function silenceWarnings(status) {
  if (isOver(status)) return [];
  const lease = status.lease_seconds;
  return listOf(status.workers)
    .filter((worker) => isSilent(worker, lease))
    .map((worker) => ({
      severity: "warning",
      title: `Worker ${textOfId(worker.worker_id)} was last heard of ${formatSeconds(worker.silent_seconds)} ago`,
      text: `It is lost after ${formatSeconds(lease)}.`,
    }));
}

const textOfId = (id) => String(numberOf(id));

// Of what was; all may be well again.
export function pastWarnings(status) {
  const warnings = [];
  const lost = numberOf(status.workers_lost);
  const skipped = numberOf(status.skipped_steps);
  if (lost > 0) {
    const redone = numberOf(status.vnodes_redone);
    const text = redone > 0 ? `${plural(redone, "virtual node")} redone by others.` : "";
    warnings.push({ severity: "warning", title: `${plural(lost, "worker")} lost in this sitting`, text });
  }
  if (skipped > 0) {
    const severity = findsLossScale(status) ? "note" : "warning";
    const text = "Their gradient was not finite; the model was not changed.";
    warnings.push({ severity, title: `${plural(skipped, "step")} skipped`, text });
  }
  return warnings;
}
