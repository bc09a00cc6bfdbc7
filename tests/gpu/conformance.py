"""The conformance suite on a GPU, as it is and under compute-sanitizer: parts of tests/gpu/run."""

import glob
import os
import re
import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path

import processes
from gpu_machine import BIN
from part_report import Failed, Outcome

SUITE = BIN / "gpu_conformance"
# The names of its devices, in gpu_worker/device/cuda/gpu_conformance.cc, and among how many processes the cases of each
# are divided where there are cores: cuDNN makes some hundred plans for those of 16 bits, at 0.5 to 1 s of a core each.
DTYPES = {"Bf16": 7, "Fp16": 7, "Fp32": 1, "Tf32": 1}
# Cases of all devices that compare times, which whatever runs beside them changes: a part of their own, run alone.
TIMED = ("*Spans*", "*Waits*", "*AWait*")
ALONE_SECONDS = 10  # left, for cases to be run alone
AGAIN_WITH = 1.5  # times what the timed ones took, to be run again
SOME_FAILED = 1  # GoogleTest's exit code

# Cases for compute-sanitizer, which is some hundred times slower: each of our kernels once. In bf16, but for attention,
# which is ours alone in fp32 and, as no library takes heads of 20, in the case of one document. What we make for a library's
# attention, its masks, is in the case of documents and dropout.
SANITIZED = ("DocumentsAndDropout*/Bf16", "OneDocument*/Bf16", "AttentionDrops*/Fp32", "HeadsOfQueries*/Fp32",
             "WidenIs*/Bf16", "FinishLeafInto*/Bf16", "AddGradient*/Bf16", "EmbeddingAndItsBackward*/Bf16",
             "EmbeddingBackwardAdds*/Bf16", "LayerNormAndItsBackward*/Bf16", "RmsNormAndItsBackward*/Bf16",
             "SwigluAndItsBackward*/Bf16", "RotaryAgrees*/Bf16", "ActivationBackwardAgrees*/Bf16",
             "RouteAndItsBackward*/Bf16", "LogitsThatAreNotFinite*/Bf16", "RowsAreGathered*/Bf16",
             "ExpertMatMul*/Bf16", "ExpertGradient*/Bf16", "ExpertMatMul*/Fp32", "ExpertGradient*/Fp32",
             "EachDropoutHas*/Bf16", "DropoutOfAll*/Bf16", "ColumnSum*/Bf16", "CrossEntropyInChunks*/Bf16")
SANITIZED_FILTER = ":".join(f"*.{case}" for case in SANITIZED)

# Only our own kernels are looked at, which lie in the namespace eps: the libraries' take most of the time. Libraries try
# what a machine may not have, on purpose: an error that a call returns is no finding.
OURS = ("--kernel-name", "kernel_substring=eps")
SANITIZER_OPTIONS = {"memcheck": (*OURS, "--report-api-errors", "no"), "racecheck": OURS}
REFUSED = "Device not supported"


@dataclass
class CaseLog:
    """What a test program of GoogleTest has printed so far."""
    total: int = None  # of cases that it is to run; None before it says so
    passed: list = field(default_factory=list)
    failed: list = field(default_factory=list)
    skipped: list = field(default_factory=list)
    running: list = field(default_factory=list)  # begun, and not ended

    @staticmethod
    def of(text):
        named = lambda mark: list(dict.fromkeys(re.findall(rf"\[{mark}\] ([^\s,]+/\w+)", text)))  # noqa: E731
        total = re.search(r"Running (\d+) tests? from", text)
        log = CaseLog(int(total.group(1)) if total else None, named(" {7}OK "), named(" {2}FAILED {2}"),
                      named(" {2}SKIPPED "))
        ended = {*log.passed, *log.failed, *log.skipped}
        log.running = [name for name in named(" RUN {6}") if name not in ended]
        return log

    @staticmethod
    def merged(logs):
        """Of processes that share the cases."""
        totals = [log.total for log in logs]
        lists = {name: [case for log in logs for case in getattr(log, name)]
                 for name in ("passed", "failed", "skipped", "running")}
        return CaseLog(None if None in totals else sum(totals), **lists)

    def is_whole(self):
        return self.total == len(self.passed) + len(self.failed) + len(self.skipped)

    def said(self):
        words = [f"{len(self.passed)} of {'?' if self.total is None else self.total} passed"]
        if self.skipped:
            words.append(f"{len(self.skipped)} skipped")
        if self.failed:
            words.append(f"{len(self.failed)} failed: {', '.join(map(short, self.failed))}")
        if self.running:
            words.append(f"{', '.join(map(short, self.running))} {'was' if len(self.running) == 1 else 'were'} running")
        return ", ".join(words)


def short(case):
    """Without the suite's name."""
    return case.rpartition(".")[2]


def shards(dtype, cores):
    """How many processes share its cases."""
    alone = sum(most == 1 for most in DTYPES.values())
    return max(1, min(DTYPES[dtype], (cores - alone) // (len(DTYPES) - alone)))


@dataclass
class Shard:
    """A process that runs its share of a dtype's cases."""
    process: processes.Process
    log: Path
    ended: bool = False  # by itself

    def end(self, deadline):
        self.ended = self.process.wait(deadline)
        self.seconds = time.monotonic() - self.process.began

    def text(self):
        return self.log.read_text(errors="replace")

    def died(self):
        """In words, if it ended otherwise than with cases that passed or failed."""
        if not self.ended or self.process.returncode == 0:
            return ""
        cases = CaseLog.of(self.text())
        if self.process.returncode == SOME_FAILED and cases.failed and cases.is_whole():
            return ""
        return f"ended with {self.process.returncode}: ...{' '.join(self.text().split())[-300:]}"


def start_suite(dtype, out, started):
    """Adds to `started` as they start, for whoever has to end them."""
    count = shards(dtype, len(os.sched_getaffinity(0)))
    for i in range(count):
        log = out / f"conformance-{dtype}{f'-{i + 1}' if count > 1 else ''}.log"
        env = {**os.environ, "GTEST_TOTAL_SHARDS": str(count), "GTEST_SHARD_INDEX": str(i)}
        command = [SUITE, f"--gtest_filter=*/{dtype}-{':'.join(TIMED)}"]
        started.append(Shard(processes.Process(command, log=log, env=env), log))


def has_time(deadline):
    return deadline - time.monotonic() > ALONE_SECONDS


def run_alone(cases, log, deadline):
    """Those of these names or patterns, beside no other process."""
    with processes.Process([SUITE, f"--gtest_filter={':'.join(cases)}"], log=log) as process:
        shard = Shard(process, log)
        shard.end(deadline)
    return shard


def told(name, started):
    """Of the processes that share cases: in words, the cases, and whether anything but a case that failed is wrong."""
    cases = CaseLog.merged([CaseLog.of(shard.text()) for shard in started])
    died, late = list(filter(None, (shard.died() for shard in started))), [each for each in started if not each.ended]
    words = [f"{name}: {cases.said()}", *died]
    if late:
        which = f"{len(late)} of {len(started)} processes were " if len(started) > 1 else ""
        words.append(f"{which}ended after {max(shard.seconds for shard in late):.0f} s")
    elif not cases.total and not died:
        words.append("no case is there")
    return ", ".join(words), cases, bool(died or not (cases.passed or cases.failed))


def conformance(out, deadline):
    """Each dtype's cases in processes of their own: what takes most of the time, plans of a library, is on the host. Then
    alone what failed: a case that fails beside others and not alone is no failure. Without what compares times."""
    for old in out.glob("conformance-*.log"):  # an earlier report's, perhaps of other shards
        old.unlink()
    started = {dtype: [] for dtype in DTYPES}
    try:
        for dtype, those in started.items():
            start_suite(dtype, out, those)
        for shard in sum(started.values(), []):
            shard.end(deadline)
    finally:
        for shard in sum(started.values(), []):
            shard.process.end()
    said, cases, wrong = map(list, zip(*(told(dtype, those) for dtype, those in started.items())))
    failed = {case for log in cases for case in log.failed}
    ended = all(shard.ended for shard in sum(started.values(), []))
    if failed and has_time(deadline):
        alone = run_alone(sorted(failed), out / "conformance-again.log", deadline)
        words, again, died = told("once more, alone", [alone])
        said.append(words)
        if by_load := failed.intersection(() if died else again.passed):
            said.append(f"failed only beside other processes: {', '.join(map(short, sorted(by_load)))}")
            failed -= by_load
            ended = False  # what compares no times and fails beside others may be a race
    if failed or any(wrong):
        raise Failed(f"{'; '.join(said)} (conformance-*.log)")
    return Outcome("; ".join(said), state="passed" if ended else "partly")


def timed(out, deadline):
    """What compares times: nothing else is to run beside it."""
    logs, said = [out / f"timed{again}.log" for again in ("", "-again")], []
    for log in logs:
        log.unlink(missing_ok=True)  # an earlier report's
    shard = run_alone(TIMED, logs[0], deadline)
    if (late := CaseLog.of(shard.text()).failed) and deadline - time.monotonic() > AGAIN_WITH * shard.seconds:
        said.append(f"at first failed: {', '.join(map(short, late))}")  # whatever else kept the machine busy
        shard = run_alone(TIMED, logs[1], deadline)
    words, cases, wrong = told("alone", [shard])
    said.append(words)
    if cases.failed or wrong:
        raise Failed(f"{'; '.join(said)} ({shard.log.name})")
    return Outcome("; ".join(said), state="passed" if shard.ended else "partly")


# ---- Under compute-sanitizer ----

def find_sanitizer():
    """On PATH, or in a toolkit that is not."""
    toolkits = [f"/usr/local/cuda*/{folder}/compute-sanitizer" for folder in ("bin", "compute-sanitizer")]
    there = [shutil.which("compute-sanitizer"), *(file for pattern in toolkits for file in sorted(glob.glob(pattern)))]
    return next((file for file in there if file and os.access(file, os.X_OK)), None)


def found_by_sanitizer(text):
    """The first of its findings; "" if it has none so far."""
    found = re.search(r"^========= +((?:Invalid|Misaligned|Error|Warning: Race|Race|Program hit|Out-of-range).*)", text,
                      re.M)
    return found.group(1) if found else ""


def run_sanitizer(program, tool, options, log, deadline):
    """Whether it ended by itself, its exit code, and what it said."""
    log.unlink(missing_ok=True)
    command = [program, "--tool", tool, "--error-exitcode", "9", *options, SUITE, f"--gtest_filter={SANITIZED_FILTER}"]
    with processes.Process(command, log=log) as process:
        ended = process.wait(deadline)
        return ended, process.returncode, log.read_text(errors="replace")


def sanitizer(tool, out, deadline):
    program = find_sanitizer()
    if program is None:
        return Outcome("compute-sanitizer is not here", state="skipped")
    if not SUITE.exists():
        raise Failed(f"{SUITE} is not there")
    log, options = out / f"{tool}.log", SANITIZER_OPTIONS[tool]
    note = ""
    ended, code, text = run_sanitizer(program, tool, options, log, deadline)
    if ended and code != 0 and "[==========]" not in text and REFUSED not in text:
        why = " ".join(text.split())[:200]
        note = f"; without {' '.join(options)}, with which it did not start: {why}"
        ended, code, text = run_sanitizer(program, tool, (), log, deadline)
    if REFUSED in text:
        return Outcome(f"refused by this machine: {REFUSED}", state="skipped")
    cases, found = CaseLog.of(text), found_by_sanitizer(text)
    if not ended:
        said = f"{cases.said()}, when time was up{note}"
        if found or cases.failed or not cases.passed:
            raise Failed(f"{found + '; ' if found else ''}{said} ({log.name})")
        return Outcome(f"nothing found: {said}", state="partly")
    if code != 0:
        raise Failed(f"ended with {code}: {found or text.strip()[-300:]}; {cases.said()}{note} ({log.name})")
    summaries = re.findall(r"(?:ERROR|RACECHECK) SUMMARY: .*", text)
    if not summaries or not cases.passed:
        raise Failed(f"says no summary, or ran no case: {cases.said()}{note} ({log.name})")
    return f"{summaries[-1]}; {cases.said()}{note}"
