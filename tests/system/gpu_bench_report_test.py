"""What bench/gpu/run reports of its parts, and what it records beside them: the GPU's clock, each kernel."""

import contextlib
import io
import json
import os
import signal
import sys
import time
from unittest import mock

import eps_run
from eps_run import BIN, ROOT, SystemTest

os.environ.setdefault("EPS_BIN", str(BIN))  # or gpu_machine would choose
sys.path.insert(0, str(ROOT / "bench/gpu"))

import clocks  # noqa: E402
import gpu_machine  # noqa: E402
import kernel_times  # noqa: E402
import part_report  # noqa: E402
from models import Batch  # noqa: E402
from part_report import Failed, Outcome, Part, Progress, Table  # noqa: E402


class ClocksTest(SystemTest):
    SMI = """#!/bin/bash
query="$1"
for last; do :; done
[ -z "$REFUSED" ] || ! grep -qE "$REFUSED" <<<"$query" || { echo 'Field "x" is not a valid field to query.'; exit 2; }
echo "$@" >>"$SAID"
[ "$last" = 500 ] || { grep -q reasons <<<"$query" && echo "1980, 70.5, 40, 0x0" || echo "1980, 70.5, 40"; exit; }
echo $$ >"$SAID.pid"
exec sleep 600
"""
    SAMPLES = ("345, 70.00, 40, 0x0000000000000001\n1980, 400.00, 50, 0x0000000000000000\n1410, 699.50, 61, "
               "0x0000000000000024\n1755, [N/A], 60, 0x0000000000000204\nNVIDIA-SMI says, something, else\n1700, 5\n")

    @contextlib.contextmanager
    def nvidia_smi(self, refused=""):
        programs = self.work.path / "programs"
        programs.mkdir(exist_ok=True)
        (programs / "nvidia-smi").write_text(self.SMI)
        (programs / "nvidia-smi").chmod(0o755)
        env = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "SAID": str(self.work.path / "said"),
               "REFUSED": refused}
        (self.work.path / "said").unlink(missing_ok=True)
        with mock.patch.dict(os.environ, env), mock.patch.object(gpu_machine, "OWN_ENVIRONMENT", env):
            yield

    def test_samples_in_figures(self):
        self.assertEqual(clocks.figures_of(self.SAMPLES.split("\n")), {
            "samples": 4, "sm_mhz": 1755, "least_sm_mhz": 1410, "most_watts": 699.5, "most_degrees": 61,
            "reasons": ["idle", "power cap", "heat", "0x200"]})
        without = clocks.figures_of(["1980, 400.00, 50", "345, 90, 40"])
        self.assertEqual((without["sm_mhz"], without["least_sm_mhz"], without["reasons"]), (1162.5, 345, []))
        self.assertEqual(clocks.figures_of(["[N/A], [N/A], [N/A]"]), {})
        idle = clocks.figures_of(["345, [N/A], 40, 0x1"])
        self.assertEqual((idle["samples"], idle["sm_mhz"], idle["most_watts"], idle["reasons"]), (1, None, None, ["idle"]))

    def sampled(self, runs):
        report = part_report.Report(self.work.out("report"), "a GPU", {})
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()), \
                clocks.Clocks("cuda:0", report.out) as sampled:
            part_report.run_parts([sampled.beside(Part(name, run, 1), report) for name, run in runs.items()], report, 0)
        return json.loads((report.out / "report.json").read_text())["parts"], (report.out / "report.md").read_text()

    def test_each_part_has_what_was_sampled_while_it_ran(self):
        def samples(text, outcome="done"):
            def part(_):
                with open(self.work.out("report") / clocks.SAMPLES, "a") as file:
                    file.write(text)
                if isinstance(outcome, Exception):
                    raise outcome
                return outcome
            return part

        with self.nvidia_smi():
            parts, text = self.sampled({
                "first": samples("1980, 400, 50, 0x0\n1970, 3"), "second": samples("00, 50, 0x4\n1410, 700, 60, 0x4\n"),
                "fails": samples("1200, 1, 1, 0x0\n", Failed("too slow", Outcome("", figures={"speed": 1}))),
                "breaks": samples("1100, 1, 1, 0x0\n", ValueError("odd")), "nothing": samples("")})
        clock = lambda name: parts[name]["clocks"]  # noqa: E731
        self.assertEqual((clock("first")["samples"], clock("first")["sm_mhz"]), (1, 1980))
        self.assertEqual((clock("second")["least_sm_mhz"], clock("second")["reasons"]), (1410, ["power cap"]))
        self.assertEqual([parts["fails"][name] for name in ("state", "said", "speed")], ["failed", "too slow", 1])
        self.assertEqual(clock("fails")["sm_mhz"], 1200)
        self.assertIn("ValueError: odd", parts["breaks"]["said"])
        self.assertEqual(clock("nothing"), {})
        self.assertEqual(text.count("## The GPU's clock while parts ran"), 1)
        for row in ("| first | 1 | 1,980 | 1,980 | 400 | 50 |  |", "| breaks | 1 | 1,100 | 1,100 | 1 | 1 |  |"):
            self.assertIn(row, text)

    def test_its_process_ends_whatever_ends_the_parts(self):
        told = self.work.path / "said.pid"
        for error in (KeyboardInterrupt, part_report.Interrupted, None):
            told.unlink(missing_ok=True)
            with self.nvidia_smi(), contextlib.suppress(*filter(None, [error])):
                with clocks.Clocks("cuda:0", self.work.path) as sampled:
                    self.assertTrue(sampled.samples)
                    deadline = time.monotonic() + 30
                    while not told.exists() or not told.read_text().endswith("\n"):
                        self.assertLess(time.monotonic(), deadline)
                        time.sleep(0.01)
                    pid = int(told.read_text())
                    self.assertTrue(eps_run.alive(pid))
                    if error:
                        raise error
            self.gone([pid], timeout=5)

    def test_a_field_that_is_unknown_is_done_without(self):
        fields = "clocks.sm,power.draw,temperature.gpu"
        for refused, asked in (("", f"{fields},clocks_event_reasons.active"),
                               ("clocks_event", f"{fields},clocks_throttle_reasons.active"), ("_reasons", fields)):
            with self.nvidia_smi(refused):
                with clocks.Clocks("cuda:0", self.work.path) as sampled:
                    self.assertTrue(sampled.samples)
            self.assertIn(f"--query-gpu={asked} --format=csv,noheader,nounits --id=0",
                          (self.work.path / "said").read_text().splitlines()[0])
        part = Part("part", None, 1)
        for device, refused in (("cuda:0", "clocks"), ("cpu", "")):
            with self.nvidia_smi(refused), clocks.Clocks(device, self.work.path) as sampled:
                self.assertIs(sampled.beside(part, None), part)


class KernelTimesTest(SystemTest):
    """Of what libkernel_times.so leaves: two steps of 10 us, and another process's."""

    NORM = "_ZN3eps6worker4cuda49_GLOBAL__N__599a64fe_16_layer_norm_cu_cc_ef722b1a15LayerNormKernelINS1_7RowCodeEEEvlfPKT"
    ACTIVATE = "_ZN3eps6worker4cuda12_GLOBAL__N_114ActivateKernelINS1_7ActBf16EEEvPKT_"

    def folder(self, lines):
        folder = self.work.path / "kernels"
        folder.mkdir(exist_ok=True)
        (folder / "7.tsv").write_text("".join(f"{line}\n" for line in lines) + "kernel\t99000\t9")  # cut short
        (folder / "1.tsv").write_text("")
        return folder

    def test_a_step_kernel_by_kernel(self):
        lines = ["# something was refused"]
        for begin in (0, 10_000):
            lines += [f"kernel\t{begin}\t{begin + 4000}\t13\t0\t{self.NORM}",
                      f"copy_in\t{begin}\t{begin + 1000}\t14\t50000\t",
                      f"kernel\t{begin + 5000}\t{begin + 7000}\t13\t0\tnvjet_sm90",
                      f"kernel\t{begin + 5000}\t{begin + 5500}\t15\t0\tof another stream"]
        works = kernel_times.read(self.folder(lines))
        self.assertEqual(len(works), 8)
        self.assertEqual(len(kernel_times.steps_of(works, 9e-6)), 4)
        table, said = kernel_times.table("", works, 2, 20e-6)
        rows = {row[0]: row[1:] for row in table.rows}
        self.assertEqual([round(value, 6) for value in rows["LayerNormKernel"]], [1, 0.004, 4, 0.4])
        self.assertEqual([round(value, 6) for value in rows["nvjet_sm90"]], [1, 0.002, 2, 0.2])
        self.assertEqual(round(rows["no kernel: between launches"][3], 6), 0.25)  # of 1, 3 and 1 us
        self.assertEqual(round(rows["no kernel: waits of over 0.1 ms"][3], 6), 0.15)
        self.assertEqual(rows["copies in, beside them: 50.0 GB/s while copied"][0], 1)
        self.assertEqual(said, "no kernel runs for 25.0% between launches, and 15.0% in waits")

    def test_names_without_what_surrounds_them(self):
        names = kernel_times.demangled([self.ACTIVATE, "cudnn_generated_0"])
        self.assertEqual(kernel_times.short(names[self.ACTIVATE]), "ActivateKernel")
        self.assertEqual(kernel_times.short(self.NORM), "LayerNormKernel")
        self.assertEqual(kernel_times.short("void cutlass::Kernel2<cutlass_75_x>(cutlass_75_x::Params)"), "cutlass_75_x")
        self.assertEqual(kernel_times.short("void cudnn::fusion::matmul_dq<true, 64>(void const*, int)"), "matmul_dq")

    def test_no_records_say_why(self):
        for lines, why in ((["# libcupti.so of CUDA 13 cannot be loaded"], "libcupti.so of CUDA 13 cannot be loaded"),
                           ([], "the file is empty")):
            with self.assertRaisesRegex(Failed, why):
                kernel_times.read(self.folder(lines))
        with self.assertRaisesRegex(Failed, "no process left"):
            kernel_times.read(self.work.path / "not-there")

    def test_only_what_is_started_within_is_recorded(self):
        with mock.patch.dict(os.environ, {"CUDA_INJECTION64_PATH": "/another.so"}):
            with kernel_times.recorded("/own.so", self.work.path / "recorded"):
                self.assertEqual(os.environ["CUDA_INJECTION64_PATH"], "/own.so")
                self.assertEqual(os.environ["EPS_KERNEL_TIMES"], str(self.work.path / "recorded"))
            self.assertEqual(os.environ["CUDA_INJECTION64_PATH"], "/another.so")
            self.assertNotIn("EPS_KERNEL_TIMES", os.environ)


class PartReportTest(SystemTest):
    def run_parts(self, parts, seconds):
        report = part_report.Report(self.work.out("report"), "a device", {"cores": 2})
        with contextlib.redirect_stdout(io.StringIO()) as said:
            failed = part_report.run_parts(parts, report, seconds)
        return failed, json.loads((self.work.out("report") / "report.json").read_text())["parts"], said.getvalue()

    def test_what_there_is_no_time_for_is_left_out(self):
        both = [Part("short", lambda _: "done", 1), Part("long", lambda _: "done", 100)]
        failed, parts, said = self.run_parts(both, 50)
        self.assertEqual((failed, parts["short"]["state"], parts["long"]["state"]), (0, "passed", "skipped"))
        self.assertIn("1 passed, 0 failed, 1 skipped", said)

    def test_a_part_is_told_until_when_it_may_run(self):
        until = []
        part = Part("part", lambda deadline: until.append(deadline - time.monotonic()) or "done", 10)
        self.run_parts([part], 1000)
        self.run_parts([part], 15)
        self.run_parts([part], 0)
        self.assertAlmostEqual(until[0], 25, delta=1)
        self.assertAlmostEqual(until[1], 15, delta=1)
        self.assertGreater(until[2], 1e6)

    def test_a_part_keeps_out_of_the_time_of_those_behind_it(self):
        until = []
        told = lambda deadline: until.append(deadline - time.monotonic()) or "done"  # noqa: E731
        self.run_parts([Part("first", told, 10), Part("last", told, 80)], 100)
        self.assertAlmostEqual(until[0], 20, delta=1)
        self.assertAlmostEqual(until[1], 100, delta=1)

    def test_a_part_that_has_pieces_begins_with_less_time(self):
        _, parts, said = self.run_parts([Part("whole", lambda _: "done", 100),
                                         Part("pieces", lambda _: Outcome("one", state="partly"), 100, in_pieces=True)],
                                        50)
        self.assertEqual((parts["whole"]["state"], parts["pieces"]["state"]), ("skipped", "partly"))
        self.assertIn("partly: pieces\n1 passed, 0 failed, 1 skipped", said)
        self.assertIn("planned: whole 100 s, pieces 100 s; 200 s, and 50 s are left", said)

    def test_the_report_is_there_while_parts_run(self):
        seen, progress = [], Progress()

        def look(_):
            progress.say("half | of\nit")
            seen.append(json.loads((self.work.out("report") / "report.json").read_text())["parts"])
            seen.append((self.work.out("report") / "report.md").read_text())
            return "done"

        self.run_parts([Part("first", lambda _: Outcome("done", figures={"odd": Batch}), 1),
                        Part("second", look, 1, progress=progress)], 0)
        self.assertEqual({name: part["state"] for name, part in seen[0].items()},
                         {"first": "passed", "second": "running"})
        self.assertIn("| second | running | half \\| of it |", seen[1])

    def test_an_interrupted_part_says_what_it_had(self):
        progress = Progress()

        def interrupted(_):
            progress.say("half of it")
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(5)

        parts = [Part("first", lambda _: "done", 1), Part("second", interrupted, 1, progress=progress),
                 Part("third", lambda _: "done", 1)]
        with part_report.signals_interrupt():
            failed, said, _ = self.run_parts(parts, 0)
        self.assertEqual(failed, 2)
        self.assertEqual([part["state"] for part in said.values()], ["passed", "interrupted", "not reached"])
        self.assertEqual(said["second"]["said"], "SIGTERM: half of it")
        self.assertNotEqual(signal.getsignal(signal.SIGTERM), signal.SIG_IGN)

    def test_a_report_that_cannot_be_written_ends_nothing(self):
        report = part_report.Report(self.work.out("report"), "a device", {})
        report.out = self.work.path / "nowhere"
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as said:
            self.assertEqual(part_report.run_parts([Part("part", lambda _: "done", 1)], report, 0), 0)
        self.assertIn("nowhere", said.getvalue())

    def test_a_part_that_fails_keeps_what_it_found(self):
        def fail(_):
            raise Failed("too slow", Outcome("", [Table("Speeds", ["a"], [[1.5]])], {"speed": 1.5}))

        with contextlib.redirect_stderr(io.StringIO()):
            failed, parts, _ = self.run_parts([Part("part", fail, 1), Part("other", lambda _: 1 / 0, 1)], 0)
        self.assertEqual(failed, 2)
        self.assertEqual((parts["part"]["state"], parts["part"]["speed"]), ("failed", 1.5))
        self.assertEqual(parts["part"]["said"], "too slow")
        self.assertIn("ZeroDivisionError", parts["other"]["said"])
        self.assertIn("## Speeds\n\n| a |\n| --- |\n| 1.5 |\n", (self.work.out("report") / "report.md").read_text())
