"""tests/gpu/run without a GPU: what its parts say of programs that pass, fail, hang or are not there, and whether the
bits of the emulated device are compared."""

import argparse
import contextlib
import dataclasses
import importlib.machinery
import importlib.util
import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from fnmatch import fnmatchcase
from unittest import mock

import eps_run
from eps_run import BIN, ROOT, SystemTest, alone, measures_the_process

os.environ.setdefault("EPS_BIN", str(BIN))  # or gpu_machine would choose
sys.path[:0] = [str(ROOT / folder) for folder in ("bench/gpu", "tests/gpu")]

import bits  # noqa: E402
import conformance  # noqa: E402
import gpu_machine  # noqa: E402
import part_report  # noqa: E402
import parts  # noqa: E402
import processes  # noqa: E402
from gpu_bench_stand_ins import Clock  # noqa: E402
from part_report import Failed, Outcome, Progress  # noqa: E402

DEVICE_SOURCES = ROOT / "gpu_worker/device"

# What gpu_conformance and compute-sanitizer print, in short.
SUITE = """#!/bin/bash
dtype="${1##*/}"
dtype="${dtype%%-*}"
[[ "$1" != *=\\*Spans* ]] || { echo "[==========] Running 1 test from 1 test suite."
  echo "[ RUN      ] Gpu/DeviceConformanceTest.SpansSay/Fp32"
  echo "[${TIMED_CASE:-       OK }] Gpu/DeviceConformanceTest.SpansSay/Fp32 (1 ms)"; exit ${TIMED_CODE:-0}; }
echo "[==========] Running 2 tests from 1 test suite."
echo "[ RUN      ] Gpu/DeviceConformanceTest.First/$dtype"
echo "[       OK ] Gpu/DeviceConformanceTest.First/$dtype (1 ms)"
echo "[ RUN      ] Gpu/DeviceConformanceTest.Second/$dtype"
"""
# Which of a dtype's processes it is.
SHARD = 'echo "shard $GTEST_SHARD_INDEX of $GTEST_TOTAL_SHARDS"\n'
SECOND_PASSES = 'echo "[       OK ] Gpu/DeviceConformanceTest.Second/$dtype (1 ms)"\n'
SANITIZER = """#!/bin/bash
tool="$2"
for last; do :; done
"""


def load_run():
    """tests/gpu/run, as a module."""
    loader = importlib.machinery.SourceFileLoader("gpu_run", str(ROOT / "tests/gpu/run"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("gpu_run", loader))
    loader.exec_module(module)
    return module


def soon(seconds):
    return time.monotonic() + seconds


class Scripts(SystemTest):
    def script(self, name, text):
        path = self.work.path / name
        path.write_text(text)
        path.chmod(0o755)
        return path


@alone
class ConformanceTest(Scripts):
    def conformance(self, suite, seconds=20, cores=4):
        with mock.patch.object(conformance, "SUITE", suite), \
                mock.patch.object(conformance.os, "sched_getaffinity", lambda _: range(cores)):
            return conformance.conformance(self.work.path, soon(seconds))

    def logs(self):
        return {path.name: path.read_text() for path in self.work.path.glob("conformance-*.log")}

    def test_cases_that_are_sanitized_are_there(self):
        names = [name for path in DEVICE_SOURCES.glob("*conformance*.cc")
                 for name in re.findall(r"^TEST_P\(DeviceConformanceTest, (\w+)\)", path.read_text(), re.M)]
        self.assertGreater(len(names), 50)
        for pattern in conformance.SANITIZED:
            case, _, dtype = pattern.rpartition("/")
            self.assertEqual(len([name for name in names if fnmatchcase(name, case)]), 1, pattern)
            self.assertIn(dtype, conformance.DTYPES)
        for kernel in ("ActivationBackward", "Swiglu", "RmsNorm", "Rotary", "EmbeddingAnd", "EmbeddingBackward",
                       "LayerNorm", "CrossEntropy", "ColumnSum", "Widen", "FinishLeafInto", "AddGradient"):
            self.assertIn(f"*.{kernel}", conformance.SANITIZED_FILTER)
        # Of our own kernels: in bf16 a library takes these.
        self.assertIn("*.AttentionDrops*/Fp32", conformance.SANITIZED_FILTER.split(":"))

    def test_dtypes_are_those_of_the_suite(self):
        text = (DEVICE_SOURCES / "cuda/gpu_conformance.cc").read_text()
        self.assertEqual(set(re.findall(r'ConformanceParam\{\s*"(\w+)"', text)), set(conformance.DTYPES))

    def test_all_cases_pass(self):
        outcome = self.conformance(self.script("suite", SUITE + SECOND_PASSES))
        self.assertEqual((outcome.state, outcome.said),
                         ("passed", "; ".join(f"{dtype}: 2 of 2 passed" for dtype in conformance.DTYPES)))
        self.assertIn("First/Fp16", self.logs()["conformance-Fp16.log"])

    def test_cores_bound_among_how_many_processes_cases_are_divided(self):
        for cores, dtypes_of_16_bits in ((1, 1), (5, 1), (6, 2), (9, 3), (16, 7), (128, 7)):
            self.assertEqual({dtype: conformance.shards(dtype, cores) for dtype in conformance.DTYPES},
                             {"Bf16": dtypes_of_16_bits, "Fp16": dtypes_of_16_bits, "Fp32": 1, "Tf32": 1}, cores)

    def test_what_the_processes_of_a_dtype_say_is_told_as_one(self):
        (self.work.path / "conformance-Bf16-4.log").write_text("an earlier report's")
        outcome = self.conformance(self.script("suite", SUITE + SECOND_PASSES + SHARD), cores=8)
        self.assertEqual(outcome.said, "Bf16: 6 of 6 passed; Fp16: 6 of 6 passed; Fp32: 2 of 2 passed; "
                                       "Tf32: 2 of 2 passed")
        logs = self.logs()
        self.assertEqual(set(logs), {f"conformance-{name}.log" for name in (
            "Bf16-1", "Bf16-2", "Bf16-3", "Fp16-1", "Fp16-2", "Fp16-3", "Fp32", "Tf32")})
        for number in range(3):
            self.assertIn(f"shard {number} of 3\n", logs[f"conformance-Fp16-{number + 1}.log"])
        self.assertIn("shard 0 of 1\n", logs["conformance-Fp32.log"])

    def test_a_case_that_hangs_is_named_with_those_that_passed(self):
        start = time.monotonic()
        suite = self.script("suite", SUITE + f'[ $dtype$GTEST_SHARD_INDEX = Fp160 ] && sleep 60\n{SECOND_PASSES}')
        outcome = self.conformance(suite, 2)
        self.assertEqual(outcome.state, "partly")
        self.assertRegex(outcome.said, "Fp16: 1 of 2 passed, Second/Fp16 was running, ended after [2-9] s")
        self.assertIn("Bf16: 2 of 2 passed", outcome.said)
        self.assertRegex(self.conformance(suite, 2, cores=6).said, "Fp16: 3 of 4 passed, Second/Fp16 was running, "
                                                                   "1 of 2 processes were ended after [2-9] s")
        self.assertLess(time.monotonic() - start, 30)

    FAILS = 'echo "[  FAILED  ] Gpu/DeviceConformanceTest.Second/$dtype, where GetParam() = $dtype"; exit 1\n'

    def test_a_case_that_fails_is_run_once_more_alone(self):
        with self.assertRaises(Failed) as raised:
            self.conformance(self.script("suite", f'{SUITE}[ $dtype = Tf32 ] || {{ {SECOND_PASSES} exit; }}\n'
                                                  f'{self.FAILS}'), cores=8)
        said = str(raised.exception)
        self.assertIn("Bf16: 6 of 6 passed", said)
        self.assertIn("Tf32: 1 of 2 passed, 1 failed: Second/Tf32", said)
        self.assertIn("once more, alone: 1 of 2 passed, 1 failed: Second/Tf32", said)
        self.assertNotIn("only beside", said)

    def test_a_case_that_fails_beside_others_and_passes_alone_is_no_failure(self):
        alone = '[[ "$1" != *Second/Tf32 ]] || '
        suite = self.script("suite", f'{SUITE}[ $dtype = Tf32 ] || {{ {SECOND_PASSES} exit; }}\n'
                                     f'{alone} {{ {SECOND_PASSES} exit; }}\n{self.FAILS}')
        outcome = self.conformance(suite)
        self.assertEqual(outcome.state, "partly")  # it may be a race
        self.assertIn("Tf32: 1 of 2 passed, 1 failed: Second/Tf32; ", outcome.said)
        self.assertIn("; once more, alone: 2 of 2 passed; failed only beside other processes: Second/Tf32",
                      outcome.said)
        # What ended it otherwise stays one.
        suite = self.script("suite", f'{SUITE}[ $dtype = Tf32 ] || {{ {SECOND_PASSES} exit; }}\n'
                                     f'{alone} {{ {SECOND_PASSES} exit; }}\n{self.FAILS.replace("exit 1", "exit 3")}')
        with self.assertRaisesRegex(Failed, "Second/Tf32, ended with 3: .*failed only beside other processes"):
            self.conformance(suite)
        # So does what ends it like a case that failed, but before its last case.
        suite = self.script("suite", f'{SUITE.replace("Running 2", "Running 9")}[ $dtype = Tf32 ] || '
                                     f'{{ {SECOND_PASSES} exit; }}\n{alone} {{ {SECOND_PASSES} exit; }}\n{self.FAILS}')
        with self.assertRaisesRegex(Failed, "ended with 1"):
            self.conformance(suite)
        # And what ends the run alone after its cases passed.
        suite = self.script("suite", f'{SUITE}[ $dtype = Tf32 ] || {{ {SECOND_PASSES} exit; }}\n'
                                     f'{alone} {{ {SECOND_PASSES} exit 7; }}\n{self.FAILS}')
        with self.assertRaisesRegex(Failed, "ended with 7"):
            self.conformance(suite)

    def timed(self, suite, seconds=20):
        with mock.patch.object(conformance, "SUITE", suite):
            return conformance.timed(self.work.path, soon(seconds))

    def test_what_compares_times_is_a_part_of_its_own(self):
        asked = self.work.path / "asked"
        suite = self.script("suite", SUITE.replace("\n", f'\necho "$1" >>{asked}\n', 1) + SECOND_PASSES)
        self.conformance(suite)
        lines = asked.read_text().splitlines()
        self.assertEqual(len(lines), len(conformance.DTYPES))
        for line in lines:
            self.assertRegex(line, r"^--gtest_filter=\*/\w+-\*Spans\*:\*Waits\*:\*AWait\*$")
        outcome = self.timed(suite)
        self.assertEqual((outcome.state, outcome.said), ("passed", "alone: 1 of 1 passed"))
        self.assertEqual(asked.read_text().splitlines()[len(lines):], ["--gtest_filter=*Spans*:*Waits*:*AWait*"])
        self.assertIn("SpansSay/Fp32", (self.work.path / "timed.log").read_text())
        names = [part.name for part in load_run().parts_of(argparse.Namespace(out=self.work.path, tiny=False), parts.Bench(
            self.work.path, "cuda:0", False, 0, 1, sys.executable)) if part.by_default]
        self.assertEqual(names[:3], ["conformance", "timed", "bits"])

    def test_a_case_that_compares_times_and_fails_twice_fails(self):
        with mock.patch.dict(os.environ, {"TIMED_CASE": "  FAILED  ", "TIMED_CODE": "1"}):
            with self.assertRaisesRegex(Failed, "^at first failed: SpansSay/Fp32; alone: 0 of 1 passed, 1 failed: "
                                                "SpansSay/Fp32 [(]timed-again.log[)]"):
                self.timed(self.script("suite", SUITE))
        with self.assertRaisesRegex(Failed, "^alone: 0 of [?] passed, ended with 3: .*[(]timed.log[)]"):
            self.timed(self.script("suite", "#!/bin/bash\nexit 3\n"))
        with self.assertRaisesRegex(Failed, "ended after"):
            self.timed(self.script("suite", "#!/bin/bash\nsleep 60\n"), 1)

    def test_a_case_that_compares_times_may_fail_once(self):
        (self.work.path / "timed-again.log").write_text("[  FAILED  ] an/earlier.Report/Fp32\n")
        suite = self.script("suite", f'#!/bin/bash\n[ -e {self.work.path}/second ] || {{ touch {self.work.path}/second\n'
                                     f'TIMED_CASE="  FAILED  "; TIMED_CODE=1; }}\n{SUITE}')
        outcome = self.timed(suite)
        self.assertEqual((outcome.state, outcome.said), ("passed", "at first failed: SpansSay/Fp32; alone: 1 of 1 passed"))

    def test_cases_that_compare_times_are_among_the_timed(self):
        bodies = {name: body for path in DEVICE_SOURCES.glob("*conformance*.cc")
                  for name, body in re.findall(r"^TEST_P\(DeviceConformanceTest, (\w+)\) {\n(.*?)^}", path.read_text(),
                                               re.M | re.S)}
        compares = {name for name, body in bodies.items() if re.search(r"TakeStats|steady_clock", body)}
        self.assertEqual(len(compares), 3)
        for name in compares:
            self.assertTrue(any(fnmatchcase(name, pattern) for pattern in conformance.TIMED), name)
        for pattern in conformance.TIMED:
            self.assertTrue(any(fnmatchcase(name, pattern) for name in compares), pattern)

    def test_a_case_that_fails_beside_one_that_hangs_fails(self):
        with self.assertRaisesRegex(Failed, "Fp16: 2 of 4 passed, 1 failed: Second/Fp16, Second/Fp16 was running, "
                                            "1 of 2 processes were ended after") as raised:
            self.conformance(self.script("suite", f'{SUITE}[ $dtype = Fp16 ] || {{ {SECOND_PASSES} exit; }}\n'
                                                  f'[ $GTEST_SHARD_INDEX = 1 ] && sleep 60\n{self.FAILS}'), 2, cores=6)
        self.assertNotIn("once more", str(raised.exception))  # no time is left

    def test_a_suite_that_dies_or_has_no_cases_or_is_not_there_fails(self):
        with self.assertRaisesRegex(Failed, r"Fp32: 1 of 2 passed, Second/Fp32 was running, ended with -?\d+: .*First"):
            self.conformance(self.script("suite", SUITE + "kill -SEGV $$\n"))
        with self.assertRaisesRegex(Failed, "no case is there"):
            self.conformance(self.script("suite", '#!/bin/bash\necho "[==========] Running 0 tests from 0 suites."\n'))
        with self.assertRaisesRegex(Failed, "Bf16: 0 of [?] passed, ended after"):
            self.conformance(self.script("suite", "#!/bin/bash\nsleep 60\n"), 1)
        with self.assertRaisesRegex(Failed, "cannot be started"):
            self.conformance(self.work.path / "nothing")


class SanitizerTest(Scripts):
    def sanitizer(self, tool, text, seconds=20):
        program = self.script("compute-sanitizer", SANITIZER + text)
        suite = self.script("suite", SUITE + SECOND_PASSES)
        with mock.patch.object(conformance, "SUITE", suite), \
                mock.patch.object(conformance, "find_sanitizer", lambda: str(program)):
            return conformance.sanitizer(tool, self.work.path, soon(seconds))

    def test_its_options_and_its_summary(self):
        text = (f'echo "$@" >>{self.work.path}/args\n{self.work.path}/suite "$last"\n'
                'echo "========= ERROR SUMMARY: 0 errors"\n')
        self.assertEqual(self.sanitizer("memcheck", text), "ERROR SUMMARY: 0 errors; 2 of 2 passed")
        self.sanitizer("racecheck", text)
        memcheck, racecheck = (self.work.path / "args").read_text().splitlines()
        self.assertIn("--tool memcheck --error-exitcode 9 --kernel-name kernel_substring=eps --report-api-errors no ", memcheck)
        self.assertIn("--kernel-name kernel_substring=eps ", racecheck)
        self.assertIn(":*.OneDocument*/Bf16:*.AttentionDrops*/Fp32:", racecheck)

    def test_without_a_filter_that_it_rejects(self):
        said = self.sanitizer("racecheck", 'case "$*" in *--kernel-name*) echo "unrecognised option"; exit 1;; esac\n'
                              f'{self.work.path}/suite "$last"\necho "========= RACECHECK SUMMARY: 0 hazards"\n')
        self.assertIn("RACECHECK SUMMARY: 0 hazards; 2 of 2 passed; without --kernel-name", said)
        self.assertIn("unrecognised option", said)

    def test_a_machine_that_refuses_it(self):
        outcome = self.sanitizer("memcheck", 'echo "========= Error: Device not supported"; exit 1\n')
        self.assertEqual(outcome.state, "skipped")

    def test_out_of_time_it_says_how_far_it_came(self):
        outcome = self.sanitizer("memcheck", f'{self.work.path}/suite "$last"\nsleep 60\n', 2)
        self.assertEqual((outcome.state, outcome.said), ("partly", "nothing found: 2 of 2 passed, when time was up"))
        found = "========= Invalid __global__ write of size 4 bytes"
        with self.assertRaisesRegex(Failed, "Invalid __global__ write of size 4 bytes; 2 of 2 passed"):
            self.sanitizer("memcheck", f'{self.work.path}/suite "$last"\necho "{found}"\nsleep 60\n', 2)

    def test_what_it_finds_fails(self):
        with self.assertRaisesRegex(Failed, "ended with 9: Error: Race reported"):
            self.sanitizer("racecheck", f'{self.work.path}/suite "$last"\n'
                           'echo "========= Error: Race reported between Write and Read"; exit 9\n')
        with self.assertRaisesRegex(Failed, "ran no case"):
            self.sanitizer("racecheck", 'echo "[==========]"; echo "========= RACECHECK SUMMARY: 0 hazards"\n')


class BitsTest(SystemTest):
    PLANNED = "... INFO attention_planned B=2 T=128\n"
    PLAIN = '... INFO attention_by_plain_kernel B=2 why="no engine"\n'
    FUSED, DROPPING = bits.Setting("BF16", "fused"), bits.Setting("BF16", "dropping")

    def test_fused_attention_is_seen_in_the_log(self):
        runs = bits.Runs("cuda:0", True, None, soon(1))
        self.addCleanup(runs.work.remove)
        relay, graphs = bits.WAYS[0], next(way for way in bits.WAYS if way.name == "graphs")
        runs.check_log(self.FUSED, relay, self.PLANNED)
        runs.check_log(bits.Setting("BF16", "plain"), relay, self.PLAIN)
        with self.assertRaisesRegex(Failed, "attention was fused"):
            runs.check_log(bits.Setting("BF16", "plain"), relay, self.PLANNED)
        used = "... INFO graphs_used graphs=2 nodes=9 launched=7 calls_spared=3\n"
        runs.check_log(self.FUSED, graphs, self.PLANNED + used)
        with self.assertRaisesRegex(Failed, "no graph was launched"):
            runs.check_log(self.FUSED, graphs, self.PLANNED)
        with self.assertRaisesRegex(Failed, "no graph was captured: \"not permitted\""):
            runs.check_log(self.FUSED, relay, self.PLANNED + '... WARNING graphs_not_used why="not permitted"\n')
        for log, why in ((self.PLAIN, "no engine"), (self.PLANNED + self.PLAIN, "no engine"), ("", "does not say why"),
                         ('... WARNING attention_is_plain_and_slow why="no cuDNN"\n', "no cuDNN")):
            with self.assertRaisesRegex(Failed, f"attention was not fused: .*{why}"):
                runs.check_log(self.FUSED, relay, log)
        with self.assertRaisesRegex(Failed, "attention was not fused: .*no engine"):
            runs.check_log(self.DROPPING, relay, self.PLAIN)
        runs.check_log(self.DROPPING, relay, '... INFO attention_by_plain_kernel B=2 why="dropout is not for the '
                       'library\'s deterministic backward of sm_10x"\n')
        with self.assertRaisesRegex(Failed, "memory_not_pinned: 1 times, 4096 bytes; the first: cost=slow"):
            runs.check_log(self.FUSED, relay, self.PLANNED + "... WARNING memory_not_pinned bytes=4096 cost=slow\n")

    def test_what_differs_fails_and_what_was_not_reached_does_not(self):
        want = bits.Got("hash", [3.0, 2.0])
        got = {(self.FUSED, "relay"): want, (self.FUSED, "kept"): bits.Got("hash", [3.0, 2.0]),
               (self.FUSED, "resident"): bits.Got(not_reached="it was over before")}
        outcome, wrong = bits.told([self.FUSED], got)
        self.assertFalse(wrong)
        self.assertEqual(outcome.state, "partly")
        self.assertIn("the same bits as by relay: BF16 fused kept. not reached: BF16 fused resident (it was over "
                      "before), depth first, graphs, two workers, killed and resumed", outcome.said)
        got[self.FUSED, "two workers"] = bits.Got("other", [3.0, 2.5])
        got[self.FUSED, "killed and resumed"] = bits.Got(failed="ended with 1")
        outcome, wrong = bits.told([self.FUSED], got)
        self.assertTrue(wrong)
        self.assertIn("two workers: other bits than by relay: the loss of step 1 is the first that differs",
                      outcome.said)
        self.assertIn("killed and resumed: ended with 1", outcome.said)
        self.assertEqual(outcome.tables[0].rows,
                         [["BF16 fused", "ran", "the same", "not reached", "not reached", "not reached", "OTHER BITS",
                           "failed"]])

    def test_a_run_hangs_only_where_others_have_ended_much_sooner(self):
        runs = bits.Runs("cuda:0", True, None, soon(10000))
        self.addCleanup(runs.work.remove)
        began = lambda ago: argparse.Namespace(began=time.monotonic() - ago)  # noqa: E731
        runs.check_time(began(9000))  # nothing is known of this machine
        runs.has_ended(2)
        runs.check_time(began(50))
        with self.assertRaisesRegex(Failed, "it hangs: ended after 61 s"):
            runs.check_time(began(61))
        runs.has_ended(100)
        runs.has_ended(3)
        runs.check_time(began(380))
        with self.assertRaisesRegex(Failed, "it hangs: ended after 401 s"):
            runs.check_time(began(401))
        runs.deadline = time.monotonic()
        with self.assertRaisesRegex(bits.NotReached, "no time was left"):
            runs.check_time(began(380))
        with self.assertRaisesRegex(Failed, "it hangs"):
            runs.check_time(began(401))
        runs.longest = None
        with self.assertRaises(bits.NotReached):
            runs.check_time(began(9000))

    def test_a_run_that_ends_tells_how_long_others_may_take(self):
        runs = bits.Runs("cuda:0", True, None, soon(60))
        self.addCleanup(runs.work.remove)
        with self.assertRaisesRegex(Failed, "ended with 7"):
            runs.run(["/bin/bash", "-c", "exit 7"])
        self.assertIsNone(runs.longest)
        runs.run(["/bin/true"])
        self.assertGreater(runs.longest, 0)
        with mock.patch.object(bits, "RUN_SECONDS", 0), mock.patch.object(bits, "LOOK_SECONDS", 0.01):
            with self.assertRaisesRegex(Failed, "it hangs"):
                runs.run(["/bin/sleep", "60"])

    def emulated(self):
        return mock.patch.object(eps_run, "EPS", self.emulated_eps())

    @measures_the_process
    def test_on_the_emulated_device(self):
        said = []
        progress = Progress()
        progress.changed = said.append
        with self.emulated():
            outcome = bits.bits("cuda:0", True, self.work.path / "runs.log", progress, soon(120), [self.DROPPING], 2)
        self.assertEqual(outcome.said, "the same bits as by relay: BF16 dropping kept, resident, depth first, graphs, "
                                       "two workers, killed and resumed")
        self.assertEqual((outcome.state, len(said)), ("passed", 7))
        self.assertIn("run_resumed", (self.work.path / "runs.log").read_text())

    @measures_the_process
    def test_it_keeps_to_its_time(self):
        with self.emulated():
            start = time.monotonic()
            outcome = bits.bits("cuda:0", False, None, Progress(), soon(6), [self.FUSED], 2)  # would take minutes
        self.assertLess(time.monotonic() - start, 15)
        self.assertEqual(outcome.state, "partly")
        self.assertEqual(outcome.said, "not reached: BF16 fused")


class MachineTest(Scripts):
    def test_libraries_of_wheels_come_last(self):
        site = self.work.path / "site"
        for name in ("cudnn", "cu13"):
            (site / f"nvidia/{name}/lib").mkdir(parents=True)
        python = self.script("python", f"#!/bin/bash\nPYTHONPATH={site} exec {sys.executable} \"$@\"\n")
        wheels = [str(site / "nvidia/cu13/lib"), str(site / "nvidia/cudnn/lib")]
        self.assertEqual(gpu_machine.wheel_folders([python]), wheels)
        with mock.patch.dict(os.environ, {"LD_LIBRARY_PATH": "/own/lib:/given"}), \
                mock.patch.object(gpu_machine, "system_folders", lambda: ["/system"]):
            gpu_machine.use_libraries_of(python)
            self.assertEqual(os.environ["LD_LIBRARY_PATH"].split(":")[:5], ["/own/lib", "/given", "/system", *wheels])
        self.assertEqual(gpu_machine.wheel_folders([self.work.path / "no-python"]), [])

    def test_the_newest_cudnn_comes_before_one_that_is_refused(self):
        def library(folder, version):
            (place := self.work.path / folder).mkdir(parents=True)
            source = f"#include <stddef.h>\nsize_t cudnnGetVersion(void) {{ return {version}; }}\n"
            subprocess.run(["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", place / "libcudnn.so.9"],
                           input=source, text=True, check=True)
            return str(place)

        old, good = library("old", 91400), library("good", 91501)
        wheel = library("nvidia/cudnn/lib", 91900)
        python = self.script("python", f"#!/bin/bash\nPYTHONPATH={self.work.path} exec {sys.executable} \"$@\"\n")
        self.assertEqual(gpu_machine.library_versions(["/none", old, wheel], "cuDNN"),
                         {old: (9, 14, 0), wheel: (9, 19, 0)})
        for system, expected in ((old, [wheel, old]), (good, [good, wheel])):
            with mock.patch.dict(os.environ, {"LD_LIBRARY_PATH": "/own/lib"}), \
                    mock.patch.object(gpu_machine, "system_folders", lambda: [system]):
                gpu_machine.use_libraries_of(python)
                self.assertEqual(os.environ["LD_LIBRARY_PATH"].split(":")[:3], ["/own/lib", *expected])

    def test_libraries_are_named_with_their_versions_or_why_not(self):
        self.assertEqual(set(gpu_machine.libraries()), set(gpu_machine.LIBRARIES))

    def test_the_memory_of_the_host_in_words(self):
        root = self.work.path / "root"
        files = {"proc/meminfo": "MemTotal:       4194304 kB\nMemFree:        1048576 kB\nHugePages_Total:       0\n",
                 "proc/sys/vm/overcommit_memory": "1\n",
                 "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n",
                 "sys/kernel/mm/transparent_hugepage/shmem_enabled": "always within_size [advise] never deny force\n"}
        for name, text in files.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
        said = gpu_machine.memory(128 << 30, root)
        self.assertEqual(said, {
            "MemTotal": "4.0 GiB", "MemFree": "1.0 GiB",
            "memory grows on demand": "it seems: MemTotal is far below --host-memory, 128.0 GiB",
            "vm.overcommit_memory": "1", "transparent_hugepage": "madvise",
            "transparent_hugepage of shared memory": "advise"})
        self.assertEqual(gpu_machine.memory(4 << 30, root)["memory grows on demand"], "not seen")
        self.assertEqual(gpu_machine.memory(128 << 30, root / "nowhere"), {})

    def test_a_cap_of_what_is_free(self):
        bench = parts.Bench(self.work.path, "cuda:0", False, 0, 1, sys.executable)
        for free, cap, said in ((79 << 30, int(0.95 * (79 << 30)), "cap 75 GiB (0.95 of 79.0 GiB that are free)"),
                                (139 << 30, 80 << 30, "cap 80 GiB (139.0 GiB that are free)"),
                                (None, 80 << 30, "cap 80 GiB (what is free is not known)")):
            with mock.patch.object(gpu_machine, "free_device_bytes", lambda _, free=free: free):
                self.assertEqual(bench.largest_cap(80 << 30), (cap, said))

    def test_the_gpu_that_cuda_sees_is_asked_of_nvidia_smi(self):
        with mock.patch.dict(os.environ, {"CUDA_VISIBLE_DEVICES": "3, GPU-8d1f"}):
            self.assertEqual([gpu_machine.name_of_gpu(index) for index in range(3)], ["3", "GPU-8d1f", ""])
        with mock.patch.dict(os.environ, {"CUDA_VISIBLE_DEVICES": ""}):
            self.assertEqual(gpu_machine.name_of_gpu(1), "1")

    def test_a_probe_that_cannot_run(self):
        with mock.patch.object(gpu_machine, "BIN", self.work.path):
            with self.assertRaisesRegex(gpu_machine.CannotRun, "gpu_worker is not there"):
                gpu_machine.probe("cuda:0")
            self.script("gpu_worker", "#!/bin/bash\necho 'a GPU'; echo 'T WARNING attention_is_plain why=x' >&2\n")
            self.assertEqual(gpu_machine.probe("cuda:0"), ("a GPU", ["attention_is_plain why=x"]))
            self.script("gpu_worker", "#!/bin/bash\nsleep 60\n")
            with mock.patch.object(gpu_machine, "PROBE_SECONDS", 0.5):
                with self.assertRaisesRegex(gpu_machine.CannotRun, "was ended after"):
                    gpu_machine.probe("cuda:0")


class ProcessesTest(Scripts):
    def test_what_a_process_started_ends_with_it(self):
        """As `eps train` starts its own: each leads a process group, and one does not listen."""
        program = self.script("program", f"#!/bin/bash\nset -m\n(trap '' TERM HUP INT; exec sleep 60) &\n"
                                         f"echo $! >{self.work.path}/pid\nwait\n")
        with self.assertRaises(processes.OutOfTime):
            processes.run([program], soon(1))
        child = int((self.work.path / "pid").read_text())
        self.gone([child], timeout=5)

    def test_a_child_that_is_left_holds_nobody_up(self):
        start = time.monotonic()
        done = processes.run(["/bin/bash", "-c", "sleep 60 & echo said"], soon(30))
        self.assertEqual((done.returncode, done.stdout), (0, "said\n"))
        self.assertLess(time.monotonic() - start, 10)


class RunTest(Scripts):
    def test_what_runs_by_default_ends_within_eight_minutes(self):
        run = load_run()
        args = argparse.Namespace(out=self.work.path, tiny=False)
        planned = run.parts_of(args, parts.Bench(self.work.path, "cuda:0", False, 0, 1, sys.executable))
        seconds = sum(part.about_seconds for part in planned if part.by_default)
        self.assertLessEqual(seconds + run.START_SECONDS, run.MOST_SECONDS)
        self.assertLess(run.MOST_SECONDS, 8 * 60)

    def states(self, seconds, takes):
        """Of parts that take so long, or what they are given, where the first one begins after START_SECONDS."""
        run, clock = load_run(), Clock()
        args = argparse.Namespace(out=self.work.path, tiny=False)
        by_name = {part.name: part for part in run.parts_of(
            args, parts.Bench(self.work.path, "cuda:0", False, 0, 1, sys.executable))}

        def stand_in(name):
            def take(deadline):
                clock.now = min(clock.now + takes[name], deadline)
                return Outcome("done")
            return dataclasses.replace(by_name[name], run=take)

        report, began = part_report.Report(self.work.out("report"), "a GPU", {}), clock.now
        clock.now += run.START_SECONDS
        with mock.patch.object(part_report, "time", clock), contextlib.redirect_stdout(io.StringIO()):
            part_report.run_parts([stand_in(name) for name in takes], report, seconds, began)
        return {name: part["state"] for name, part in report.parts.items()}, clock.now - began

    def test_what_is_prepared_for_a_short_session_begins(self):
        """docs/gpu-results.md has these calls, and what parts are thought to take."""
        thought = {"timed": 8, "ceilings": 28, "bert-large": 95, "gpt-7b": 85, "gpt-7b-80gib": 60, "largest": 90,
                   "gpt-1.3b": 120}
        for slow in ({}, {"timed": 10, "gpt-7b": 125}, {"gpt-7b-80gib": 80, "largest": 110}):
            states, _ = self.states(520, {**thought, **slow})
            self.assertEqual(set(states.values()), {"passed"}, (slow, states))
        states, _ = self.states(520, {**thought, "gpt-7b": 125, "gpt-7b-80gib": 80, "largest": 110})
        self.assertEqual([name for name, state in states.items() if state == "skipped"], ["gpt-1.3b"])
        states, took = self.states(95, {"memcheck": 1000})
        self.assertEqual((states, took), ({"memcheck": "passed"}, 20 + 50))
        states, _ = self.states(180, {"exact-bits": 66, "memory": 125})
        self.assertEqual(set(states.values()), {"passed"})

    @measures_the_process
    def test_a_signal_leaves_a_report_and_no_process(self):
        out = self.work.out("report")
        process = subprocess.Popen([str(ROOT / "bench/gpu/run"), "--device", "cpu", "--tiny", "--out", str(out),
                                    "--python", "/usr/bin/python3"], stdout=subprocess.PIPE, text=True)
        self.addCleanup(process.kill)
        timer = threading.Timer(60, process.kill)
        timer.start()
        for line in process.stdout:
            if line.startswith("ceilings: "):
                break
        deadline, workers = soon(30), []
        while not workers and time.monotonic() < deadline:
            for eps in eps_run.children(process.pid, "eps"):
                workers = [pid for pid in processes.in_session(eps) if pid != eps][1:]
            time.sleep(0.01)
        self.assertTrue(workers)
        process.send_signal(signal.SIGTERM)
        said = process.stdout.read()
        self.assertEqual(process.wait(30), 1)
        timer.cancel()
        process.stdout.close()
        self.gone(workers, timeout=5)
        states = {name: part["state"] for name, part in json.loads((out / "report.json").read_text())["parts"].items()}
        self.assertEqual(states["ceilings"], "passed")
        self.assertEqual(states["bert-large"], "interrupted")
        self.assertEqual(states["gpt-1.3b"], "not reached")
        self.assertIn("| bert-large | interrupted | SIGTERM", (out / "report.md").read_text())
        self.assertIn("1 passed, 2 failed", said)
