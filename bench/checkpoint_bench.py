#!/usr/bin/python3
"""What a checkpoint costs the steps beside it: `eps train` with a checkpoint every few steps, in one run.

A step counts as beside a checkpoint when one was being written at any moment of it. The promise: none of them is longer
than the median of the others by more than 5% plus 0.5 s. Prints a table and, last, one JSON line.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "harness"))

from eps_run import start_train, sample_text  # noqa: E402


def being_written(folder):
    try:
        return any(name.startswith(".tmp-step-") for name in os.listdir(folder))
    except FileNotFoundError:
        return False


def watch(process, out):
    """Each step's line of metrics.jsonl, and whether a checkpoint was being written during it."""
    steps, busy, position = [], False, 0
    metrics = out / "metrics.jsonl"
    while process.poll() is None:
        busy |= being_written(out / "checkpoints")
        if metrics.exists():
            with open(metrics) as file:
                file.seek(position)
                for line in file.read().splitlines(keepends=True):
                    if not line.endswith("\n"):
                        break
                    position += len(line.encode())
                    steps.append((json.loads(line), busy))
                    busy = being_written(out / "checkpoints")
        time.sleep(0.002)
    return steps


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=8, help="of 768: 8 make 57 M parameters, a state of 0.8 GB")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--every", type=int, default=10)
    parser.add_argument("--sequences", type=int, default=2, help="of 256 tokens, a step")
    parser.add_argument("--clip", default="EXACT", choices=["EXACT", "LAGGED", "NONE"])
    parser.add_argument("--buffer-bytes", type=int, default=0, help="checkpoint.buffer_bytes; default: the run's default")
    parser.add_argument("--out", default="", help="where checkpoints are written; default: a temporary folder")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="eps-bench-", dir=args.out or None) as folder:
        folder = Path(folder)
        (folder / "text.txt").write_bytes(sample_text(1_000_000))
        optimizer = {"adamw": {}, "schedule": {"peak": 6e-4}}
        if args.clip != "NONE":
            optimizer["clip"] = {"mode": args.clip, "norm": 1.0}
        (folder / "run.json").write_text(json.dumps({
            "model": {"family": "GPT2", "layers": args.layers, "d_model": 768, "heads": 12, "context": 256,
                      "vocab": 256},
            "data": {"path": "text.txt", "tokenizer": "BYTES"},
            "batch": {"virtual_nodes": 1, "micro_batches": 1, "micro_batch": args.sequences},
            "optimizer": optimizer, "steps": args.steps, "checkpoint": {"every_steps": args.every, "keep": 1, "buffer_bytes": args.buffer_bytes}}))
        process = start_train(folder / "run.json", folder / "run")
        steps = watch(process, folder / "run")[2:]  # the first ones warm up
        _, stderr = process.communicate()
        if process.returncode != 0:
            sys.exit(stderr)
        parameters = json.loads((folder / "run" / "summary.json").read_text())["parameters"]
    alone = [step["step_seconds"] for step, busy in steps if not busy]
    beside = [step["step_seconds"] for step, busy in steps if busy]
    if not alone or not beside:
        sys.exit("no step was beside a checkpoint, or none was not: give another --every")
    median, longest = statistics.median(alone), max(beside)
    allowed = 1.05 * median + 0.5
    waits = max((step for step, busy in steps if busy), key=lambda step: step["step_seconds"])["waits"]
    held_up = max(step["checkpoint_wait_seconds"] for step, busy in steps)
    print(f"checkpoint: {parameters / 1e6:.0f} M parameters, {12 * parameters / 1e9:.2f} GB a checkpoint, "
          f"{args.clip} clipping")
    held = longest <= allowed
    for name, seconds in (("alone", alone), ("beside", beside)):
        print(f"  {len(seconds):3} steps {name:<6}   median {statistics.median(seconds):.3f} s   "
              f"[{min(seconds):.3f}..{max(seconds):.3f}]")
    print(f"  longest beside one {longest:.3f} s, allowed {allowed:.3f} s: {'held' if held else 'NOT held'}")
    print("  in that one, compute waited for " + ", ".join(f"{cause} {share:.0%}" for cause, share in waits.items()))
    print(f"  updates waited for a checkpoint's copies for {held_up:.3f} s in the worst step; load {os.getloadavg()[0]:.1f}")
    print(json.dumps({"name": "checkpoint", "alone_seconds": round(median, 4), "beside_seconds": round(longest, 4),
                      "allowed_seconds": round(allowed, 4), "held": held,
                      "update_wait_seconds": round(held_up, 4)}))


if __name__ == "__main__":
    main()
