// The status page: asks the daemon once a second, and shows what it says.

import { setAttributes } from "./dom.js";
import { makeCharts, show, showBanner } from "./panels.js";
import { remember, silenceBanner, silenceTitle, viewOf } from "./view.js";

const INTERVAL_MS = 1000;
const HIDDEN_INTERVAL_MS = 5000;
const ANSWER_TIMEOUT_MS = 5000;
// One set for light and dark tabs.
const ICON_COLORS = { good: "#2da44e", note: "#0b5cad", warning: "#bf8700", bad: "#cf222e" };

const charts = makeCharts();
let lastStatus = null;
let history = null;
let silentSince = null;  // when the first request that was not answered began; null: the last one was
let timer = 0;
let isAsking = false;

async function fetchStatus() {
  const reply = await fetch("/status.json", { cache: "no-store", signal: AbortSignal.timeout(ANSWER_TIMEOUT_MS) });
  if (!reply.ok) throw new Error(`/status.json: HTTP ${reply.status}`);
  return await reply.json();
}

async function ask() {
  if (isAsking) return;
  isAsking = true;
  clearTimeout(timer);
  const askedAt = new Date();
  const status = await fetchStatus().catch(() => null);
  isAsking = false;
  timer = setTimeout(ask, document.hidden ? HIDDEN_INTERVAL_MS : INTERVAL_MS);
  if (status === null) {
    if (silentSince === null) silentSince = askedAt;
  } else {
    silentSince = null;
    lastStatus = status;
    history = remember(history, status);
  }
  draw();
}

function draw() {
  if (lastStatus !== null) drawStatus();
  drawSilence();
}

function drawStatus() {
  const view = viewOf(lastStatus, history, { loss: charts.loss.size, rate: charts.rate.size });
  show(view, charts);
  document.title = view.tabTitle;
  setIcon(view.head.severity);
}

function drawSilence() {
  const banner = document.getElementById("silence");
  const isSilent = silentSince !== null;
  document.getElementById("view").classList.toggle("stale", isSilent);
  banner.hidden = !isSilent;
  if (!isSilent) return;
  const view = silenceBanner(lastStatus, silentSince);
  showBanner(banner, view);
  document.title = silenceTitle(lastStatus);
  setIcon(view.severity);
}

function setIcon(severity) {
  const svg = `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 16 16"><circle cx="8" cy="8" r="7" fill="${
    ICON_COLORS[severity]
  }"/></svg>`;
  setAttributes(document.getElementById("icon"), { href: `data:image/svg+xml,${encodeURIComponent(svg)}` });
}

document.addEventListener("visibilitychange", () => {
  if (!document.hidden) ask();
});
// The charts are drawn in pixels of the room that they have.
const resizes = new ResizeObserver(draw);
resizes.observe(charts.loss.parent);
resizes.observe(charts.rate.parent);
ask();
