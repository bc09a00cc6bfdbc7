"""The conformance suite on a GPU, as it is and under compute-sanitizer: parts of tests/gpu/run."""

import glob
import os
import re
import shutil
import time
from dataclasses import dataclass, field

import processes
from gpu_machine import BIN
from part_report import Failed, Outcome

SUITE = BIN / "gpu_conformance"
DTYPES = ("Bf16", "Fp16", "Fp32", "Tf32")  # the names of its devices, in gpu_worker/device/cuda/gpu_conformance.cc
AGAIN_SECONDS = 10  # left, for what failed to be run once more

# Cases for compute-sanitizer, which is some hundred times slower: each of our kernels once, in bf16.
SANITIZED = ("ActivationBackwardAgrees*", "SwigluAndItsBackward*", "RmsNormAndItsBackward*", "RotaryAgrees*",
             "EmbeddingAndItsBackward*", "LayerNormAndItsBackward*", "CrossEntropyInChunks*", "ColumnSum*",
             "AttentionDrops*", "EachDropoutHas*", "DropoutOfAll*")
SANITIZED_FILTER = ":".join(f"*.{case}/Bf16" for case in SANITIZED)

# Libraries try what a machine may not have, on purpose: an error that a call returns is no finding. For races only our
# own kernels are looked at, which lie in the namespace eps: the libraries' take most of the time.
SANITIZER_OPTIONS = {"memcheck": ("--report-api-errors", "no"),
                     "racecheck": ("--kernel-name", "kernel_substring=eps")}
REFUSED = "Device not supported"


@dataclass
class CaseLog:
    """What a test program of GoogleTest has printed so far."""
    total: int = None  # of cases that it is to run; None before it says so
    passed: list = field(default_factory=list)
    failed: list = field(default_factory=list)
    skipped: list = field(default_factory=list)
    running: str = None  # begun, and not ended

    @staticmethod
    def of(text):
        named = lambda mark: list(dict.fromkeys(re.findall(rf"\[{mark}\] ([^\s,]+/\w+)", text)))  # noqa: E731
        total = re.search(r"Running (\d+) tests? from", text)
        log = CaseLog(int(total.group(1)) if total else None, named(" {7}OK "), named(" {2}FAILED {2}"),
                      named(" {2}SKIPPED "))
        ended = {*log.passed, *log.failed, *log.skipped}
        log.running = next((name for name in named(" RUN {6}") if name not in ended), None)
        return log

    def said(self):
        words = [f"{len(self.passed)} of {'?' if self.total is None else self.total} passed"]
        if self.skipped:
            words.append(f"{len(self.skipped)} skipped")
        if self.failed:
            words.append(f"{len(self.failed)} failed: {', '.join(map(short, self.failed))}")
        if self.running:
            words.append(f"{short(self.running)} was running")
        return ", ".join(words)


def short(case):
    """Without the suite's name."""
    return case.rpartition(".")[2]


def wait_for_all(started, deadline):
    """Ends those that are late; which did end by themselves."""
    ended = {name: process.wait(deadline) for name, process in started.items()}
    for process in started.values():
        process.end()
    return ended


def start_suite(dtype, log):
    log.unlink(missing_ok=True)
    return processes.Process([SUITE, f"--gtest_filter=*/{dtype}"], log=log)


def again_alone(cases, log, deadline):
    """How cases that failed beside other processes do without them."""
    log.unlink(missing_ok=True)
    with processes.Process([SUITE, f"--gtest_filter={':'.join(cases)}"], log=log) as process:
        process.wait(deadline)
    return f"once more, alone: {CaseLog.of(log.read_text(errors='replace')).said()}"


def conformance(out, deadline):
    """Each dtype's cases in a process of its own: what takes most of the time, plans of a library, is on the host."""
    logs = {dtype: out / f"conformance-{dtype}.log" for dtype in DTYPES}
    started = {}
    try:
        for dtype, log in logs.items():
            started[dtype] = start_suite(dtype, log)
        ended = wait_for_all(started, deadline)
    finally:
        for process in started.values():
            process.end()
    said, wrong, failed = [], False, []
    for dtype, process in started.items():
        text = logs[dtype].read_text(errors="replace")
        cases = CaseLog.of(text)
        failed += cases.failed
        words = f"{dtype}: {cases.said()}"
        if not ended[dtype]:
            words += f", ended after {time.monotonic() - process.began:.0f} s"
        elif process.returncode != 0 and not cases.failed:
            words += f", ended with {process.returncode}: ...{' '.join(text.split())[-300:]}"
        elif not cases.passed:
            words += ", no case is there"
        wrong = wrong or not ended[dtype] or process.returncode != 0 or not cases.passed
        said.append(words)
    if failed and deadline - time.monotonic() > AGAIN_SECONDS:
        said.append(again_alone(failed, out / "conformance-again.log", deadline))
    if wrong:
        raise Failed(f"{'; '.join(said)} (conformance-*.log)")
    return "; ".join(said)


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
