#!/usr/bin/python3
"""Predicted against measured steps under caps of device memory, and the planner's choice against fixed ones.

At each of five caps, from the smallest that every side fits into to all that the plan can use, with one worker:

  planned    what the planner chooses of keeping, swapping and recomputing
  swap       every inner activation is swapped
  recompute  every block is recomputed
  second     every second block is swapped, the others are recomputed

In each round a profile is measured before each cap (`eps profile`), then all sides under it, in fresh processes, with plans made
from that profile. Figures are medians over rounds of `step_seconds` in each run's summary.json (its median step, and the predicted
one). KARMA's question, redundant recompute with swapping against swapping alone, is the column `side / planned` of the side swap.
Ratios are of these medians; `by round` is the median of the rounds' own ratios, of runs that are within a minute of each other:
the two differ where the machine's speed changes meanwhile.
What others, the host included, took of the processors is said of each round. --svg draws the curve. Last, one JSON line.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import curve_svg
import train_bench
from quiet import Others
from train_bench import EPS, SHAPE

FRACTIONS = (0, 0.2, 0.4, 0.7, 1)  # of the way from the smallest cap to the largest
SIDES = {"planned": "AUTO", "swap": "SWAP", "recompute": "RECOMPUTE", "second": "SWAP"}
AMPLE = 1 << 40  # bytes of host memory: not what bounds


def eps(*args):
    return subprocess.run([str(EPS), *map(str, args)], check=True, capture_output=True, text=True).stdout


def write_spec(args, folder):
    if not args.text:
        from eps_run import sample_text
        args.text = str(Path(folder) / "text.txt")
        Path(args.text).write_bytes(sample_text(1_000_000))
    path = Path(folder) / "run.json"
    path.write_text(json.dumps(train_bench.run_spec(args)))
    return path


def plan(args, spec, inner, host_memory, cap=None):
    return json.loads(eps("plan", "--run", spec, "--threads", args.threads, "--set", f"relay.inner={inner}", "--json",
                          "--host-memory", host_memory, *(["--device-memory", cap] if cap else [])))


def fits(args, spec, inner, cap):
    try:
        plan(args, spec, inner, AMPLE, cap)
    except subprocess.CalledProcessError as refused:
        if refused.returncode == 3:
            return False
        raise
    return True


def choose_caps(args, spec):
    planned = plan(args, spec, "AUTO", AMPLE)["device"]
    low, high = planned["smallest_cap_bytes"], planned["arena_bytes"]
    too_small = low - 1
    if not fits(args, spec, "SWAP", low):  # swapping may need a slot more
        too_small, low = low, high
    while low - too_small > 4096:
        middle = (low + too_small) // 2
        if fits(args, spec, "SWAP", middle):
            low = middle
        else:
            too_small = middle
    return [round(low + fraction * (high - low)) for fraction in FRACTIONS]


def host_memory(args, spec, side, cap):
    """Of the side that swaps every second block: boundaries, and half of the others."""
    if side != "second":
        return AMPLE
    needed = plan(args, spec, "SWAP", AMPLE, cap)["worker_host"]
    return needed["boundary_bytes"] + needed["inner_bytes"] // 2


def measure(args, folder, spec, profile, side, cap):
    out = Path(tempfile.mkdtemp(dir=folder)) / "run"
    eps("train", "--run", spec, "--out", out, "--threads", args.threads, "--quiet", "--profile", profile,
        "--device-memory", cap, "--host-memory", host_memory(args, spec, side, cap), "--set", f"relay.inner={SIDES[side]}")
    seconds = json.loads((out / "summary.json").read_text())["step_seconds"]
    return seconds["median"], seconds["predicted"]


def one_round(args, folder, spec, caps, number):
    others = Others()
    profile = Path(folder) / "profile.json"
    times = {}
    for i, cap in enumerate(caps):
        eps("profile", "--run", spec, "--threads", args.threads, "--out", profile)
        sides = list(SIDES)
        for at in range(len(sides)):
            side = sides[(at + number) % len(sides)]  # nobody is always the first after the profile
            times[i, side] = measure(args, folder, spec, profile, side, cap)
    share = others.share()
    print(f"  round {number + 1}: others took {100 * share:.0f}% of the processors", file=sys.stderr, flush=True)
    return share, times


def median_ratio(numerators, denominators):
    return statistics.median(a / b for a, b in zip(numerators, denominators))


def summarize(caps, rounds):
    rows = []
    for i, cap in enumerate(caps):
        row = {"cap_bytes": cap}
        for side in SIDES:
            measured, predicted = ([times[i, side][k] for _, times in rounds] for k in (0, 1))
            planned = [times[i, "planned"][0] for _, times in rounds]
            row[side] = {"measured": statistics.median(measured), "predicted": statistics.median(predicted),
                         "spread": [min(measured), max(measured)],
                         "predicted_to_measured_by_round": median_ratio(predicted, measured),
                         "to_planned_by_round": median_ratio(measured, planned)}
        rows.append(row)
    return rows


def print_table(rows):
    print(f"  {'cap':>10}  {'side':<10} {'measured, s':>12} {'spread':>18} {'predicted, s':>13} "
          f"{'p / m':>6} {'by round':>9} {'side / planned':>15} {'by round':>9}")
    for row in rows:
        for side in SIDES:
            times = row[side]
            print(f"  {row['cap_bytes'] / 2**20:6.1f} MiB  {side:<10} {times['measured']:12.3f} "
                  f"{times['spread'][0]:9.3f}..{times['spread'][1]:.3f} {times['predicted']:13.3f} "
                  f"{times['predicted'] / times['measured']:6.3f} {times['predicted_to_measured_by_round']:9.3f} "
                  f"{times['measured'] / row['planned']['measured']:15.3f} {times['to_planned_by_round']:9.3f}")


def draw(path, args, rows):
    names = {"planned": "planned", "swap": "swap all", "recompute": "recompute all", "second": "every second"}
    lines = []
    for side, name in names.items():
        lines.append(curve_svg.Line(name, [(row["cap_bytes"] / 2**20, row[side]["measured"], *row[side]["spread"])
                                           for row in rows]))
    lines.append(curve_svg.Line("planned, predicted", [(row["cap_bytes"] / 2**20, row["planned"]["predicted"])
                                                       for row in rows], dashed=True))
    title = f"{args.layers} layers, {args.d_model} wide, batch {args.batch}, {args.threads} threads: step time against the cap"
    Path(path).write_text(curve_svg.draw(title, "device memory, MiB", "seconds of a step", lines))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    # Of seven steps the first two touch memory for the first time: the median is one of the others.
    for key, value in {**SHAPE, "batch": 8, "micro-batch": 2, "steps": 7}.items():
        parser.add_argument(f"--{key}", type=int, default=value)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--text", default="")
    parser.add_argument("--svg", default="", help="draws the curve into this file")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="eps-bench-") as folder:
        spec = write_spec(args, folder)
        caps = choose_caps(args, spec)
        rounds = []
        while len(rounds) < args.rounds:
            rounds.append(one_round(args, folder, spec, caps, len(rounds)))
    rows = summarize(caps, rounds)
    print(f"caps: {args.layers} layers, {args.d_model} wide, {args.context} tokens, batch {args.batch} in micro-batches of "
          f"{args.micro_batch}, fp32, {args.threads} threads, medians of {len(rounds)} rounds, in which others took "
          f"{' '.join(f'{100 * share:.0f}%' for share, _ in rounds)} of the processors")
    print_table(rows)
    if args.svg:
        draw(args.svg, args, rows)
    print(json.dumps({"name": "caps", "others": [round(share, 4) for share, _ in rounds], "rows": rows}))


if __name__ == "__main__":
    main()
