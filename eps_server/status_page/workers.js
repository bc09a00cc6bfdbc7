// The table of workers as plain data. Pure.

import {
  UNKNOWN,
  formatBytes,
  formatCount,
  formatSeconds,
  formatVnodes,
  listOf,
  numberOf,
  plural,
  textOf,
  wordsOf,
} from "./format.js";
import { barOf, ratio, waitShares } from "./shares.js";
import { isGone, isOver } from "./state.js";
import { expectedText } from "./work.js";

const MOST_ROWS = 100;
const SLOW_FACTOR = 1.5;  // of the median pass
// HOST:PORT and nothing that could turn the link into another one.
const METRICS_ADDRESS = /^[0-9A-Za-z.:[\]-]+$/;

// More than half of the lease has gone by.
export function isSilent(worker, leaseSeconds) {
  const lease = numberOf(leaseSeconds);
  return !isGone(worker) && lease > 0 && numberOf(worker.silent_seconds) > lease / 2;
}

export function workersView(status) {
  const workers = listOf(status.workers);
  const marksOf = markerOf(status, workers);
  const rows = inOrder(workers.map((worker) => rowOf(worker, marksOf(worker), status)));
  return {
    rows: rows.slice(0, MOST_ROWS),
    count: countText(rows, status),
    more: rows.length > MOST_ROWS ? `and ${rows.length - MOST_ROWS} more` : "",
    showsHosts: new Set(workers.map((worker) => textOf(worker.host_name))).size > 1,
  };
}

// Those that are gone last. Where not all have room, those that are marked first.
function inOrder(rows) {
  const rankOf = (row) => (row.isGone ? 2 : rows.length > MOST_ROWS && row.marks.length === 0 ? 1 : 0);
  return [0, 1, 2].flatMap((rank) => rows.filter((row) => rankOf(row) === rank));
}

function countText(rows, status) {
  const here = rows.filter((row) => !row.isGone).length;
  const none = isOver(status) ? [] : ["none attached"];
  const gone = ["lost", "left"]
    .map((state) => ({ state, count: rows.filter((row) => row.state === state).length }))
    .filter(({ count }) => count > 0)
    .map(({ state, count }) => `${formatCount(count)} ${state}`);
  const first = expectedText(status) ?? (here > 0 ? plural(here, "worker") : null);
  return [...(first === null ? none : [first]), ...gone].join(", ");
}

// A function that tells why to look at a worker.
function markerOf(status, workers) {
  const slowFrom = SLOW_FACTOR * medianPass(workers);
  const waitedFor = new Set(listOf(status.step_wait?.worker_id).map(String));
  return (worker) => {
    const marks = [];
    if (isAtWork(worker) && numberOf(worker.pass_seconds) > slowFrom) marks.push("slow");
    if (waitedFor.has(String(worker.worker_id))) marks.push("waited for");
    return marks;
  };
}

// Idle ones too: within a step the fast are idle while the slow still run.
function isAtWork(worker) {
  return (worker.state === "running" || worker.state === "idle") && numberOf(worker.pass_seconds) > 0;
}

// Of two the smaller one: no value is more than 1.5 times the larger. Infinity where nobody can be compared.
function medianPass(workers) {
  const passes = workers.filter(isAtWork).map((worker) => numberOf(worker.pass_seconds));
  if (passes.length < 2) return Infinity;
  passes.sort((a, b) => a - b);
  return passes[Math.floor((passes.length - 1) / 2)];
}

function rowOf(worker, marks, status) {
  // Once the run is over nobody has to speak.
  const isHeard = !isGone(worker) && !isOver(status);
  return {
    id: textOf(String(worker.worker_id ?? UNKNOWN)),
    state: textOf(worker.state) || UNKNOWN,
    isGone: isGone(worker),
    marks,
    host: textOf(worker.host_name) || UNKNOWN,
    device: textOf(worker.device_name) || UNKNOWN,
    deviceModel: textOf(worker.device_model),
    transport: wordsOf(worker.transport) || UNKNOWN,
    vnodes: formatVnodes(listOf(worker.vnodes).map((vnode) => numberOf(vnode))),
    pass: numberOf(worker.pass_seconds) > 0 ? formatSeconds(worker.pass_seconds) : UNKNOWN,
    waits: waitShares(worker.wait_seconds, worker.pass_seconds),
    memory: memoryOf(worker),
    heard: isHeard ? `${formatSeconds(worker.silent_seconds)} ago` : UNKNOWN,
    heardSeverity: isHeard && isSilent(worker, status.lease_seconds) ? "warning" : "good",
    group: groupText(worker),
    metricsUrl: metricsUrl(worker),
  };
}

function memoryOf(worker) {
  const cap = numberOf(worker.device_cap_bytes);
  if (!(cap > 0)) return null;
  return barOf(ratio(worker.device_peak_bytes, cap), `${formatBytes(worker.device_peak_bytes)} of ${formatBytes(cap)}`);
}

// Groups are told apart by their founder.
function groupText(worker) {
  const members = numberOf(worker.group_members);
  return members > 0 ? `group ${numberOf(worker.group_founder)}, ${members} members` : "";
}

function metricsUrl(worker) {
  const address = worker.metrics_address;
  const isAddress = typeof address === "string" && METRICS_ADDRESS.test(address);
  return isAddress && !isGone(worker) ? `http://${address}/metrics` : null;
}
