// Shares of a whole, for bars. Pure.

import { formatPercent, numberOf, textOf } from "./format.js";

// In the order in which people are shown them: kWaitCauses.
const WAIT_CAUSES = ["pull", "stash", "push", "version", "room"];
const LEAST_SHARE_SHOWN = 0.005;
const LEAST_SHARE_WITH_WORD = 0.12;

export const clamped = (share) => Math.min(1, Math.max(0, share));

// In [0, 1]; 0 where it is not known.
export function ratio(part, whole) {
  const share = numberOf(part) / numberOf(whole);
  return Number.isFinite(share) ? clamped(share) : 0;
}

export function barOf(share, text) {
  return { share: clamped(share), text };
}

// What compute waits for, of `whole` (seconds, or 1 where `waits` are shares): segments that fill a bar, the last one
// computing. Null where it is not known.
export function waitShares(waits, whole) {
  if (!(numberOf(whole) > 0)) return null;
  const shares = causesOf(waits ?? {}).map((cause) => ({ cause, share: ratio(waits[cause], whole) }));
  const waited = shares.reduce((sum, { share }) => sum + share, 0);
  const scale = Math.max(1, waited);
  const segments = shares
    .filter(({ share }) => share >= LEAST_SHARE_SHOWN)
    .map(({ cause, share }) => segmentOf(cause, share / scale));
  const computing = segmentOf("computing", clamped(1 - waited));
  const text = segments.map(({ label }) => label).join(" ") || "nothing";
  return { segments: [...segments, computing].filter(({ share }) => share > 0), text };
}

function causesOf(waits) {
  const others = Object.keys(waits).filter((cause) => !WAIT_CAUSES.includes(cause));
  return [...WAIT_CAUSES.filter((cause) => cause in waits), ...others.sort()];
}

function segmentOf(cause, share) {
  const word = textOf(cause);
  const isKnown = WAIT_CAUSES.includes(cause) || cause === "computing";
  return {
    kind: isKnown ? cause : "other",
    share,
    label: `${word} ${formatPercent(share)}`,
    word: share >= LEAST_SHARE_WITH_WORD ? word : "",
  };
}
