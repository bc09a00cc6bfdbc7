#!/usr/bin/python3
"""Two workers of one thread, of which the second shares its core with processes that do nothing but run: tokens per second
where both have as many vnodes, and where vnodes follow measured speed, over the last third of the steps. The sides take
turns. Prints a table and, last, one JSON line."""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "harness"))

from eps_run import endpoints, sample_text  # noqa: E402

SIDES = ("EVEN", "BY_SPEED")


def write_spec(args, folder):
    spec = {
        "model": {"family": "GPT2", "layers": args.layers, "d_model": args.d_model, "heads": args.d_model // 64,
                  "context": args.context, "vocab": 256, "init_seed": 1},
        "data": {"path": "text.txt", "tokenizer": "BYTES", "order": "SEQUENTIAL"},
        "batch": {"virtual_nodes": args.virtual_nodes, "micro_batches": 1, "micro_batch": args.micro_batch},
        "optimizer": {"adamw": {"beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1},
                      "schedule": {"peak": 6e-4}},
        "steps": args.steps, "checkpoint": {"last": False},
    }
    (folder / "text.txt").write_bytes(sample_text())
    (folder / "run.json").write_text(json.dumps(spec))


def start(log, *command, core=None):
    pin = [] if core is None else ["taskset", "--cpu-list", core]
    return subprocess.Popen([str(word) for word in (*pin, *command)], stdin=subprocess.DEVNULL, stdout=log, stderr=log)


def run_once(args, folder, side, cores):
    out = Path(tempfile.mkdtemp(dir=folder)) / "run"
    processes, busy = [], []
    log_path = out.parent / "log"
    with open(log_path, "w", encoding="utf-8") as log:
        try:
            daemon = start(log, args.bin / "eps_server", "--run", folder / "run.json", "--out", out, "--expect-workers", 2,
                           "--set", f"relay.vnode_shares={side}")
            processes.append(daemon)
            address = endpoints(daemon, out, log=log_path)["grpc"]
            busy = [start(log, sys.executable, "-c", "while True: pass", core=cores[1]) for _ in range(args.busy)]
            processes += [start(log, args.bin / "gpu_worker", "--connect", address, "--threads", 1, core=core)
                          for core in cores]
            for process in processes:
                if process.wait() != 0:
                    raise OSError(f"{process.args} ended with exit code {process.returncode}:\n" + log_path.read_text())
        finally:
            for process in (*processes, *busy):
                process.kill()
                process.wait()
    steps = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    kept = re.findall(r"vnode_shares_kept .*vnode_counts=(\S+) ", log_path.read_text())
    rates = [step["tokens_per_second"] for step in steps[len(steps) * 2 // 3:]]
    return statistics.median(rates), kept[-1] if kept else "even"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value, what in (("layers", 4, ""), ("d-model", 256, ""), ("context", 64, ""), ("micro-batch", 1, ""),
                              ("virtual-nodes", 16, ""), ("steps", 63, ""), ("rounds", 3, ""),
                              ("busy", 2, "processes beside the second worker")):
        parser.add_argument(f"--{name}", type=int, default=value, help=what)
    parser.add_argument("--bin", type=Path, default=ROOT / "bin", help="the folder of the programs to run")
    args = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))[:2]
    if len(cores) < 2:
        print("shares_bench: wants two cores", file=sys.stderr)
        sys.exit(77)  # cannot run here, as ./test understands it
    rounds = {side: [] for side in SIDES}
    with tempfile.TemporaryDirectory(prefix="eps-bench-") as folder:
        folder = Path(folder)
        write_spec(args, folder)
        for _ in range(args.rounds):
            for side in SIDES:
                rounds[side].append(run_once(args, folder, side, cores))
    result = {"name": "shares"}
    print(f"{'vnode_shares':<14} {'tokens/s':>9}  worker:vnodes kept last, by round")
    for side in SIDES:
        rate = statistics.median(rate for rate, _ in rounds[side])
        print(f"{side:<14} {rate:9.0f}  " + "  ".join(counts for _, counts in rounds[side]))
        result[side.lower()] = {"tokens_per_second": round(rate, 1)}
    ratios = [fast / even for (even, _), (fast, _) in zip(rounds["EVEN"], rounds["BY_SPEED"])]
    result["ratio"] = round(statistics.median(ratios), 4)
    print(f"by speed / even, tokens per second: {result['ratio']:.3f}; round by round "
          + " ".join(f"{ratio:.2f}" for ratio in ratios))
    print(json.dumps(result))


if __name__ == "__main__":
    main()
