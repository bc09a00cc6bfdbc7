// How evenly the last step's tokens fell on the experts (proto::ExpertLoad). Pure.

import { formatCount, formatSignificant, numberOf } from "./format.js";

const LEFT_OUT = 255;
const MAP_UNIT = 32; // of an even share
const FULL_LOAD = 4; // and more: as dark as can be

// Null without experts, or before a step of this sitting.
export function expertsView(status) {
  const load = status.expert_load;
  if (!load) return null;
  const experts = numberOf(load.experts);
  const cells = cellsOf(load);
  const places = `block ${formatCount(load.busiest_block)}, expert ${formatCount(load.busiest_expert)}`;
  return {
    busiest: `the busiest: ${formatLoad(load.busiest)} of an even share (${places})`,
    mean: `the busiest of a block, in the mean: ${formatLoad(load.mean_busiest)}`,
    idle: `${formatCount(load.idle)} of ${formatCount(load.running)} without a token`,
    map: cells.length > 0 && cells.length % experts === 0 ? { columns: experts, cells } : null,
  };
}

const formatLoad = (load) => `${formatSignificant(load, 3, true)}×`;

// Of each expert of each block: null where the step left the block out, else its load, how dark that is, and in words.
function cellsOf(load) {
  const experts = numberOf(load.experts);
  return Array.from(atob(typeof load.map === "string" ? load.map : ""), (character, i) => {
    const byte = character.charCodeAt(0);
    if (byte === LEFT_OUT) return null;
    const where = `block ${Math.floor(i / experts)}, expert ${i % experts}`;
    const share = byte / MAP_UNIT;
    const text = `${where}: ${byte === 0 ? "no token" : formatLoad(share)}`;
    return { isIdle: byte === 0, shade: Math.min(1, Math.log2(1 + share) / Math.log2(1 + FULL_LOAD)), text };
  });
}
