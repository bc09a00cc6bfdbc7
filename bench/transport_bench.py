#!/usr/bin/python3
"""Two workers on this host, over gRPC and over shared memory: the share of pass time in which compute waits, by cause, and
tokens per second. The sides take turns. Prints a table and, last, one JSON line."""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "harness"))

from eps_run import sample_text, summary  # noqa: E402

SIDES = ("GRPC", "SHARED_MEMORY")


def run_eps(args, folder, transport):
    spec = {
        "model": {"family": "GPT2", "layers": args.layers, "d_model": args.d_model, "heads": args.d_model // 64,
                  "context": args.context, "vocab": 256, "init_seed": 1},
        "data": {"path": "text.txt", "tokenizer": "BYTES", "order": "SEQUENTIAL"},
        "batch": {"virtual_nodes": 2, "micro_batches": 1, "micro_batch": args.micro_batch},
        "optimizer": {"adamw": {"beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1},
                      "schedule": {"peak": 6e-4}},
        "steps": args.steps, "transport": transport,
    }
    (Path(folder) / "text.txt").write_bytes(sample_text())
    path, out = Path(folder) / "run.json", Path(tempfile.mkdtemp(dir=folder)) / "run"
    path.write_text(json.dumps(spec))
    subprocess.run([str(args.eps), "train", "--run", str(path), "--out", str(out), "--workers", "2", "--threads", "1",
                    "--quiet"], check=True, stdout=subprocess.DEVNULL)
    figures = summary(out)
    return {"tokens_per_second": figures["tokens_per_second"], **figures["wait_fraction"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in (("layers", 6), ("d-model", 384), ("context", 64), ("micro-batch", 2), ("steps", 20),
                        ("rounds", 5)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--eps", default=ROOT / "bin" / "eps", help="the program to run")
    args = parser.parse_args()
    rounds = {side: [] for side in SIDES}
    with tempfile.TemporaryDirectory(prefix="eps-bench-") as folder:
        for _ in range(args.rounds):
            for side in SIDES:
                rounds[side].append(run_eps(args, folder, side))
    causes = sorted({cause for figures in rounds.values() for one in figures for cause in one} - {"tokens_per_second"})
    result = {"name": "transport"}
    print(f"{'transport':<14} {'tokens/s':>9} {'waits':>7}  " + " ".join(f"{cause:>8}" for cause in causes))
    for side in SIDES:
        median = {key: statistics.median(one.get(key, 0) for one in rounds[side]) for key in ("tokens_per_second", *causes)}
        waits = statistics.median(sum(one.get(cause, 0) for cause in causes) for one in rounds[side])
        print(f"{side:<14} {median['tokens_per_second']:9.0f} {waits:7.3f}  "
              + " ".join(f"{median[cause]:8.3f}" for cause in causes))
        result[side.lower()] = {"wait_fraction": round(waits, 4), **{key: round(v, 4) for key, v in median.items()}}
    speeds = [b["tokens_per_second"] / a["tokens_per_second"] for a, b in zip(rounds["GRPC"], rounds["SHARED_MEMORY"])]
    result["ratio"] = round(statistics.median(speeds), 4)
    print(f"shared memory / gRPC, tokens per second: {result['ratio']:.3f}; round by round "
          + " ".join(f"{speed:.2f}" for speed in speeds))
    print(json.dumps(result))


if __name__ == "__main__":
    main()
