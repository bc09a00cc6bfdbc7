// Numbers of the status as people read them: the words of `eps top`. Pure.

const BYTE_UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];
const SI_PREFIXES = ["", "k", "M", "G", "T", "P", "E"];
const LONGEST_TEXT = 500;
const HOUR = 3600;  // seconds
const DAY = 24 * HOUR;
// Control characters, and those that turn the direction of the text after them.
const NOT_PRINTABLE = /[\u0000-\u001f\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069]/g;

export const UNKNOWN = "–";

// protobuf's JSON has 64-bit integers, NaN and infinities as strings.
export function numberOf(value, missing = 0) {
  return typeof value === "number" || typeof value === "string" ? Number(value) : missing;
}

// What others have written: one line of printable text.
export function textOf(value) {
  if (typeof value !== "string") return "";
  const text = value.replace(/[\t\r\n]+/g, " ").replace(NOT_PRINTABLE, "?");
  return text.length > LONGEST_TEXT ? `${text.slice(0, LONGEST_TEXT)}…` : text;
}

// A state or a cause, as a word.
export const wordsOf = (name) => textOf(name).replace(/_/g, " ");

export const listOf = (value) => (Array.isArray(value) ? value : []);

export function formatBytes(value) {
  const bytes = numberOf(value);
  if (!Number.isFinite(bytes)) return UNKNOWN;
  let unit = 0;
  // 1023.95 KiB would be shown as 1024.0 KiB.
  while (unit + 1 < BYTE_UNITS.length && Math.abs(bytes) / 1024 ** unit >= (unit === 0 ? 1024 : 1023.95)) ++unit;
  return `${(bytes / 1024 ** unit).toFixed(unit === 0 ? 0 : 1)} ${BYTE_UNITS[unit]}`;
}

const twoDigits = (value) => String(value).padStart(2, "0");

// Until something is done.
export function formatEta(value) {
  const seconds = numberOf(value, -1);
  if (!(seconds >= 0) || seconds > 1e8) return "-:--";
  const whole = Math.round(seconds);
  if (whole >= DAY) return formatLong(whole);
  const minutes = Math.floor(whole / 60);
  if (whole < HOUR) return `${minutes}:${twoDigits(whole % 60)}`;
  return `${Math.floor(whole / HOUR)}:${twoDigits(minutes % 60)}:${twoDigits(whole % 60)}`;
}

// That something has taken, or is ago.
export function formatSeconds(value) {
  const seconds = numberOf(value);
  if (!Number.isFinite(seconds)) return UNKNOWN;
  if (seconds >= 120) return formatLong(Math.round(seconds));
  return `${seconds.toFixed(seconds >= 10 ? 1 : 3)} s`;
}

// That is still to wait, whose parts of a second nobody looks at.
export function formatWait(value) {
  const whole = Math.ceil(Math.max(0, numberOf(value)));
  return whole >= 120 ? formatLong(whole) : `${whole} s`;
}

// The two largest units: "2 min 5 s", "1 h 5 min", "14 d 6 h".
function formatLong(whole) {
  const of = (unit, name, part, partName) =>
    `${Math.floor(whole / unit)} ${name} ${Math.floor((whole % unit) / part)} ${partName}`;
  if (whole >= DAY) return of(DAY, "d", HOUR, "h");
  return whole >= HOUR ? of(HOUR, "h", 60, "min") : of(60, "min", 1, "s");
}

// Three digits and a prefix: "1.23 T" and the unit.
export function formatSi(value, unit = "") {
  const number = numberOf(value);
  if (!Number.isFinite(number)) return UNKNOWN;
  let power = 0;
  // 999.5 k would be shown as 1000 k.
  while (power + 1 < SI_PREFIXES.length && Math.abs(number) / 1000 ** power >= 999.5) ++power;
  const scaled = number / 1000 ** power;
  const isExact = power === 0 && Number.isInteger(number);
  const digits = isExact ? String(number) : formatSignificant(scaled, 3, true);
  return `${digits} ${SI_PREFIXES[power]}${unit}`.trimEnd();
}

// On the axis of a chart: as short as it can be.
export function formatTick(value) {
  if (Math.abs(value) < 1e4) return String(value);
  const power = Math.min(SI_PREFIXES.length - 1, Math.floor(Math.log10(Math.abs(value)) / 3));
  return `${Number((value / 1000 ** power).toPrecision(6))} ${SI_PREFIXES[power]}`;
}

// As printf's %.{digits}g; with `keepZeros` "1.20" stays.
export function formatSignificant(value, digits, keepZeros = false) {
  const number = numberOf(value);
  if (!Number.isFinite(number)) return "not finite";
  const [mantissa, power] = number.toExponential(digits - 1).split("e").map(Number);
  const withoutZeros = (text) => (keepZeros ? text : String(Number(text)));
  if (power >= -4 && power < digits) return withoutZeros(number.toFixed(digits - 1 - power));
  const exponent = `${power < 0 ? "-" : "+"}${twoDigits(Math.abs(power))}`;
  return `${withoutZeros(mantissa.toFixed(digits - 1))}e${exponent}`;
}

export function formatCount(value) {
  const number = numberOf(value);
  if (!Number.isFinite(number)) return UNKNOWN;
  if (Math.abs(number) >= 1e15) return formatSi(number);
  return String(Math.round(number)).replace(/\B(?=(\d{3})+$)/g, ",");
}

export function formatPercent(share) {
  return `${Math.round(100 * share)}%`;
}

export function formatLoss(value) {
  const loss = numberOf(value, NaN);
  if (!Number.isFinite(loss)) return "not finite";
  return Math.abs(loss) >= 1e6 ? loss.toExponential(3) : loss.toFixed(4);
}

// [0, 1, 2, 3, 7] -> "0-3, 7": with room to break the line in, but not within a number.
export function formatVnodes(vnodes) {
  const ranges = [];
  for (const vnode of vnodes) {
    const range = ranges[ranges.length - 1];
    if (range !== undefined && range.last + 1 === vnode) range.last = vnode;
    else ranges.push({ first: vnode, last: vnode });
  }
  return ranges.map(({ first, last }) => (first === last ? `${first}` : `${first}-${last}`)).join(", ") || UNKNOWN;
}

export function formatClock(date) {
  return [date.getHours(), date.getMinutes(), date.getSeconds()].map(twoDigits).join(":");
}

export function plural(count, noun) {
  return `${formatCount(count)} ${noun}${count === 1 ? "" : "s"}`;
}
