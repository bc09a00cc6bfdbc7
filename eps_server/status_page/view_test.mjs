import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import { lineChart, nearestPoint, ticks } from "./chart.js";
import {
  formatBytes,
  formatCount,
  formatEta,
  formatSeconds,
  formatSi,
  formatSignificant,
  formatTick,
  formatVnodes,
  formatWait,
  numberOf,
  textOf,
} from "./format.js";
import { waitShares } from "./shares.js";
import { MOST_RATES, remember, silenceBanner, silenceTitle, viewOf } from "./view.js";

const SIZES = { loss: { width: 600, height: 240 }, rate: { width: 300, height: 240 } };
const UNKNOWN = "–";

function worker(id, changes = {}) {
  return {
    worker_id: String(id),
    device_name: "cpu",
    device_model: "x86 AVX-512",
    process_id: "4242",
    state: "running",
    vnodes: [2 * id - 2, 2 * id - 1],
    device_cap_bytes: "16777216",
    device_arena_bytes: "14680064",
    device_peak_bytes: "8388608",
    pass_seconds: 0.5,
    wait_seconds: { pull: 0.05, push: 0, room: 0, stash: 0, version: 0.1 },
    transport: "shared_memory",
    silent_seconds: 0.25,
    metrics_address: `127.0.0.1:${9100 + id}`,
    host_name: "box",
    group_members: 0,
    group_founder: "0",
    ...changes,
  };
}

function training(changes = {}) {
  return {
    state: "training",
    failure: "",
    run: "shakespeare",
    step: "41",
    steps: "200",
    loss: 2.6131,
    learning_rate: 0.0006,
    gradient_norm: 1.23456,
    tokens_per_second: 1640.4,
    model_flops_per_second: 1.234e12,
    eta_seconds: 125,
    seconds: 3909,
    tokens: "167936",
    model_state_bytes: "478150656",
    contribution_window_bytes: "67108864",
    contribution_window_used_bytes: "16777216",
    resident_bytes: "768606208",
    hold_bytes: "0",
    newest_checkpoint: "/runs/shakespeare/checkpoints/step-40",
    workers: [worker(1), worker(2)],
    parameters: "29913600",
    wait_fraction: { pull: 0.012, stash: 0.001, version: 0.031 },
    incarnation: "18446744073709551615",
    checkpoints_written: "2",
    checkpoint_failures: "0",
    checkpoint_error: "",
    skipped_steps: "0",
    last_step_seconds: 2.011,
    step_age_seconds: 0.3,
    checkpoint_step: "40",
    checkpoint_age_seconds: 35.2,
    checkpoint_write_seconds: 0.812,
    checkpoint_bytes: "377487360",
    workers_attached: "2",
    workers_lost: "0",
    vnodes_redone: "0",
    step_waits: "0",
    lease_seconds: 10,
    loss_curve: [5.5, 5, 4.5, 4],
    loss_curve_steps: "1",
    loss_scale: 1,
    step_seconds: 0.3,
    blobs: "4",
    blobs_pending: "2",
    blobs_updated: [false, false, true, true],
    ...changes,
  };
}

const starting = (work) => ({ state: "starting", incarnation: "7", step: "0", steps: "0", start_work: work });
const view = (status, history = remember(null, status)) => viewOf(status, history, SIZES);
const figure = (status, label) => view(status).figures.find((each) => each.label === label);
const fact = (facts, label) => facts.find((each) => each.label === label)?.value;
const titles = (status) => view(status).banners.map(({ title }) => title);

test("while the daemon starts what it does and nothing else is shown", () => {
  const work = { what: "tokenizing b\u001bks.txt", done_bytes: "3145728", total_bytes: "5368709120", seconds: 3.25 };
  const shown = view(starting(work));
  assert.deepEqual(shown.start, {
    what: "tokenizing b?ks.txt",
    bar: { share: 3145728 / 5368709120, text: "3.0 MiB of 5.0 GiB" },
    bytes: "0%, 3.0 MiB of 5.0 GiB",
    seconds: "3.250 s",
  });
  for (const part of ["figures", "charts", "relay", "waits", "experts", "workers", "memory", "checkpoints", "totals"]) {
    assert.equal(shown[part], null, part);
  }
  assert.equal(shown.head.progress, null);
  assert.equal(shown.tabTitle, "starting · eps_server");
});

test("a start of which nothing is known has no bar and no seconds", () => {
  for (const work of [undefined, { what: "", done_bytes: "0", total_bytes: "0", seconds: 0 }]) {
    const { start } = view(starting(work));
    assert.deepEqual(start, { what: "The daemon starts.", bar: null, bytes: "", seconds: "" });
  }
});

test("before the first step nothing is made up", () => {
  const status = training({ state: "waiting_for_workers", step: "0", loss: 0, gradient_norm: -1, learning_rate: -1 });
  Object.assign(status, { tokens_per_second: 0, model_flops_per_second: 0, last_step_seconds: 0, eta_seconds: -1 });
  Object.assign(status, { loss_curve: [], wait_fraction: {}, workers: [], step_seconds: 0, checkpoint_step: "-1" });
  const shown = view(status);
  assert.deepEqual(shown.figures.map(({ value }) => value), Array(6).fill(UNKNOWN));
  assert.equal(shown.charts, null);
  assert.equal(shown.waits, null);
  assert.equal(shown.workers.count, "none attached");
  assert.equal(shown.head.state, "waiting for workers");
  assert.equal(shown.head.severity, "warning");
  assert.equal(shown.head.progress.eta, "eta -:--");
  assert.equal(shown.relay.step, "no step in progress");
  assert.equal(shown.tabTitle, "waiting for workers · shakespeare");
});

test("the head says which run, how it is, how far and how long still", () => {
  const { head, tabTitle, banners } = view(training());
  assert.deepEqual(head, {
    name: "shakespeare",
    state: "training",
    severity: "good",
    work: null,
    progress: {
      bar: { share: 0.205, text: "step 41 of 200" },
      percent: "20%",
      step: "step 41 of 200",
      eta: "eta 2:05",
      elapsed: "1:05:09 in steps of this sitting",
    },
  });
  assert.equal(tabTitle, "41/200 · shakespeare");
  assert.deepEqual(banners, []);
});

test("key figures are those of the terminal", () => {
  assert.equal(figure(training(), "loss").value, "2.6131");
  assert.equal(figure(training(), "gradient norm").value, "1.23");
  assert.equal(figure(training(), "learning rate").value, "0.0006");
  assert.equal(figure(training(), "tokens/s").value, "1,640");
  assert.equal(figure(training(), "model FLOP/s").value, "1.23 TFLOP/s");
  assert.equal(figure(training(), "last step").value, "2.011 s");
  assert.equal(figure(training(), "last step").note, "ended 0.300 s ago");
});

test("after a resume, before its first step, nothing is known of one", () => {
  const status = training({ last_step_seconds: 0, learning_rate: -1, gradient_norm: -1 });
  assert.equal(figure(status, "learning rate").value, UNKNOWN);
  assert.equal(figure(status, "gradient norm").value, UNKNOWN);
  assert.deepEqual(view(status).banners, []);
  assert.equal(figure(training({ learning_rate: 0 }), "learning rate").value, "0");
});

test("a long wait of days is said in days", () => {
  assert.equal(view(training({ eta_seconds: 1234567 })).head.progress.eta, "eta 14 d 6 h");
});

test("an evaluation that goes on says after which step, how far and since when", () => {
  const evaluating = { step: "40", share: 0.31, seconds: 3.2 };
  const { head, relay } = view(training({ evaluating, step_seconds: 0, blobs_updated: Array(4).fill(false) }));
  assert.equal(head.work, "evaluating after step 40: 31% of it, 3.200 s");
  assert.equal(relay.step, head.work);
  const last = training({ step: "200", evaluating, eta_seconds: 7, step_seconds: 0 });  // behind the last step, too
  assert.equal(view(last).head.work, head.work);
  assert.equal(view(last).head.progress.eta, "eta 0:07");
  assert.equal(view(training({ state: "finishing", eta_seconds: 0 })).head.progress.eta, "");
});

test("a checkpoint that is being written says of which step and since when", () => {
  const writing = { checkpoint_writing_seconds: 9.4, checkpoint_writing_step: "12", checkpoint_step: "-1" };
  const shown = view(training(writing));
  assert.equal(fact(shown.checkpoints, "being written"), "step 12, 9.400 s");
  assert.equal(fact(shown.checkpoints, "written in this sitting"), "2");
  assert.equal(shown.head.work, null);
  const last = view(training({ ...writing, state: "finishing" }));
  assert.equal(last.head.work, "writing the checkpoint of step 12, 9.400 s");
  const none = training({ checkpoint_writing_seconds: 0, checkpoint_writing_step: "-1" });
  assert.equal(fact(view(none).checkpoints, "being written"), undefined);
});

test("the first step says for how many workers it waits, and how long it will", () => {
  const waiting = (changes) => view(training({ state: "waiting_for_workers", workers_expected: 3, ...changes }));
  const workers = [worker(1, { state: "idle" }), worker(2, { state: "attaching" }), worker(3, { state: "lost" })];
  const some = waiting({ workers, start_in_seconds: 40.3 });
  assert.equal(some.head.work, "1 of 3 expected workers; begins with those ready in 41 s");
  assert.equal(some.workers.count, "1 of 3 expected workers, 1 lost");
  const none = waiting({ workers: [], start_in_seconds: -1 });
  assert.match(none.head.work, /^0 of 3 expected workers; gpu_worker --connect HOST:PORT adds one/);
  const attaching = waiting({ workers: [worker(2, { state: "attaching" })], workers_expected: 0 });
  assert.equal(attaching.head.work, "no worker is ready yet");
  assert.match(waiting({ workers: [], workers_expected: 0 }).head.work, /^no worker is attached; gpu_worker --connect/);
  assert.equal(view(training()).head.work, null);
});

test("the loss scale is shown where it is used", () => {
  assert.equal(figure(training(), "loss scale"), undefined);
  assert.equal(figure(training({ loss_scale: 0 }), "loss scale"), undefined);
  assert.equal(figure(training({ loss_scale: 65536 }), "loss scale").value, "65,536");
});

test("speed says what is counted, where that is not every token", () => {
  const evaluation = { step: "40", loss: 1, accuracy: 0.25, tokens: "64", seconds: 1.2 };
  const status = training({ counted: "samples", evaluation });
  assert.equal(figure(status, "samples/s").value, "1,640");
  assert.equal(figure(status, "accuracy").note, "of 64 samples");
  assert.equal(fact(view(status).totals, "samples"), "168 k");
});

test("of preferences the last step's pairs and the newest evaluation say how far apart their answers are", () => {
  assert.equal(figure(training(), "reward margin"), undefined);
  const pairs = { accuracy: 0.875, chosen_reward: 0.25, rejected_reward: -0.5 };
  const evaluation = { step: "40", loss: 0.4, accuracy: 0.75, tokens: "64", seconds: 1, pairs: { chosen_reward: -1, rejected_reward: -1.5 } };
  const status = training({ counted: "pairs", pairs, evaluation });
  assert.equal(figure(status, "better answers preferred").value, "88%");
  assert.deepEqual(figure(status, "reward margin"), {
    label: "reward margin", value: "0.75", note: "0.25 chosen, -0.5 rejected",
  });
  assert.equal(figure(status, "its reward margin").value, "0.5");
});

test("losses that are not finite are said to be so", () => {
  const evaluation = { step: "40", loss: "NaN", accuracy: 0.25, tokens: "65536", seconds: 1.2 };
  const status = training({ loss: "NaN", evaluation });
  assert.deepEqual(figure(status, "loss"), { label: "loss", value: "not finite", note: "nats", severity: "bad" });
  assert.equal(figure(status, "evaluation loss").value, "not finite");
  assert.equal(figure(status, "evaluation loss").severity, "bad");
  assert.equal(figure(status, "accuracy").value, "0.25");
});

test("a step that waits too long is named with cause, time and workers", () => {
  const status = training({ step_wait: { cause: "compute", seconds: 12.5, worker_id: ["2"] } });
  const { banners, head, tabTitle, workers, relay } = view(status);
  assert.deepEqual(banners, [
    {
      severity: "warning",
      title: "This step waits for compute, 12.5 s, of worker 2",
      text: "Passes of these workers are missing.",
    },
  ]);
  assert.equal(head.severity, "warning");
  assert.equal(head.state, "training, 1 warning");
  assert.equal(tabTitle, "⚠ 41/200 · shakespeare");
  assert.deepEqual(workers.rows[1].marks, ["waited for"]);
  assert.equal(relay.severity, "warning");
});

test("of many workers that are waited for the first eight are named", () => {
  const ids = Array.from({ length: 11 }, (_, i) => String(i + 1));
  const status = training({ step_wait: { cause: "no_worker", seconds: 130, worker_id: ids } });
  assert.deepEqual(titles(status), [
    "This step waits for a worker, 2 min 10 s, of workers 1, 2, 3, 4, 5, 6, 7, 8 and 3 more",
  ]);
  assert.deepEqual(titles(training({ step_wait: { cause: "data", seconds: 11 } })), [
    "This step waits for data, 11.0 s",
  ]);
});

test("a long step says how many blobs are updated", () => {
  const { relay } = view(training({ step_seconds: 65 }));
  assert.equal(relay.step, "this step 65.0 s");
  assert.equal(relay.text, "2 of 4 blobs updated");
  assert.deepEqual(relay.cells, [false, false, true, true]);
  assert.equal(relay.bar, null);
});

test("where updates wait for the step's norm the gradients that are in are shown", () => {
  const waiting = { updates_wait_for_norm: true, step_seconds: 10.1, blobs_updated: Array(4).fill(false) };
  const { relay } = view(training({ ...waiting, blobs_summed: "3" }));
  assert.equal(relay.step, "this step 10.1 s: gradients of 3 of 4 blobs are in; updates wait for the step's norm");
  assert.deepEqual(relay.bar, { share: 0.75, text: "gradients of 3 of 4 blobs are in" });
  // Once the updates have begun, all gradients are in, and those of the next step may come.
  const updating = view(training({ ...waiting, blobs_summed: "1", blobs_updated: [false, true, true, true] })).relay;
  assert.equal(updating.step, "this step 10.1 s");
  assert.equal(updating.bar.share, 0.75);
  assert.equal(view(training({ ...waiting, blobs_summed: "3", step_seconds: 0.2 })).relay.step, "this step 0.200 s");
  const unknown = view(training(waiting)).relay;
  assert.equal(unknown.step, "this step 10.1 s: updates wait for the step's norm");
  assert.equal(unknown.bar, null);
});

test("where it is not known which blobs are updated a bar shows how many", () => {
  const { relay } = view(training({ blobs_updated: undefined, blobs_pending: "1" }));
  assert.deepEqual(relay.cells, []);
  assert.deepEqual(relay.bar, { share: 0.75, text: "3 of 4 blobs updated" });
  assert.equal(view(training({ blobs: undefined })).relay, null);
});

test("cells of many blobs are in rows of the same length", () => {
  const columns = (blobs) => view(training({ blobs, blobs_updated: Array(blobs).fill(true) })).relay.columns;
  assert.deepEqual([1, 27, 64, 65, 256, 400, 1000].map(columns), [1, 27, 64, 33, 64, 100, 100]);
});

test("a failed run says why and has no eta", () => {
  const { head, banners, tabTitle } = view(training({ state: "failed", failure: "step 41: <b>disk</b> full" }));
  assert.equal(head.severity, "bad");
  assert.equal(head.progress.eta, "");
  assert.deepEqual(banners, [{ severity: "bad", title: "Failed", text: "step 41: <b>disk</b> full" }]);
  assert.equal(tabTitle, "failed · shakespeare");
  assert.equal(view(training({ state: "failed" })).banners[0].text, "no reason was given");
});

test("of a run that is over nobody is waited for", () => {
  for (const state of ["finished", "failed"]) {
    const shown = view(training({ state, workers: [worker(1, { silent_seconds: 9 })], checkpoint_step: "-1" }));
    assert.equal(fact(shown.checkpoints, "newest"), "none", state);
    assert.equal(shown.workers.rows[0].heard, UNKNOWN, state);
    assert.equal(shown.workers.rows[0].heardSeverity, "good", state);
    assert.equal(shown.banners.some(({ title }) => title.startsWith("Worker")), false, state);
    assert.equal(shown.relay, null, state);
  }
});

test("experts are drawn by their load, those without a token and blocks that were left out apart", () => {
  assert.equal(view(training()).experts, null);
  const load = {
    blocks: "2",
    experts: "4",
    busiest: 2.5,
    busiest_block: "1",
    busiest_expert: "2",
    mean_busiest: 1.75,
    idle: "1",
    running: "4",
    map: Buffer.from([255, 255, 255, 255, 0, 16, 80, 32]).toString("base64"),
  };
  const { experts } = view(training({ expert_load: load }));
  assert.equal(experts.busiest, "the busiest: 2.50× of an even share (block 1, expert 2)");
  assert.equal(experts.mean, "the busiest of a block, in the mean: 1.75×");
  assert.equal(experts.idle, "1 of 4 without a token");
  assert.equal(experts.map.columns, 4);
  assert.deepEqual(experts.map.cells.slice(0, 4), [null, null, null, null]);
  const [idle, few, many, even] = experts.map.cells.slice(4);
  assert.deepEqual(idle, { isIdle: true, shade: 0, text: "block 1, expert 0: no token" });
  assert.equal(many.text, "block 1, expert 2: 2.50×");
  assert.ok(!few.isIdle && few.shade < even.shade && even.shade < many.shade && many.shade < 1);
  assert.equal(view(training({ expert_load: { ...load, map: "" } })).experts.map, null);
  assert.equal(view(training({ expert_load: { ...load, map: undefined } })).experts.map, null);
  assert.equal(view({ state: "serving", expert_load: load }).experts, null);
});

test("a finished run has neither eta nor relay", () => {
  const { head, relay, tabTitle } = view(training({ state: "finished", step: "200" }));
  assert.equal(head.severity, "good");
  assert.equal(head.progress.percent, "100%");
  assert.equal(head.progress.eta, "");
  assert.equal(relay, null);
  assert.equal(tabTitle, "finished · shakespeare");
});

test("a daemon that serves shows nothing of training", () => {
  const status = training({ state: "serving", step: "0", steps: "0", lease_seconds: 0, loss_curve: [] });
  Object.assign(status, { workers_lost: "1", skipped_steps: "2" });
  const shown = view(status);
  for (const part of ["figures", "charts", "relay", "waits", "checkpoints", "start"]) {
    assert.equal(shown[part], null, part);
  }
  assert.deepEqual(shown.banners, []);
  assert.deepEqual(shown.totals, [{ label: "parameters", value: "29.9 M" }]);
  assert.equal(fact(shown.memory, "model state"), "456.0 MiB");
  assert.equal(shown.workers.rows.length, 2);
  assert.equal(shown.tabTitle, "serving · shakespeare");
});

test("a status that says nothing but its state is shown without an error", () => {
  for (const state of ["training", "finishing", "finished", "failed", "serving", "starting", "", "new_state"]) {
    const shown = view({ state });
    assert.ok(shown.tabTitle.endsWith(" · eps_server"), state);
  }
  assert.equal(view({}).head.state, "unknown");
  assert.equal(view({}).head.severity, "note");
});

test("huge numbers do not break the view", () => {
  const huge = "9223372036854775807";
  const shown = view(training({ step: huge, steps: huge, tokens: huge, model_state_bytes: huge, eta_seconds: 1e300 }));
  assert.equal(shown.head.progress.percent, "100%");
  assert.equal(shown.head.progress.eta, "eta -:--");
  assert.equal(fact(shown.totals, "tokens"), "9.22 E");
  assert.equal(fact(shown.memory, "model state"), "8388608.0 TiB");
  assert.equal(figure(training({ loss: 1e300 }), "loss").value, "1.000e+300");
  assert.equal(figure(training({ tokens_per_second: "Infinity" }), "tokens/s").value, UNKNOWN);
});

test("a checkpoint that could not be written is bad until one is", () => {
  const failing = training({ checkpoint_failures: "2", checkpoint_error: "No space left on device" });
  assert.deepEqual(view(failing).banners, [
    {
      severity: "bad",
      title: "The newest checkpoint could not be written; 2 have failed in this sitting",
      text: "No space left on device",
    },
  ]);
  assert.equal(view(failing).head.severity, "bad");
  const mended = view(training({ checkpoint_failures: "2" }));
  assert.deepEqual(mended.banners, []);
  assert.equal(fact(mended.checkpoints, "failed"), "2");
});

test("new keys that are not in use are bad, and a certificate that ends within two weeks is told", () => {
  const day = 86400;
  assert.deepEqual(view(training({ keys: { expires_in_seconds: 15 * day, not_reloaded: "" } })).banners, []);
  assert.deepEqual(view(training({ keys: { expires_in_seconds: 0, not_reloaded: "tokens: line 2 is no token" } })).banners, [
    { severity: "bad", title: "New keys are not in use, the old ones go on", text: "tokens: line 2 is no token" },
  ]);
  const [soon] = view(training({ keys: { expires_in_seconds: 3 * day, not_reloaded: "" } })).banners;
  assert.equal(soon.severity, "warning");
  assert.match(soon.title, /^A certificate ends in 3 d/);
  const [ended] = view(training({ keys: { expires_in_seconds: -5, not_reloaded: "" } })).banners;
  assert.deepEqual([ended.severity, ended.title], ["bad", "A certificate has ended"]);
});

test("the newest checkpoint says how old and how large it is if it is of this sitting", () => {
  const { checkpoints } = view(training());
  assert.equal(fact(checkpoints, "newest"), "step 40");
  assert.equal(fact(checkpoints, "written"), "35.2 s ago");
  assert.equal(fact(checkpoints, "size"), "360.0 MiB in 0.812 s");
  const before = view(training({ checkpoint_write_seconds: 0 })).checkpoints;
  assert.equal(fact(before, "newest"), "step 40");
  assert.equal(fact(before, "written"), undefined);
  assert.equal(fact(view(training({ checkpoint_step: "-1" })).checkpoints, "newest"), "none yet");
});

test("lost workers and skipped steps are said but leave the badge as it is", () => {
  const status = training({ workers_lost: "1", vnodes_redone: "4", skipped_steps: "3" });
  const { banners, head } = view(status);
  assert.deepEqual(banners.map(({ severity, title }) => [severity, title]), [
    ["warning", "1 worker lost in this sitting"],
    ["warning", "3 steps skipped"],
  ]);
  assert.equal(banners[0].text, "4 virtual nodes redone by others.");
  assert.equal(head.severity, "good");
});

test("with FP16 steps that are skipped are how its loss scale is found", () => {
  const skipped = { skipped_steps: "3", gradient_norm: -1, loss_scale: 32768 };
  assert.deepEqual(view(training(skipped)).banners.map(({ severity }) => severity), ["note"]);
  assert.equal(view(training(skipped)).head.severity, "good");
  assert.equal(figure(training(skipped), "gradient norm").severity, "good");
  // As small as this it finds none.
  assert.equal(view(training({ ...skipped, loss_scale: 1 })).head.severity, "warning");
});

test("a last step that is not finite is said at the top, and the badge is not green", () => {
  const broken = view(training({ loss: "NaN", gradient_norm: -1, skipped_steps: "17" }));
  assert.equal(broken.head.severity, "bad");
  assert.equal(broken.banners[0].title, "The last step's loss is not finite");
  assert.equal(broken.banners[0].text, "The model was not changed. A run fails after 20 such steps in a row.");
  assert.equal(broken.tabTitle, "⚠ 41/200 · shakespeare");
  assert.equal(figure(training({ gradient_norm: -1 }), "gradient norm").value, "not finite");
  assert.deepEqual(titles(training({ gradient_norm: -1 })), ["The last step's gradient is not finite"]);
  assert.deepEqual(titles(training({ loss: "Infinity" })), ["The last step's loss is not finite"]);
  assert.deepEqual(titles(training({ loss: "NaN", gradient_norm: 0 })), []);  // no token was counted
  assert.deepEqual(titles(training({ loss: "NaN", gradient_norm: -1, state: "failed" })), ["Failed"]);
});

test("a worker that is silent for more than half of its lease is warned of", () => {
  const workers = [worker(1, { silent_seconds: 5 }), worker(2, { silent_seconds: 7.2 })];
  workers.push(worker(3, { state: "lost", silent_seconds: 60 }));
  const shown = view(training({ workers }));
  assert.deepEqual(shown.banners.map(({ title }) => title), ["Worker 2 was last heard of 7.200 s ago"]);
  assert.deepEqual(shown.workers.rows.map(({ heardSeverity }) => heardSeverity), ["good", "warning", "good"]);
  assert.deepEqual(titles(training({ workers, lease_seconds: 0 })), []);
});

test("workers that left are not lost", () => {
  const left = worker(1, { state: "left", silent_seconds: 9 });
  const { workers, banners } = view(training({ workers: [left, worker(2), worker(3, { state: "lost" })] }));
  assert.equal(workers.count, "1 worker, 1 lost, 1 left");
  assert.deepEqual(workers.rows.map(({ id, state, isGone }) => [id, state, isGone]), [
    ["2", "running", false],
    ["1", "left", true],
    ["3", "lost", true],
  ]);
  assert.equal(workers.rows[1].heard, UNKNOWN);
  assert.equal(workers.rows[1].metricsUrl, null);
  assert.deepEqual(banners, []);
  assert.equal(view(training({ state: "finished", workers: [left, left] })).workers.count, "2 left");
  assert.equal(view(training({ workers: [left] })).workers.count, "none attached, 1 left");
});

test("lost workers come last", () => {
  const { workers } = view(training({ workers: [worker(1, { state: "lost" }), worker(2)] }));
  assert.deepEqual(workers.rows.map(({ id, isGone }) => [id, isGone]), [["2", false], ["1", true]]);
  assert.equal(workers.count, "1 worker, 1 lost");
  assert.equal(workers.rows[1].heard, UNKNOWN);
  assert.equal(workers.rows[1].metricsUrl, null);
});

test("a worker whose pass takes more than 1.5 times the median is slow", () => {
  const marks = (passes, changes = {}) =>
    view(training({ workers: passes.map((seconds, i) => worker(i + 1, { pass_seconds: seconds, ...changes })) }))
      .workers.rows.map((row) => row.marks.join());
  assert.deepEqual(marks([1, 1.6]), ["", "slow"]);
  assert.deepEqual(marks([1, 1.5, 1.2]), ["", "", ""]);
  assert.deepEqual(marks([1, 2, 1, 1]), ["", "slow", "", ""]);
  assert.deepEqual(marks([9]), [""]);
  assert.deepEqual(marks([1, 9], { state: "attaching" }), ["", ""]);
});

test("of more workers than have room those that are marked are shown first", () => {
  const workers = Array.from({ length: 150 }, (_, i) => worker(i + 1));
  workers[149].pass_seconds = 2;
  const shown = view(training({ workers })).workers;
  assert.equal(shown.rows.length, 100);
  assert.equal(shown.rows[0].id, "150");
  assert.equal(shown.more, "and 50 more");
});

test("a worker's row says what it is, has and waits for", () => {
  const [row] = view(training({ workers: [worker(1, { vnodes: [0, 1, 2, 3, 7] })] })).workers.rows;
  assert.equal(row.device, "cpu");
  assert.equal(row.deviceModel, "x86 AVX-512");
  assert.equal(row.transport, "shared memory");
  assert.equal(row.vnodes, "0-3, 7");
  assert.equal(row.pass, "0.500 s");
  assert.equal(row.heard, "0.250 s ago");
  assert.equal(row.waits.text, "pull 10% version 20%");
  assert.deepEqual(row.memory, { share: 0.5, text: "8.0 MiB of 16.0 MiB" });
  assert.equal(row.metricsUrl, "http://127.0.0.1:9101/metrics");
});

test("a worker that has said little is shown without an error", () => {
  const [row] = view(training({ workers: [{ worker_id: "1", state: "attaching" }] })).workers.rows;
  assert.deepEqual([row.device, row.transport, row.vnodes, row.pass], Array(4).fill(UNKNOWN));
  assert.equal(row.waits, null);
  assert.equal(row.memory, null);
});

test("hosts are shown where there is more than one", () => {
  const shows = (...hosts) =>
    view(training({ workers: hosts.map((host_name, i) => worker(i + 1, { host_name })) })).workers.showsHosts;
  assert.equal(shows("a", "a"), false);
  assert.equal(shows("a", "b"), true);
});

test("groups are told apart by their founder", () => {
  const groups = [{ group_members: 2, group_founder: "1" }, {}];
  const { rows } = view(training({ workers: groups.map((group, i) => worker(i + 1, group)) })).workers;
  assert.deepEqual(rows.map(({ group }) => group), ["group 1, 2 members", ""]);
});

test("what a worker calls itself stays text and cannot hide or turn what follows", () => {
  const host_name = '<img src=x onerror="alert(1)">\u202e\n\u0007';
  const [row] = view(training({ workers: [worker(1, { host_name })] })).workers.rows;
  assert.equal(row.host, '<img src=x onerror="alert(1)">? ?');
  assert.equal(textOf("a".repeat(10000)).length, 501);
  assert.equal(textOf({ toString: () => "x" }), "");
  assert.equal(textOf("größe 中"), "größe 中");
});

test("only an address becomes a link", () => {
  const link = (metrics_address) => {
    const { workers } = view(training({ workers: [worker(1, { metrics_address })] }));
    return workers.rows[0].metricsUrl;
  };
  assert.equal(link("[::1]:9100"), "http://[::1]:9100/metrics");
  assert.equal(link("node-a.example:80"), "http://node-a.example:80/metrics");
  for (const address of ["", "a:1/x?", "user@host:1", "a:1#", "javascript:alert(1)", "a:1\n", undefined, 7]) {
    assert.equal(link(address), null, String(address));
  }
});

test("shares of waiting and computing fill the bar", () => {
  const { segments, text } = waitShares({ version: 0.3, pull: 0.1, stash: 0.001, room: "NaN" }, 1);
  assert.deepEqual(segments.map(({ kind, label }) => [kind, label]), [
    ["pull", "pull 10%"],
    ["version", "version 30%"],
    ["computing", "computing 60%"],
  ]);
  assert.equal(text, "pull 10% version 30%");
});

test("waits that are more than the whole are scaled, and none is nothing", () => {
  const { segments } = waitShares({ pull: 1, push: 1 }, 1);
  assert.deepEqual(segments.map(({ kind, share }) => [kind, share]), [["pull", 0.5], ["push", 0.5]]);
  assert.equal(waitShares({}, 1).text, "nothing");
  assert.equal(waitShares(undefined, 1).text, "nothing");
  assert.equal(waitShares({ pull: 1 }, 0), null);
});

test("a cause that this page does not know is shown as another", () => {
  const { segments } = waitShares({ moonlight: 0.5 }, 1);
  assert.deepEqual(segments[0], { kind: "other", share: 0.5, label: "moonlight 50%", word: "moonlight" });
});

test("memory and totals are shown with their units", () => {
  const { memory, totals } = view(training());
  assert.equal(fact(memory, "window"), "16.0 MiB of 64.0 MiB");
  assert.equal(fact(memory, "held"), "0 B");
  assert.equal(fact(totals, "parameters"), "29.9 M");
  assert.equal(fact(totals, "workers attached"), "2");
  const totalsOf = (trainable) => view(training({ trainable_parameters: trainable })).totals;
  assert.equal(fact(totalsOf("29913600"), "parameters"), "29.9 M");
  assert.equal(fact(totalsOf("41943"), "parameters"), "29.9 M, of which 41.9 k train");
});

test("a window that is exceeded says why", () => {
  const full = training({ contribution_window_bytes: "799744", contribution_window_used_bytes: "978944" });
  assert.equal(fact(view(full).memory, "window"), "956.0 KiB of 781.0 KiB, with a layer beyond it");
});

test("a point of the loss curve says which steps it is the mean of", () => {
  const texts = (changes) => view(training(changes)).charts.loss.points.map(({ text }) => text);
  assert.equal(texts({})[0], "step 0: loss 5.5000");
  const means = texts({ step: "15", loss_curve_steps: "4" });
  assert.equal(means[1], "steps 4–7: loss 5.0000");
  assert.equal(means[3], "steps 12–14: loss 4.0000");
  const { lossNote } = view(training({ loss_curve_steps: "4" })).charts;
  assert.equal(lossNote, "nats per token, each point the mean of 4 steps");
});

test("losses that are not finite are gaps of the curve", () => {
  const { loss } = view(training({ loss_curve: [5, 4, "NaN", 3, "Infinity", 2, 1] })).charts;
  assert.equal(loss.points.length, 5);
  assert.equal(loss.path.match(/M/g).length, 3);
  assert.equal(loss.path.match(/h0\.1/g).length, 1);
  assert.ok(!/NaN|Infinity/.test(loss.path));
  assert.equal(view(training({ loss_curve: ["NaN", "NaN"] })).charts.loss, null);
});

test("a chart's line stays within its frame", () => {
  const points = [0, 1, 2].map((x) => ({ x, y: x * x, text: String(x) }));
  const chart = lineChart({ points, width: 300, height: 200, fromZero: true, formatX: String, formatY: String });
  const { left, right, top, bottom } = chart.frame;
  assert.equal(chart.points[0].x, left);
  assert.equal(chart.points[0].y, bottom);
  assert.equal(chart.points[2].x, right);
  assert.ok(chart.points[2].y > top);
  assert.equal(nearestPoint(chart, (left + right) / 2 + 5), 1);
  assert.equal(lineChart({ points, width: 0, height: 0, formatX: String, formatY: String }), null);
});

test("the label of the last tick is not cut off", () => {
  const points = [1234566, 1234567].map((x) => ({ x, y: 1, text: "" }));
  const { xTicks } = lineChart({ points, width: 300, height: 200, formatX: formatCount, formatY: String });
  const last = xTicks[xTicks.length - 1];
  assert.equal(last.label, "1,234,567");
  assert.equal(last.at, 280);
  assert.equal(last.labelAt, 300 - (9 * 7) / 2);
  assert.equal(xTicks[0].labelAt, xTicks[0].at);
});

test("one point and equal points have a chart", () => {
  for (const ys of [[2], [2, 2, 2], [0]]) {
    const points = ys.map((y, x) => ({ x, y, text: "" }));
    const chart = lineChart({ points, width: 300, height: 200, formatX: String, formatY: String });
    assert.ok(!chart.path.includes("NaN"), chart.path);
    assert.ok(chart.yTicks.length > 0);
  }
});

test("ticks are round numbers inside", () => {
  assert.deepEqual(ticks(0, 10, 5), [0, 2, 4, 6, 8, 10]);
  assert.deepEqual(ticks(-0.3, 0.7, 4), [0, 0.5]);
  assert.deepEqual(ticks(2.2, 5.6, 6), [3, 4, 5]);
  assert.deepEqual(ticks(0, 0.35, 4), [0, 0.1, 0.2, 0.3]);
  assert.deepEqual(ticks(1, 1, 4), [1]);
});

test("the history has one rate per committed step", () => {
  let history = remember(null, training());
  history = remember(history, training());
  history = remember(history, training({ step: "43", tokens_per_second: 1700 }));
  assert.deepEqual(history.rates, [{ step: 41, rate: 1640.4 }, { step: 43, rate: 1700 }]);
  assert.equal(remember(null, training({ tokens_per_second: 0 })).rates.length, 0);
});

test("the history is bounded and begins anew with another incarnation", () => {
  let history = null;
  for (let step = 1; step <= MOST_RATES + 50; ++step) history = remember(history, training({ step: String(step) }));
  assert.equal(history.rates.length, MOST_RATES);
  assert.equal(history.rates[0].step, 51);
  // Apart in the last digit only, which a number would not have.
  history = remember(history, training({ step: "12", incarnation: "18446744073709551614" }));
  assert.deepEqual(history.rates.map(({ step }) => step), [12]);
});

test("while the daemon does not answer its last state is named", () => {
  const since = new Date(2026, 0, 2, 3, 4, 5);
  assert.deepEqual(silenceBanner(training(), since), {
    severity: "bad",
    title: "The daemon has not answered since 03:04:05",
    text: "Last seen: training, step 41 of 200. eps status --out DIR says how it stands.",
  });
  assert.equal(silenceBanner(null, since).text, "eps status --out DIR says how it stands.");
  assert.match(silenceBanner(starting({}), since).text, /^Last seen: starting\. eps status/);
  assert.equal(silenceTitle(training()), "no answer · shakespeare");
  assert.equal(silenceTitle(null), "no answer · eps_server");
});

test("while the daemon does not answer its last values stay as easy to read", () => {
  const css = readFileSync(new URL("page.css", import.meta.url), "utf8");
  const rules = css.match(/^main\.stale[^}]*\}/gm);
  assert.equal(rules.length, 1);
  assert.doesNotMatch(rules[0], /opacity/);
});

test("a daemon that has finished may be silent", () => {
  assert.equal(silenceBanner(training({ state: "finished" }), new Date()).severity, "note");
});

test("byte sizes are as in the terminal", () => {
  assert.equal(formatBytes("0"), "0 B");
  assert.equal(formatBytes("1023"), "1023 B");
  assert.equal(formatBytes("1024"), "1.0 KiB");
  assert.equal(formatBytes(String(1024 * 1024 - 1)), "1.0 MiB");
  assert.equal(formatBytes("3328599654"), "3.1 GiB");
});

test("durations are as in the terminal", () => {
  assert.equal(formatEta(3909), "1:05:09");
  assert.equal(formatEta(59.6), "1:00");
  assert.equal(formatEta(-1), "-:--");
  assert.equal(formatEta("NaN"), "-:--");
  assert.equal(formatSeconds(0.0123), "0.012 s");
  assert.equal(formatSeconds(12.34), "12.3 s");
  assert.equal(formatSeconds(125), "2 min 5 s");
  assert.equal(formatSeconds(3909), "1 h 5 min");
  assert.deepEqual([86399, 86400, 1234567].map(formatEta), ["23:59:59", "1 d 0 h", "14 d 6 h"]);
  assert.deepEqual([-1, 0.2, 119.5, 125].map(formatWait), ["0 s", "1 s", "2 min 0 s", "2 min 5 s"]);
});

test("numbers have three digits and a prefix, or commas", () => {
  assert.equal(formatSi("29913600"), "29.9 M");
  assert.equal(formatSi(1.2e12, "FLOP/s"), "1.20 TFLOP/s");
  assert.equal(formatSi(999600), "1.00 M");
  assert.equal(formatSi(7), "7");
  assert.equal(formatCount("1234567"), "1,234,567");
  assert.equal(formatCount(999.6), "1,000");
  assert.deepEqual([0, 0.5, 1500, 500000, 1e6].map(formatTick), ["0", "0.5", "1500", "500 k", "1 M"]);
  assert.equal(formatVnodes([]), UNKNOWN);
  const significant = [12345.678, 999.6, 999.4, 1, 0, 2.9999999e-5, 0.0006, -1234].map((n) => formatSignificant(n, 3));
  assert.deepEqual(significant, ["1.23e+04", "1e+03", "999", "1", "0", "3e-05", "0.0006", "-1.23e+03"]);
});

test("protobuf's strings are numbers", () => {
  assert.equal(numberOf("41"), 41);
  assert.ok(Number.isNaN(numberOf("NaN")));
  assert.equal(numberOf("-Infinity"), -Infinity);
  assert.equal(numberOf(undefined, -1), -1);
  assert.equal(numberOf(null), 0);
  assert.equal(numberOf([5], 2), 2);
});
