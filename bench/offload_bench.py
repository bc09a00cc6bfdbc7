#!/usr/bin/python3
"""Steps whose optimizer state lies on a disk (optimizer_offload) against the same in memory, and against what the disk allows.

The floor of a step is the longer of two: the step in memory, and what it reads and writes at the speed that `eps profile`
measures of the disk just before. Sides take turns. Prints a table and, last, one JSON line.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "harness"))

from eps_run import EPS, sample_text, train  # noqa: E402

SIDES = {"in memory": None, "half on the disk": 0.5, "on the disk": 0.0}


def eps(*args):
    done = subprocess.run([EPS, *map(str, args)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(done.stderr)
    return done.stdout


def settings(disk, memory_bytes):
    return ("--set", f"optimizer_offload.path={disk}", "--set", f"optimizer_offload.memory_bytes={int(memory_bytes)}")


def median_step(spec, out, args):
    done = train(spec, out, "--quiet", *args)
    if done.returncode != 0:
        sys.exit(done.stderr)
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return statistics.median(line["step_seconds"] for line in lines[2:])  # the first ones warm up


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=16, help="of 1,024: 16 make 202 M parameters, 2.0 GB on the disk")
    parser.add_argument("--tokens", type=int, default=64, help="a step")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--disk", default="", help="a folder on the disk; default: a temporary one")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="eps-bench-", dir=args.disk or None) as folder:
        folder = Path(folder)
        (folder / "disk").mkdir()
        (folder / "text.txt").write_bytes(sample_text(1_000_000))
        spec = folder / "run.json"
        spec.write_text(json.dumps({
            "model": {"family": "GPT2", "layers": args.layers, "d_model": 1024, "heads": 16, "context": 64, "vocab": 256},
            "data": {"path": "text.txt", "tokenizer": "BYTES"},
            "batch": {"virtual_nodes": 1, "micro_batches": 1, "micro_batch": max(1, args.tokens // 64)},
            "optimizer": {"adamw": {}, "schedule": {"peak": 1e-4}}, "steps": args.steps, "checkpoint": {"last": False}}))
        state = json.loads(eps("plan", "--run", spec, "--json", *settings(folder / "disk", 0)))["host"]["offloaded_bytes"]
        speeds, seconds = [], {side: [] for side in SIDES}
        for _ in range(args.rounds):
            profile = folder / "profile.json"
            eps("profile", "--run", spec, "--out", profile, *settings(folder / "disk", 0))
            speeds.append(json.loads(profile.read_text())["disk_bytes_per_second"])
            for side, kept in SIDES.items():
                where = () if kept is None else settings(folder / "disk", kept * state)
                seconds[side].append(median_step(spec, folder / "run", where))
                subprocess.run(["rm", "-rf", folder / "run"], check=True)
    medians, speed = {side: statistics.median(values) for side, values in seconds.items()}, statistics.median(speeds)
    print(f"offload: {state / 1e9:.2f} GB of state, of a disk that reads and writes {speed / 1e9:.2f} GB/s in all "
          f"[{min(speeds) / 1e9:.2f}..{max(speeds) / 1e9:.2f}]")
    of_floor = {}
    for side, kept in SIDES.items():
        moved = 0 if kept is None else 2 * (1 - kept) * state
        floor = max(medians["in memory"], moved / speed)
        of_floor[side] = floor / medians[side]
        print(f"  {side:<18} {medians[side]:.3f} s a step [{min(seconds[side]):.3f}..{max(seconds[side]):.3f}], "
              f"{medians[side] / medians['in memory']:.2f} of that in memory; the floor is {floor:.3f} s: "
              f"{of_floor[side]:.2f} of its speed")
    print(json.dumps({"name": "offload", "state_bytes": state, "disk_bytes_per_second": round(speed),
                      "seconds": {side: round(value, 4) for side, value in medians.items()},
                      "of_floor": {side: round(value, 3) for side, value in of_floor.items()}}))


if __name__ == "__main__":
    main()
