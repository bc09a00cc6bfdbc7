#!/usr/bin/python3
"""MB/s of text that becomes tokens: ours with one thread and with all, and Hugging Face's two implementations from npm
with one, in turn. Prints a table and, last, one JSON line."""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests" / "harness"), str(ROOT / "tests" / "tokenizers")]

import corpus  # noqa: E402
import npm_packages  # noqa: E402
import records  # noqa: E402

SIDES = {"ours": "ours, 1 thread", "ours_all": "ours, all threads", "native": "Rust, 1 thread", "js": "JavaScript"}


class Side:
    """A process that encodes all documents once for each line that it is given, and answers with its seconds."""

    def __init__(self, command, cwd=None, env=None):
        self.process = subprocess.Popen([str(word) for word in command], cwd=cwd, env=env, text=True,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def round(self, line):
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise OSError(f"{self.process.args} ended with {self.process.wait()}")
        return json.loads(answer)

    def end(self):
        self.process.stdin.close()
        self.process.wait()


def measure(args, tokenizer, documents):
    theirs = ["node", npm_packages.HERE / "reference.mjs"]
    # Theirs would use threads of its own.
    one_thread = {**os.environ, "TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1"}
    ours = Side([args.program, tokenizer, documents])
    others = {name: Side([*theirs, name, tokenizer, "serve", documents], npm_packages.FOLDER, one_thread)
              for name in ("native", "js")}
    turns = {"ours": lambda: ours.round(1), "ours_all": lambda: ours.round(args.threads),
             "native": lambda: others["native"].round(1), "js": lambda: others["js"].round(1)}
    rounds = {name: [] for name in turns}
    ids = {}
    for i in range(args.rounds + 1):
        for name, turn in turns.items():
            answer = turn()
            ids[name] = answer["ids"]
            if i > 0:  # the first one warms up
                rounds[name].append(answer["seconds"])
    for side in (ours, *others.values()):
        side.end()
    if len(set(ids.values())) != 1:
        print(f"note: the sides disagree about how many tokens there are: {ids}", file=sys.stderr)
    return {name: statistics.median(seconds) for name, seconds in rounds.items()}, ids["ours"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", type=Path, required=True, help="tokenizer_bench, as Bazel builds it")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="of ours, all of them")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--models", nargs="+", default=["gpt2", "llama3", "qwen3"])
    args = parser.parse_args()
    why_not = npm_packages.install()
    if why_not:
        print(f"tokenizer_bench: nothing to compare with: {why_not}", file=sys.stderr)
        return 77
    texts = corpus.bible()[::10] + corpus.own_sources()[::10] + corpus.scripts(seed=1, num_bytes_each=2000)
    megabytes = sum(len(records.as_bytes(text)) for text in texts) / 1e6
    result = {"name": "tokenizer", "megabytes": round(megabytes, 2), "threads": args.threads, "models": {}}
    print(f"{'MB/s of ' + format(megabytes, '.1f') + ' MB':<18}" + "".join(f"{title:>20}" for title in SIDES.values())
          + f"{'ours / JavaScript':>20}{'ours / Rust':>14}")
    with tempfile.TemporaryDirectory(prefix="eps-bench-") as folder:
        documents = Path(folder) / "documents"
        records.write_documents(documents, texts)
        for model in args.models:
            tokenizer = npm_packages.gpt2() if model == "gpt2" else npm_packages.carried(model)
            seconds, ids = measure(args, tokenizer, documents)
            speed = {name: megabytes / each for name, each in seconds.items()}
            ratios = {"ratio": speed["ours"] / speed["js"], "ratio_native": speed["ours"] / speed["native"]}
            print(f"{model:<18}" + "".join(f"{speed[name]:20.2f}" for name in SIDES)
                  + f"{ratios['ratio']:20.1f}{ratios['ratio_native']:14.1f}")
            result["models"][model] = {"tokens": ids, **{f"{name}_mb_per_s": round(each, 3) for name, each in speed.items()},
                                       **{name: round(each, 3) for name, each in ratios.items()}}
    result["ratio"] = min(each["ratio"] for each in result["models"].values())
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
