// A line chart as plain data: where its ticks, its line and its points are, in pixels. Pure.

const MARGIN = { left: 52, right: 20, top: 10, bottom: 24 };
const PIXELS_PER_TICK = { x: 72, y: 44 };
const PIXELS_PER_CHARACTER = 7;  // of a label, at most

// Round numbers from `low` to `high`, about `count` of them.
export function ticks(low, high, count) {
  const rough = (high - low) / Math.max(1, count);
  if (!(rough > 0) || !Number.isFinite(rough)) return [low];
  const power = 10 ** Math.floor(Math.log10(rough));
  const factor = [1, 2, 5].find((candidate) => candidate * power >= rough) ?? 10;
  const step = factor * power;
  const values = [];
  const last = Math.floor(high / step + 1e-9);
  for (let i = Math.ceil(low / step - 1e-9); i <= last && values.length < 100; ++i) {
    // i * 0.1 may be 0.30000000000000004; and no "-0".
    values.push(i === 0 ? 0 : Number((i * step).toPrecision(12)));
  }
  return values;
}

// `points`: {x, y, text} by rising x; a y that is not finite is a gap. `text` is what the readout says of the point.
// `fromZero`: the scale of y begins at 0. Null: there is nothing to draw, or no room.
export function lineChart({ points, width, height, fromZero = false, formatX, formatY }) {
  const shown = points.filter(({ y }) => Number.isFinite(y));
  const frame = frameOf(shown, width, height, fromZero);
  if (frame === null) return null;
  const placed = points.map(({ x, y, text }) => ({ x: frame.x(x), y: frame.y(y), text }));
  return {
    width,
    height,
    frame: { left: frame.left, right: frame.right, top: frame.top, bottom: frame.bottom },
    path: pathOf(placed),
    points: placed.filter(({ y }) => Number.isFinite(y)),
    xTicks: ticks(frame.lowX, frame.highX, Math.floor((frame.right - frame.left) / PIXELS_PER_TICK.x))
      .filter(Number.isInteger)
      .map((value) => xTick(frame.x(value), formatX(value), width)),
    yTicks: ticks(frame.lowY, frame.highY, Math.floor((frame.bottom - frame.top) / PIXELS_PER_TICK.y)).map((value) => ({
      at: frame.y(value),
      label: formatY(value),
    })),
  };
}

// `labelAt`: the label's middle, which is the tick's unless the label would be cut off at the right.
function xTick(at, label, width) {
  return { at, label, labelAt: Math.min(at, width - (label.length * PIXELS_PER_CHARACTER) / 2) };
}

function frameOf(points, width, height, fromZero) {
  const frame = { left: MARGIN.left, right: width - MARGIN.right, top: MARGIN.top, bottom: height - MARGIN.bottom };
  if (points.length === 0 || frame.right <= frame.left || frame.bottom <= frame.top) return null;
  const ys = points.map(({ y }) => y);
  const low = fromZero ? 0 : Math.min(...ys);
  const high = Math.max(...ys);
  const margin = Math.max((high - low) * 0.06, 1e-3 * Math.max(1, Math.abs(high)));
  frame.lowX = points[0].x;
  frame.highX = Math.max(points[points.length - 1].x, frame.lowX + 1);
  frame.lowY = fromZero ? 0 : low - margin;
  frame.highY = high + margin;
  const between = (value, from, to) => (value - from) / (to - from);
  frame.x = (x) => rounded(frame.left + between(x, frame.lowX, frame.highX) * (frame.right - frame.left));
  frame.y = (y) => rounded(frame.bottom - between(y, frame.lowY, frame.highY) * (frame.bottom - frame.top));
  return frame;
}

const rounded = (pixels) => Math.round(pixels * 10) / 10;

// A point between two gaps has no length: a dot of the line's width shows it.
function pathOf(placed) {
  const isGap = (point) => point === undefined || !Number.isFinite(point.y);
  return placed
    .map((point, i) => {
      if (isGap(point)) return "";
      const begins = isGap(placed[i - 1]);
      return `${begins ? "M" : "L"}${point.x} ${point.y}${begins && isGap(placed[i + 1]) ? "h0.1" : ""}`;
    })
    .join("");
}

// The index of the chart's point that is nearest to `x`, in pixels.
export function nearestPoint(chart, x) {
  let nearest = 0;
  chart.points.forEach((point, i) => {
    if (Math.abs(point.x - x) < Math.abs(chart.points[nearest].x - x)) nearest = i;
  });
  return nearest;
}
