// What a run does while no step is under way: it evaluates, writes the last checkpoint, waits for workers. Pure.

import { formatCount, formatPercent, formatSeconds, formatWait, listOf, numberOf } from "./format.js";
import { clamped } from "./shares.js";
import { isGone, isReady } from "./state.js";

// Null: nothing but steps, if that.
export function workText(status) {
  if (status.state === "waiting_for_workers") return waitingText(status);  // also in the middle of an evaluation
  if (status.evaluating) return evaluatingText(status.evaluating);
  const checkpoint = checkpointText(status);
  return status.state === "finishing" && checkpoint !== null ? `writing the checkpoint of ${checkpoint}` : null;
}

export function evaluatingText(evaluating) {
  const share = formatPercent(clamped(numberOf(evaluating.share)));
  return `evaluating after step ${formatCount(evaluating.step)}: ${share} of it, ${formatSeconds(evaluating.seconds)}`;
}

// Of the one that is being written; null: none is.
export function checkpointText(status) {
  const seconds = numberOf(status.checkpoint_writing_seconds);
  if (!(seconds > 0)) return null;
  const step = numberOf(status.checkpoint_writing_step, -1);
  return step >= 0 ? `step ${formatCount(step)}, ${formatSeconds(seconds)}` : formatSeconds(seconds);
}

// "1 of 3 expected workers"; null: none in particular are waited for.
export function expectedText(status) {
  const expected = numberOf(status.workers_expected);
  if (!(expected > 0)) return null;
  const ready = listOf(status.workers).filter(isReady).length;
  return `${formatCount(ready)} of ${formatCount(expected)} expected worker${expected === 1 ? "" : "s"}`;
}

function waitingText(status) {
  const startIn = numberOf(status.start_in_seconds, -1);
  const attached = listOf(status.workers).filter((worker) => !isGone(worker));
  const waits = expectedText(status) ?? (attached.length > 0 ? "no worker is ready yet" : "no worker is attached");
  const add = "gpu_worker --connect HOST:PORT adds one (grpc in the run's endpoints.json)";
  if (attached.length === 0) return `${waits}; ${add}`;
  return startIn >= 0 ? `${waits}; begins with those ready in ${formatWait(startIn)}` : waits;
}
