// Puts a view (view.js) into the page. Decides nothing about what is shown.

import { ChartPanel } from "./chart_panel.js";
import { bind, element, setAttributes, setBar, setChildren, setText } from "./dom.js";
import { UNKNOWN } from "./format.js";

const DENSE_RELAY_COLUMNS = 48;
const byId = (id) => document.getElementById(id);

// The page's charts, by the names that view.js gives their sizes.
export function makeCharts() {
  return {
    loss: new ChartPanel(byId("loss-chart"), "Loss by step", "There is no finite loss yet."),
    rate: new ChartPanel(byId("rate-chart"), "Speed by step", "No step has ended since this page was opened."),
  };
}

export function show(view, charts) {
  const main = byId("view");
  main.hidden = false;
  bind(main, view);
  setChildren(byId("banners"), view.banners, makeBanner, showBanner);
  setChildren(byId("figures"), view.figures ?? [], makeFigure, showFigure);
  charts.loss.show(view.charts?.loss ?? null);
  charts.rate.show(view.charts?.rate ?? null);
  if (view.relay !== null) showRelay(view.relay);
  if (view.waits !== null) showWaits(view.waits);
  if (view.experts !== null) showExperts(view.experts);
  if (view.workers !== null) showWorkers(view.workers);
  for (const name of ["memory", "checkpoints", "totals"]) {
    setChildren(byId(name), view[name] ?? [], makeFact, showFact);
  }
}

function makeBanner() {
  return element("div", "banner", element("strong"), " ", element("span"));
}

export function showBanner(node, { severity, title, text }) {
  setAttributes(node, { "data-severity": severity });
  setText(node.children[0], title);
  setText(node.children[1], text);
}

function makeFigure() {
  return element("div", "", element("dt"), element("dd", "", element("span"), element("small")));
}

function showFigure(node, { label, value, note = "", severity = "good" }) {
  const [name, description] = node.children;
  setText(name, label);
  setText(description.children[0], value);
  setText(description.children[1], note);
  setAttributes(description.children[0], { "data-severity": severity });
}

function makeFact() {
  return element("div", "", element("dt"), element("dd", "", element("span"), element("div", "bar")));
}

function showFact(node, { label, value, bar = null, severity = "good" }) {
  const [name, description] = node.children;
  const [text, barNode] = description.children;
  setText(name, label);
  setText(text, value);
  setAttributes(text, { "data-severity": severity });
  setAttributes(barNode, { "aria-label": label });
  setBar(barNode, bar);
}

function showRelay({ cells, columns, text, barLabel }) {
  setAttributes(byId("relay-bar"), { "aria-label": barLabel });
  const relay = byId("relay");
  relay.hidden = cells.length === 0;
  relay.style.gridTemplateColumns = `repeat(${columns}, minmax(0, 1fr))`;
  relay.classList.toggle("dense", columns > DENSE_RELAY_COLUMNS);
  setAttributes(relay, { "aria-label": `${text}; the head is updated first, the embedding last` });
  setChildren(relay, cells, () => element("div"), (cell, isUpdated) => cell.classList.toggle("updated", isUpdated));
}

function showWaits(waits) {
  showStack(byId("waits"), waits);
  setChildren(byId("waits-legend"), waits.segments, () => element("li"), (item, { kind, label }) => {
    setAttributes(item, { "data-kind": kind });
    setText(item, label);
  });
}

// A pixel for each expert, which the style makes larger.
function showExperts({ map, busiest }) {
  const canvas = byId("experts");
  canvas.hidden = map === null;
  if (map === null) return;
  const { columns, cells } = map;
  const rows = cells.length / columns;
  if (canvas.width !== columns) canvas.width = columns;
  if (canvas.height !== rows) canvas.height = rows;
  canvas.style.setProperty("--columns", columns);
  canvas.style.setProperty("--rows", rows);
  setAttributes(canvas, { "aria-label": busiest });
  const style = getComputedStyle(canvas);
  const [idle, busy] = ["--warning", "--accent"].map((name) => style.getPropertyValue(name).trim());
  const pen = canvas.getContext("2d");
  pen.clearRect(0, 0, columns, rows);
  cells.forEach((cell, i) => {
    if (cell === null) return;
    pen.fillStyle = cell.isIdle ? idle : busy;
    pen.globalAlpha = cell.isIdle ? 1 : cell.shade;
    pen.fillRect(i % columns, Math.floor(i / columns), 1, 1);
  });
  canvas.onpointermove = ({ offsetX, offsetY }) => {
    const column = Math.floor((offsetX / canvas.clientWidth) * columns);
    const row = Math.floor((offsetY / canvas.clientHeight) * rows);
    setAttributes(canvas, { title: cells[row * columns + column]?.text });
  };
}

function showStack(node, waits) {
  setAttributes(node, { "aria-label": `compute waits for ${waits.text}` });
  setChildren(node, waits.segments, () => element("div"), (segment, { kind, share, label, word }) => {
    setAttributes(segment, { "data-kind": kind, title: label });
    segment.style.width = `${100 * share}%`;
    setText(segment, word);
  });
}

// Each column: its header, and how a cell shows a row.
const COLUMNS = [
  { label: "id", className: "number", show: (cell, row) => showMarked(cell, row.id, row.marks) },
  { label: "state", className: "name", show: (cell, row) => setText(cell, row.state) },
  { label: "host", show: (cell, row) => setText(cell, row.host), isShown: (workers) => workers.showsHosts },
  { label: "device", show: (cell, row) => showTwoLines(cell, row.device, row.deviceModel) },
  { label: "transport", className: "name", show: (cell, row) => showTwoLines(cell, row.transport, row.group) },
  { label: "vnodes", className: "vnodes", show: (cell, row) => setText(cell, row.vnodes) },
  { label: "last pass", className: "number", show: (cell, row) => setText(cell, row.pass) },
  { label: "waits for", show: (cell, row) => showWorkerWaits(cell, row.waits) },
  { label: "device memory", show: (cell, row) => showMemory(cell, row.memory) },
  { label: "heard of", className: "number", show: showHeard },
  { label: "page", className: "name", show: showLink },
];

function showWorkers(workers) {
  const columns = COLUMNS.filter(({ isShown }) => isShown === undefined || isShown(workers));
  const table = byId("workers");
  table.hidden = workers.rows.length === 0;
  setChildren(table.querySelector("thead tr"), columns, makeHeader, (cell, { label }) => setText(cell, label));
  setChildren(table.querySelector("tbody"), workers.rows, makeRow, (node, row) => showRow(node, row, columns));
}

function makeHeader() {
  const cell = element("th");
  setAttributes(cell, { scope: "col", role: "columnheader" });
  return cell;
}

function makeRow() {
  const row = element("tr");
  setAttributes(row, { role: "row" });
  return row;
}

function showRow(node, row, columns) {
  // Cells of another set of columns hold other elements.
  const layout = columns.map(({ label }) => label).join();
  if (node.dataset.layout !== layout) node.replaceChildren();
  node.dataset.layout = layout;
  node.classList.toggle("gone", row.isGone);
  setChildren(node, columns, () => element("td"), (cell, { label, className = "", show: showCell }) => {
    setAttributes(cell, { class: className, role: "cell", "data-label": label });
    showCell(cell, row);
  });
}

function showMarked(cell, text, marks) {
  if (cell.childElementCount === 0) cell.append(element("span"), element("span"));
  setText(cell.children[0], text);
  setChildren(cell.children[1], marks, () => element("span", "mark"), setText);
}

function showTwoLines(cell, text, more) {
  if (cell.childElementCount === 0) cell.append(element("span"), element("small"));
  setText(cell.children[0], text);
  setText(cell.children[1], more);
}

function showWorkerWaits(cell, waits) {
  if (cell.childElementCount === 0) cell.append(element("div", "stack"), element("small"));
  const [stack, text] = cell.children;
  setAttributes(stack, { role: "img" });
  stack.hidden = waits === null;
  if (waits !== null) showStack(stack, waits);
  setText(text, waits?.text ?? UNKNOWN);
}

function showMemory(cell, memory) {
  if (cell.childElementCount === 0) cell.append(element("div", "bar"), element("small"));
  setAttributes(cell.children[0], { "aria-label": "device memory" });
  setBar(cell.children[0], memory);
  setText(cell.children[1], memory?.text ?? UNKNOWN);
}

function showHeard(cell, row) {
  setAttributes(cell, { "data-severity": row.heardSeverity });
  setText(cell, row.heard);
}

function showLink(cell, row) {
  const links = row.metricsUrl === null ? [] : [row];
  setChildren(cell, links, () => element("a", "", "metrics"), (link, { id, metricsUrl }) => {
    setAttributes(link, { href: metricsUrl, rel: "noreferrer", "aria-label": `metrics of worker ${id}` });
  });
}
