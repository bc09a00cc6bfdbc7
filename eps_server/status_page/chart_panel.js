// A chart of chart.js in the page, with a readout that follows the mouse, a finger or the arrow keys.

import { nearestPoint } from "./chart.js";
import { element, setAttributes, setChildren, setText, svgElement } from "./dom.js";

export class ChartPanel {
  // `nothing`: what is said where there is nothing to draw.
  constructor(parent, label, nothing) {
    this.parent = parent;
    this.label = label;
    this.chart = null;
    this.chosen = null;  // the point that is read out; null: none
    this.grid = svgElement("g");
    this.path = svgElement("path");
    this.mark = svgElement("line", { class: "mark" });
    this.newest = svgElement("circle", { r: 2.5 });
    this.dot = svgElement("circle", { r: 4 });
    this.svg = svgElement("svg", { role: "img", tabindex: 0 }, this.grid, this.path, this.newest, this.mark, this.dot);
    this.readout = element("output");
    this.nothing = element("p", "nothing quiet", nothing);
    parent.append(this.svg, this.readout, this.nothing);
    this.listen();
  }

  get size() {
    return { width: this.parent.clientWidth, height: this.parent.clientHeight };
  }

  listen() {
    const follow = (event) => this.choose(event.clientX - this.svg.getBoundingClientRect().left);
    this.svg.addEventListener("pointermove", follow);
    this.svg.addEventListener("pointerdown", follow);
    this.svg.addEventListener("pointerleave", () => this.read(null));
    this.svg.addEventListener("blur", () => this.read(null));
    this.svg.addEventListener("keydown", (event) => this.step(event));
  }

  choose(x) {
    if (this.chart !== null) this.read(nearestPoint(this.chart, x));
  }

  step(event) {
    const last = (this.chart?.points.length ?? 0) - 1;
    const now = this.chosen ?? last;
    const targets = { ArrowLeft: now - 1, ArrowRight: now + 1, Home: 0, End: last };
    if (!(event.key in targets) || last < 0) return;
    event.preventDefault();
    this.read(Math.min(last, Math.max(0, targets[event.key])));
  }

  read(index) {
    this.chosen = index;
    const point = index === null ? undefined : this.chart?.points[index];
    const display = point === undefined ? "none" : "inline";
    setAttributes(this.mark, { display });
    setAttributes(this.dot, { display });
    setText(this.readout, point?.text ?? "");
    if (point === undefined) return;
    const { top, bottom } = this.chart.frame;
    setAttributes(this.mark, { x1: point.x, x2: point.x, y1: top, y2: bottom });
    setAttributes(this.dot, { cx: point.x, cy: point.y });
  }

  show(chart) {
    this.chart = chart;
    this.nothing.hidden = chart !== null;
    setAttributes(this.svg, { hidden: chart === null ? "" : null });
    if (chart === null) return this.read(null);
    const { width, height, points } = chart;
    const newest = points[points.length - 1];
    const label = `${this.label}; newest: ${newest.text}. Arrow keys read points`;
    setAttributes(this.svg, { width, height, "aria-label": label });
    setAttributes(this.newest, { cx: newest.x, cy: newest.y });
    setAttributes(this.path, { d: chart.path });
    setChildren(this.grid, gridOf(chart), () => svgElement("g", {}, svgElement("line"), svgElement("text")), drawTick);
    this.read(this.chosen);
  }
}

function gridOf({ frame, xTicks, yTicks }) {
  const { left, right, top, bottom } = frame;
  const line = (kind, x1, y1, x2, y2) => ({ line: { class: kind, x1, y1, x2, y2 }, text: {}, label: "" });
  return [
    ...xTicks.map(({ at, label, labelAt }) => ({
      ...line("grid", at, top, at, bottom),
      text: { x: labelAt, y: bottom + 16, "text-anchor": "middle" },
      label,
    })),
    ...yTicks.map(({ at, label }) => ({
      ...line("grid", left, at, right, at),
      text: { x: left - 7, y: at + 4, "text-anchor": "end" },
      label,
    })),
    line("axis", left, bottom, right, bottom),
    line("axis", left, top, left, bottom),
  ];
}

function drawTick(group, tick) {
  setAttributes(group.children[0], tick.line);
  setAttributes(group.children[1], tick.text);
  setText(group.children[1], tick.label);
}
