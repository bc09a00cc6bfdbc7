// What the status page shows, as plain data made of the daemon's status (proto::StatusReply as JSON). Pure: every
// decision of the page is here, so that a test can ask for it without a browser.
//
// A view is texts, shares in [0, 1], and severities: "good", "note", "warning", "bad". What is null is not shown.

import { lineChart } from "./chart.js";
import { expertsView } from "./experts.js";
import {
  UNKNOWN,
  formatBytes,
  formatClock,
  formatCount,
  formatEta,
  formatLoss,
  formatPercent,
  formatSeconds,
  formatSi,
  formatSignificant,
  formatTick,
  listOf,
  numberOf,
  plural,
  textOf,
  wordsOf,
} from "./format.js";
import { barOf, ratio, waitShares } from "./shares.js";
import { hasStepOfSitting, isOver } from "./state.js";
import { currentWarnings, failureBanners, findsLossScale, pastWarnings } from "./warnings.js";
import { checkpointText, evaluatingText, workText } from "./work.js";
import { workersView } from "./workers.js";

export const MOST_RATES = 300;
// Cells of the relay in one row: as many as a narrow screen can show apart.
const RELAY_ROW_CELLS = { few: 64, many: 100 };
const RELAY_MANY = 256;

// From which on it is said what a step is at: of shorter ones another moment is seen each time.
const LONG_STEP_SECONDS = 1;

const SEVERITIES = ["good", "note", "warning", "bad"];
const STATE_SEVERITIES = {
  starting: "note",
  waiting_for_workers: "warning",
  training: "good",
  finishing: "good",
  finished: "good",
  failed: "bad",
  serving: "good",
};
// What the page remembers: one {step, rate} per committed step that it has seen, of one incarnation of the daemon.
export function remember(history, status) {
  const incarnation = String(status.incarnation ?? "");
  const known = history !== null && history.incarnation === incarnation ? history.rates : [];
  const step = numberOf(status.step);
  const rate = numberOf(status.tokens_per_second);
  const last = known[known.length - 1];
  const isNew = step > 0 && rate > 0 && (last === undefined || step > last.step);
  return { incarnation, rates: isNew ? [...known, { step, rate }].slice(-MOST_RATES) : known };
}

// `sizes`: of the charts, in pixels: {loss: {width, height}, rate: {width, height}}.
export function viewOf(status, history, sizes) {
  const state = textOf(status.state) || "unknown";
  const isStarting = state === "starting";
  const isTraining = !isStarting && state !== "serving";
  const current = isStarting ? [] : currentWarnings(status);
  return {
    tabTitle: tabTitle(status, state, current),
    head: headView(status, state, current),
    banners: [...failureBanners(status), ...current, ...(isTraining ? pastWarnings(status) : [])],
    start: isStarting ? startView(status.start_work ?? {}) : null,
    figures: isTraining ? figures(status) : null,
    charts: isTraining ? chartsView(status, history, sizes) : null,
    relay: isTraining ? relayView(status) : null,
    waits: isTraining && hasStepOfSitting(status) ? waitShares(status.wait_fraction, 1) : null,
    experts: isTraining ? expertsView(status) : null,
    workers: isStarting ? null : workersView(status),
    memory: isStarting ? null : memoryView(status, isTraining),
    checkpoints: isTraining ? checkpointFacts(status) : null,
    totals: isStarting ? null : totalFacts(status, isTraining),
  };
}

// What is shown above the last view while the daemon does not answer. `status`: the last one; null: there was none.
export function silenceBanner(status, since) {
  const title = `The daemon has not answered since ${formatClock(since)}`;
  const ask = "eps status --out DIR says how it stands.";
  if (status === null) return { severity: "bad", title, text: ask };
  const steps = numberOf(status.steps) > 0 ? `, ${stepText(status)}` : "";
  const seen = `Last seen: ${wordsOf(status.state)}${steps}.`;
  // The daemon of a run that is over ends.
  const mayEnd = status.state === "finished" || status.state === "finishing";
  if (!mayEnd) return { severity: "bad", title, text: `${seen} ${ask}` };
  return { severity: "note", title, text: `${seen} The run has ended, or is ending: eps status --out DIR says how.` };
}

export function silenceTitle(status) {
  const name = status === null ? "" : textOf(status.run);
  return `no answer · ${name || "eps_server"}`;
}

const stepText = (status) => `step ${formatCount(status.step)} of ${formatCount(status.steps)}`;
const worst = (severities) => SEVERITIES[Math.max(0, ...severities.map((severity) => SEVERITIES.indexOf(severity)))];

function tabTitle(status, state, warnings) {
  const name = textOf(status.run) || "eps_server";
  const counts = state === "training" || state === "finishing";
  const where = counts ? `${numberOf(status.step)}/${numberOf(status.steps)}` : wordsOf(state);
  return `${warnings.length > 0 ? "⚠ " : ""}${where} · ${name}`;
}

function headView(status, state, warnings) {
  const severity = worst([STATE_SEVERITIES[state] ?? "note", ...warnings.map((warning) => warning.severity)]);
  const stateText = warnings.length > 0 ? `${wordsOf(state)}, ${plural(warnings.length, "warning")}` : wordsOf(state);
  const head = { name: textOf(status.run) || "eps_server", state: stateText, severity, progress: null, work: null };
  if (state === "starting" || state === "serving" || !(numberOf(status.steps) > 0)) return head;
  const share = ratio(status.step, status.steps);
  const hasEta = !(isOver(status) || state === "finishing");
  head.work = workText(status);
  head.progress = {
    bar: barOf(share, stepText(status)),
    percent: `${Math.floor(100 * share)}%`,
    step: stepText(status),
    eta: hasEta ? `eta ${formatEta(status.eta_seconds)}` : "",
    elapsed: `${formatEta(status.seconds)} in steps of this sitting`,
  };
  return head;
}

function startView(work) {
  const total = numberOf(work.total_bytes);
  const share = ratio(work.done_bytes, total);
  const bytes = `${formatBytes(work.done_bytes)} of ${formatBytes(total)}`;
  const what = textOf(work.what);
  return {
    what: what || "The daemon starts.",
    bar: total > 0 ? barOf(share, bytes) : null,
    bytes: total > 0 ? `${formatPercent(share)}, ${bytes}` : "",
    seconds: what !== "" ? formatSeconds(work.seconds) : "",
  };
}

// "tokens", "counted tokens", "samples" or "pairs".
function countedOf(status) {
  return textOf(status.counted) || "tokens";
}

function figures(status) {
  const hasStep = numberOf(status.step) > 0;
  const ifStep = (text) => (hasStep ? text : UNKNOWN);
  const positive = (value, format) => (numberOf(value) > 0 ? format(value) : UNKNOWN);
  const lossSeverity = !hasStep || Number.isFinite(numberOf(status.loss)) ? "good" : "bad";
  const ago = hasStepOfSitting(status) ? `ended ${formatSeconds(status.step_age_seconds)} ago` : "";
  const list = [
    { label: "loss", value: ifStep(formatLoss(status.loss)), note: "nats", severity: lossSeverity },
    { label: "gradient norm", ...gradientNorm(status), note: "before clipping" },
    { label: "learning rate", value: learningRate(status) },
    { label: `${countedOf(status)}/s`, value: positive(status.tokens_per_second, formatCount), note: "over the last steps" },
    {
      label: "model FLOP/s",
      value: positive(status.model_flops_per_second, (rate) => formatSi(rate, "FLOP/s")),
      note: "without recomputing",
    },
    { label: "last step", value: positive(status.last_step_seconds, formatSeconds), note: ago },
    ...pairFigures(status),
    ...evaluationFigures(status),
  ];
  const scale = numberOf(status.loss_scale, 1);
  const isScaled = scale !== 1 && scale !== 0;
  if (isScaled) list.push({ label: "loss scale", value: formatCount(scale), note: "of the next step" });
  return list;
}

// -1: no step has told it yet, or it was not finite.
function gradientNorm(status) {
  const norm = numberOf(status.gradient_norm, -1);
  if (!(numberOf(status.step) > 0)) return { value: UNKNOWN };
  if (norm >= 0) return { value: formatSignificant(norm, 3) };
  if (!hasStepOfSitting(status)) return { value: UNKNOWN };
  return { value: formatSignificant(NaN, 3), severity: findsLossScale(status) ? "good" : "bad" };
}

function learningRate(status) {
  const rate = numberOf(status.learning_rate, -1);  // -1: no step of this sitting has said it yet
  return rate >= 0 && numberOf(status.step) > 0 ? formatSignificant(rate, 3) : UNKNOWN;
}

// Of preferences; rewards are means over pairs.
function pairFigures(status) {
  const { pairs } = status;
  if (!pairs) return [];
  return [
    { label: "better answers preferred", value: formatPercent(numberOf(pairs.accuracy)), note: "of the last step's pairs" },
    { label: "reward margin", ...margin(pairs) },
  ];
}

function margin(pairs) {
  const chosen = numberOf(pairs.chosen_reward);
  const rejected = numberOf(pairs.rejected_reward);
  const note = `${formatSignificant(chosen, 3)} chosen, ${formatSignificant(rejected, 3)} rejected`;
  return { value: formatSignificant(chosen - rejected, 3), note };
}

function evaluationFigures(status) {
  const evaluation = status.evaluation;
  if (!evaluation) return [];
  const severity = Number.isFinite(numberOf(evaluation.loss, NaN)) ? "good" : "bad";
  const after = `after step ${formatCount(evaluation.step)}`;
  const counted = `of ${formatSi(evaluation.tokens)} ${countedOf(status)}`;
  return [
    { label: "evaluation loss", value: formatLoss(evaluation.loss), note: after, severity },
    { label: "accuracy", value: formatSignificant(evaluation.accuracy, 4), note: counted },
    ...(evaluation.pairs ? [{ label: "its reward margin", ...margin(evaluation.pairs) }] : []),
  ];
}

// Null before there is anything to draw.
function chartsView(status, history, sizes) {
  if (listOf(status.loss_curve).length === 0 && history.rates.length === 0) return null;
  return {
    loss: lossChart(status, sizes.loss),
    lossNote: lossNote(status),
    rate: lineChart({
      points: history.rates.map(({ step, rate }) => ({
        x: step,
        y: rate,
        text: `step ${formatCount(step)}: ${formatCount(rate)} ${countedOf(status)}/s`,
      })),
      ...sizes.rate,
      fromZero: true,
      formatX: formatCount,
      formatY: formatTick,
    }),
  };
}

function lossChart(status, size) {
  const span = Math.max(1, numberOf(status.loss_curve_steps, 1));
  const lastStep = Math.max(0, numberOf(status.step) - 1);
  const points = listOf(status.loss_curve).map((value, i) => {
    const [first, last] = [i * span, Math.min((i + 1) * span - 1, Math.max(lastStep, i * span))];
    const steps = first === last ? `step ${formatCount(first)}` : `steps ${formatCount(first)}–${formatCount(last)}`;
    return { x: (first + last) / 2, y: numberOf(value, NaN), text: `${steps}: loss ${formatLoss(value)}` };
  });
  return lineChart({ points, ...size, formatX: formatCount, formatY: formatTick });
}

function lossNote(status) {
  const span = numberOf(status.loss_curve_steps, 1);
  const unit = { pairs: "pair", samples: "sample" }[countedOf(status)] ?? "token";
  return span > 1 ? `nats per ${unit}, each point the mean of ${formatCount(span)} steps` : `nats per ${unit}, each step`;
}

// Null once the run is over, or where the blobs are not known.
function relayView(status) {
  const blobs = numberOf(status.blobs);
  if (!(blobs > 0) || isOver(status)) return null;
  const cells = listOf(status.blobs_updated).map(Boolean);
  const done = cells.length > 0 ? cells.filter(Boolean).length : blobs - numberOf(status.blobs_pending);
  const count = cells.length || blobs;
  const rowCells = count <= RELAY_MANY ? RELAY_ROW_CELLS.few : RELAY_ROW_CELLS.many;
  return {
    cells,
    columns: Math.ceil(count / Math.ceil(count / rowCells)),
    ...relayBar(status, cells, done, count),
    text: `${formatCount(done)} of ${formatCount(count)} blobs updated`,
    step: relayStep(status, done, count),
    severity: status.step_wait ? "warning" : "good",
  };
}

// Where all updates of a step wait for its norm, what is under way until then are gradients.
function relayBar(status, cells, done, count) {
  if (status.updates_wait_for_norm && "blobs_summed" in status) {
    const summed = Math.max(done, numberOf(status.blobs_summed));
    return { bar: barOf(ratio(summed, count), summedText(summed, count)), barLabel: "gradients that are in" };
  }
  const text = `${formatCount(done)} of ${formatCount(count)} blobs updated`;
  return { bar: cells.length > 0 ? null : barOf(ratio(done, count), text), barLabel: "blobs updated" };
}

function relayStep(status, done, count) {
  if (status.evaluating) return evaluatingText(status.evaluating);
  const seconds = numberOf(status.step_seconds);
  if (!(seconds > 0)) return "no step in progress";
  const step = `this step ${formatSeconds(seconds)}`;
  if (!status.updates_wait_for_norm || done > 0 || seconds < LONG_STEP_SECONDS) return step;
  const summed = "blobs_summed" in status ? `${summedText(numberOf(status.blobs_summed), count)}; ` : "";
  return `${step}: ${summed}updates wait for the step's norm`;
}

const summedText = (summed, count) => `gradients of ${formatCount(summed)} of ${formatCount(count)} blobs are in`;

function memoryView(status, isTraining) {
  const window = numberOf(status.contribution_window_bytes);
  const used = numberOf(status.contribution_window_used_bytes);
  // The layer that backward completes next is always let in, so that nothing waits for ever.
  const beyond = window > 0 && used > window ? ", with a layer beyond it" : "";
  const windowText = `${formatBytes(used)} of ${formatBytes(window)}${beyond}`;
  const facts = [{ label: "model state", value: formatBytes(status.model_state_bytes) }];
  const resident = numberOf(status.resident_bytes);
  if (resident > 0) facts.push({ label: "resident", value: formatBytes(resident) });
  if (!isTraining) return facts;
  return [
    ...facts,
    { label: "held", value: formatBytes(status.hold_bytes) },
    { label: "window", value: windowText, bar: window > 0 ? barOf(ratio(used, window), windowText) : null },
  ];
}

function checkpointFacts(status) {
  const step = numberOf(status.checkpoint_step, -1);
  const wasWritten = numberOf(status.checkpoint_write_seconds) > 0;
  const failures = numberOf(status.checkpoint_failures);
  const none = isOver(status) ? "none" : "none yet";
  const writing = isOver(status) ? null : checkpointText(status);
  const facts = [{ label: "newest", value: step >= 0 ? `step ${formatCount(step)}` : none }];
  if (wasWritten) {
    facts.push({ label: "written", value: `${formatSeconds(status.checkpoint_age_seconds)} ago` });
    const size = `${formatBytes(status.checkpoint_bytes)} in ${formatSeconds(status.checkpoint_write_seconds)}`;
    facts.push({ label: "size", value: size });
  }
  if (writing !== null) facts.push({ label: "being written", value: writing });
  facts.push({ label: "written in this sitting", value: formatCount(status.checkpoints_written) });
  facts.push({ label: "failed", value: formatCount(failures), severity: failures > 0 ? "bad" : "good" });
  return facts;
}

function totalFacts(status, isTraining) {
  const trainable = numberOf(status.trainable_parameters);
  const isPart = trainable > 0 && trainable < numberOf(status.parameters);
  const ofWhich = isPart ? `, of which ${formatSi(trainable)} train` : "";
  const parameters = { label: "parameters", value: formatSi(status.parameters) + ofWhich };
  if (!isTraining) return [parameters];
  return [
    parameters,
    { label: countedOf(status), value: formatSi(status.tokens) },
    { label: "workers attached", value: formatCount(status.workers_attached) },
    { label: "workers lost", value: formatCount(status.workers_lost) },
    { label: "virtual nodes redone", value: formatCount(status.vnodes_redone) },
    { label: "steps skipped", value: formatCount(status.skipped_steps) },
    { label: "waited too long", value: formatCount(status.step_waits) },
  ];
}
