// What a run is at, as the page's other parts ask for it. Pure.

import { numberOf } from "./format.js";

// The run is over; its page may linger.
export const isOver = (status) => status.state === "finished" || status.state === "failed";

// A step was committed in this sitting.
export const hasStepOfSitting = (status) => numberOf(status.last_step_seconds) > 0;

// A worker that computes no more: it is shown with what it had.
export const isGone = (worker) => worker.state === "lost" || worker.state === "left";

// A worker that the first step may begin with.
export const isReady = (worker) => worker.state === "idle" || worker.state === "running";
