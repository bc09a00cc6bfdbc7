"""bench/gpu/run on a processor: its parts run and say what they are to say, and its arithmetic is the programs'."""

import json
import os
import signal
import statistics
import sys
import time
import unittest
from unittest import mock

import eps_run
from eps_run import BIN, ROOT, SANITIZER, ByHandTest, SystemTest, long, measures_the_process, run

os.environ.setdefault("EPS_BIN", str(BIN))  # or gpu_machine would choose
sys.path.insert(0, str(ROOT / "bench/gpu"))

import command  # noqa: E402
import eps_side  # noqa: E402
import gpu_machine  # noqa: E402
import models  # noqa: E402
import part_report  # noqa: E402
import parts  # noqa: E402
import processes  # noqa: E402
import tables  # noqa: E402
from gpu_bench_stand_ins import SMALL, Clock  # noqa: E402
from models import Batch, Ceilings, Model  # noqa: E402
from part_report import Failed, Outcome, Part, Table  # noqa: E402

# Of a machine that never was: what is measured on a GPU alone is to be reported all the same.
CEILINGS = {"links": {"copies": [{"memory": "registered", "piece_bytes": 1 << 25, "in_gb_per_second": 50,
                                  "out_gb_per_second": 50, "both_in_gb_per_second": 40, "both_out_gb_per_second": 40}],
                      "peak_bf16_tflops": 2},
            "update": {"parameters": 1000, "update_seconds": 0.5, "floor_seconds": 0.25, "ratio": 0.5,
                       "bf16_moments_update_seconds": 0.4, "bf16_moments_floor_seconds": 0.2,
                       "bf16_moments_ratio": 0.5, "fp8_moments_update_seconds": 0.4, "fp8_moments_floor_seconds": 0.1,
                       "fp8_moments_ratio": 0.25}}


class GpuBenchTest(SystemTest):
    @long  # beside others: it looks at no time, and passed where it took twice as long as alone
    @unittest.skipIf(SANITIZER, f"{SANITIZER} takes time of its own")
    def test_every_part_runs_and_is_reported(self):
        report = self.work.out("report")
        known = self.work.path / "known.json"
        known.write_text(json.dumps({"parts": {"ceilings": CEILINGS}}))
        done = run([str(ROOT / "bench/gpu/run"), "--device", "cpu", "--tiny", "--long", "--out", str(report),
                    "--ceilings", str(known), "--python", "/usr/bin/python3"], env={**os.environ, "EPS_BIN": str(BIN)})
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(json.loads(done.stdout.splitlines()[-1])["name"], "gpu")
        said = json.loads((report / "report.json").read_text())
        self.assertIn("cpu", said["device"])
        # No PyTorch compiles on a processor here: there is no best to compare with.
        compares = ("bert-large", "gpt-1.3b", "bert-large-every-way", "gpt-1.3b-every-way", "memory")
        states = {name: part["state"] for name, part in said["parts"].items()}
        self.assertEqual(states, {name: states[name] if name in compares else "passed" for name in states}, said["parts"])
        self.assertLessEqual({states[name] for name in compares}, {"passed", "partly"})
        self.assertEqual(len(said["parts"]["gpt-7b"]["points"]), 5)
        for point in said["parts"]["gpt-7b"]["points"].values():
            self.assertGreater(point["utilisation"], 0)
            self.assertGreater(min(point["floors"].values()), 0)
        for name in ("bert-large", "gpt-1.3b"):
            self.assertGreater(said["parts"][name]["relay_to_resident"], 0)
            self.assertGreater(said["parts"][name]["relay_to_resident_with_4_micro_batches"], 0)
            for micro_batches in (8, 4):
                self.assertIn(f"512 tokens a step in {micro_batches} micro-batches: relay in",
                              said["parts"][name]["said"])
        kept = said["parts"]["gpt-7b-80gib"]
        self.assertEqual(kept["kept"]["recomputed"], 0)
        self.assertIn(" bounds it, ", kept["said"])
        self.assertRegex(kept["said"], r"pushes [\d.]+ GB/s while they are copied, [\d.]+ of the link, [\d.]+ GB/s")
        # Of each shape one, measured once; plans and runs take it.
        plan = kept["kept"]["plan"]
        profile, seconds = plan["from"].split(", measured in ")
        larger = profile.replace("micro-batch-2", "micro-batch-4")  # of where these are compared
        self.assertEqual({path.name for path in report.glob("profile-*")}, {profile, larger})
        self.assertEqual({row["plan"]["from"] for row in said["parts"]["gpt-7b"]["points"].values()},
                         {f"{profile}, measured in {seconds}"})
        self.assertEqual((plan["depth_first_blocks"], plan["kept"], plan["swapped"], plan["recomputed"]),
                         (0, 3 * 16, 0, 0) if kept["way"] == "all kept" else (3, 0, 0, 0))
        self.assertIn("predicted below", (report / "gpt-7b-80gib.svg").read_text())
        self.assertIn("GiB", said["machine"]["MemTotal"])
        self.assertRegex(said["parts"]["largest"]["said"], "8 layers, .* 3 steps, the last in [0-9.]+ s, loss ")
        self.assertEqual(said["parts"]["largest"]["largest"]["plan"]["from"], "nominal figures")
        text = (report / "report.md").read_text()
        for table in said["tables"]:
            self.assertIn(table["title"], text)
        self.assertIn("## Copies between host and device within a step", text)

    def test_parameters_are_those_of_the_plan(self):
        place = eps_side.Place(self.work.path, "cuda", self.work.path / "tokens.bin")
        for model in (models.BERT_LARGE, models.GPT_1B, models.GPT_7B, SMALL):
            planned, _ = eps_side.plan(place, model, Batch(1, 1))
            self.assertEqual(planned["parameters"], model.parameters, model.name)

    def test_the_host_s_bytes_are_counted_once(self):
        """What is pinned is the worker's and the daemon's already: 7 B and 65,536 tokens a step fit 128 GiB."""
        place = eps_side.Place(self.work.path, "cuda", self.work.path / "tokens.bin")
        batch = Batch(8, 4)
        planned, why = eps_side.plan(place, models.GPT_7B, batch, cap=16 << 30)
        self.assertIsNotNone(planned, why)
        self.assertEqual(batch.tokens(models.GPT_7B), 65536)
        self.assertGreater(planned["worker_host"]["pinned_bytes"], 0)
        self.assertLess(planned["host_total_bytes"], 124 << 30)

    def test_a_plan_that_does_not_fit_says_why(self):
        place = eps_side.Place(self.work.path, "cuda", self.work.path / "tokens.bin")
        planned, why = eps_side.plan(place, models.GPT_7B, Batch(1, 1), cap=1 << 20)
        self.assertIsNone(planned)
        self.assertIn("needs at least", why)

    def test_operations_and_bounds(self):
        model = Model("", layers=2, d=8, heads=2, context=4, vocab=16)
        products = 2 * 12 * 64 + 16 * 8
        self.assertEqual(models.model_operations(model, 10), 10 * (6 * products + 6 * 2 * 4 * 8))
        forward = 10 * 2 * (2 * 12 * 64 + 2 * 4 * 8)
        self.assertEqual(models.executed_operations(model, 10, 0.5), models.model_operations(model, 10) + forward / 2)
        ceilings = Ceilings.of(CEILINGS["links"], CEILINGS["update"])
        self.assertEqual((ceilings.flops, ceilings.in_bytes, ceilings.in_alone_bytes), (2e12, 40e9, 50e9))
        self.assertEqual((ceilings.parameters_updated, ceilings.dram_bytes), (2000, 112000))
        floors = models.floor_seconds(model, Batch(1, 1), 0, ceilings, models.pulled_bytes(model))
        self.assertEqual(floors["compute"], models.model_operations(model, 4) / 2e12)
        self.assertEqual(floors["update"], model.parameters / 2000)
        self.assertEqual(set(models.floor_seconds(model, Batch(1, 1), 0, Ceilings(), 1).values()), {None})
        self.assertEqual((ceilings.out_bytes, ceilings.out_alone_bytes), (40e9, 50e9))
        pulled = models.pulled_bytes(model)
        moved = models.floor_seconds(model, Batch(1, 1), 0, ceilings, pulled, host_boundaries=0, swapped_bytes=1000)
        self.assertAlmostEqual(moved["in"], (pulled + 1000) / 40e9)
        self.assertAlmostEqual(moved["out"], (models.pushed_bytes(model) + 1000) / 40e9)
        self.assertAlmostEqual((floors["in"] - moved["in"]) * 40e9, 3 * 2 * 4 * 8 * 2 - 1000)  # boundaries
        waiting = 2 * 2 * 16 * 8  # the head's gradient of the table, read and written once more
        self.assertAlmostEqual(floors["host"] * 112000, pulled + models.pushed_bytes(model) + waiting
                               + 5 * 2 * 4 * 8 * 2 + models.update_bytes(model))

    def test_what_bounds_a_step_is_told_beside_what_was_measured(self):
        got = {"step_seconds": 4.0, "utilisation": 0.25, "tokens_per_step": 8, "copies": {}, "pulled_bytes": 10**9,
               "floors": {"compute": 1.0, "in": 0.5, "out": None, "update": 2.0, "host": 1.5}}
        self.assertEqual(tables.limits_said(got),
                         "a step takes 4 s, and its parts alone compute 1, in 0.5, update 2, host 1.5 s: update bounds "
                         "it, 0.50 of what it allows is reached, which is 50.0% of the bf16 peak")
        self.assertIn("not known", tables.limits_said({**got, "floors": {"compute": None}}))
        ceilings = Ceilings(in_alone_bytes=50e9, out_alone_bytes=40e9)
        said = tables.copies_said(SMALL, {**got, "copies": {"pull": {"bytes_per_step": 4e9, "bytes_per_second": 45e9}}},
                                  ceilings)
        self.assertIn("pulls 45.0 GB/s while they are copied, 0.90 of the link (goal 0.9), ", said)
        self.assertRegex(said, "; pushes [0-9.]+ GB/s over the whole step$")  # no trace has them
        table = tables.copies_table({"a run": {**got, "copies": {
            "pull": {"bytes_per_step": 4e9, "bytes_per_second": 45e9},
            "store_inner": {"bytes_per_step": 8e9, "bytes_per_second": 20e9}}}}, ceilings)
        self.assertEqual(table.rows, [["a run", "pull", "in", 4.0, 45.0, 0.9, 1.0],
                                      ["a run", "store_inner", "out", 8.0, 20.0, 0.5, 2.0]])

    def test_ceilings_as_tables(self):
        links = {**CEILINGS["links"], "device_copy_gb_per_second": 4000.0, "register_seconds_per_gb": 0.25,
                 "register_in_pieces_seconds_per_gb": 0.5,
                 "products": [{"form": "NN", "M": 8192, "N": 8192, "K": 8192, "tflops": 700.0},
                              {"form": "NN", "M": 8192, "N": 8192, "K": 8192, "algorithm": "fastest of 8",
                               "tflops": 710.0}]}
        copies, products = map(part_report.markdown_table, tables.link_tables(links))
        self.assertIn("| registered | 32 | 50 | 50 | 40 | 40 |", copies)
        self.assertIn("0.250 s a GB at once", copies)
        self.assertIn("| NN | 8,192 | 8,192 | 8,192 | first | 700 |", products)
        self.assertIn("| NN | 8,192 | 8,192 | 8,192 | fastest of 8 | 710 |", products)

    def measure_ceilings(self, script, seconds=20):
        """Of a gpu_ceilings that is a script."""
        program = self.work.path / "gpu_ceilings"
        program.write_text(f"#!/bin/bash\n{script}")
        program.chmod(0o755)
        bench = parts.Bench(self.work.path, "cuda:0", True, 0, 1, sys.executable)
        with mock.patch.object(eps_run, "BIN", self.work.path):  # which has no update_bench
            return bench, bench.measure_ceilings(time.monotonic() + seconds)

    PRODUCTS = {"products": [{"form": "NN", "M": 8192, "N": 8192, "K": 8192, "tflops": 700.0}],
                "peak_bf16_tflops": 700.0, "copies": [], "not_measured": {}}

    def test_ceilings_that_are_cut_leave_what_was_measured(self):
        said = json.dumps(self.PRODUCTS)
        bench, outcome = self.measure_ceilings(f"echo 'a GPU'; echo '{said}'; echo '{{\"products\": ['; sleep 60\n", 3)
        self.assertEqual((outcome.state, bench.ceilings.flops), ("partly", 700e12))
        self.assertIn("bf16 products 700 TFLOP/s; not measured: the rest: no time was left", outcome.said)
        copies, products = map(part_report.markdown_table, outcome.tables)
        self.assertIn("Not measured: the rest: no time was left", copies)
        self.assertIn("| NN | 8,192 | 8,192 | 8,192 | first | 700 |", products)
        self.assertIsNone(bench.ceilings.in_bytes)
        with self.assertRaisesRegex(Failed, "gpu_ceilings was ended after"):
            self.measure_ceilings("sleep 60\n", 1)

    def test_ceilings_that_a_machine_refuses_are_told(self):
        links = {**self.PRODUCTS, **CEILINGS["links"],
                 "not_measured": {"registering": "cudaHostRegister: not supported"}}
        bench, outcome = self.measure_ceilings(f"echo '{json.dumps(links)}'\n")
        self.assertEqual((outcome.state, bench.ceilings.in_bytes), ("partly", 40e9))
        self.assertIn("; not measured: registering: cudaHostRegister: not supported", outcome.said)
        with self.assertRaisesRegex(Failed, "gpu_ceilings ended with 3: broken; bf16 products 2 TFLOP/s") as raised:
            self.measure_ceilings(f"echo '{json.dumps(links)}'; echo broken >&2; exit 3\n")
        self.assertEqual(len(raised.exception.outcome.tables), 2)
        with self.assertRaisesRegex(Failed, "gpu_ceilings says nothing"):
            self.measure_ceilings("echo 'a GPU'\n")
        update = part_report.markdown_table(tables.update_table({**CEILINGS["update"], "threads": 2}))
        self.assertIn("0.500 of the byte floor, with bf16 moments 0.500 (goal 0.85), with fp8 moments 0.250", update)
        self.assertIn("update, bf16 moments", update)

    def test_the_update_is_held_against_its_goal(self):
        program = self.work.path / "update_bench"
        said = {**CEILINGS["update"], "threads": 2, "ratio": 0.85}
        program.write_text(f"#!/bin/bash\necho \"$@\" >{self.work.path}/args\necho '{json.dumps(said)}'\n")
        program.chmod(0o755)
        bench = parts.Bench(self.work.path, "cpu", False, 0, 1, sys.executable)
        with mock.patch.object(eps_run, "BIN", self.work.path):
            outcome = bench.measure_ceilings(time.monotonic() + 60)
        self.assertIn("0.85 of its byte floor (goal 0.85);", outcome.said)
        self.assertIn("--millions 80", (self.work.path / "args").read_text())
        bench.update["ratio"] = 0.84
        with mock.patch.object(eps_run, "BIN", self.work.path / "none"):
            self.assertIn("0.84 of its byte floor (goal 0.85: MISSED)", bench.measure_ceilings(time.monotonic() + 9).said)

    def test_a_goal_is_told_with_whether_it_was_reached(self):
        self.assertEqual(tables.goal(0.95, 0.95), "(goal 0.95)")
        self.assertEqual(tables.goal(0.94, 0.95), "(goal 0.95: MISSED)")
        self.assertEqual(tables.goal(0.94, 0.95, tolerance=0.02), "(goal 0.95)")
        self.assertEqual(tables.goal(0.04, below=0.05), "(goal below 5%)")
        self.assertEqual(tables.goal(0.05, below=0.05), "(goal below 5%: MISSED)")

    def test_pytorch_is_its_best_only_where_a_compiled_way_ran(self):
        ran, none = {"variant": "eager", "tokens_per_second": 20.0}, {"error": "left out: no time"}
        ratios = {"relay_to_torch": 0.9}
        for variants, told in (({"eager": ran, "compiled": none}, False), ({"eager": ran, "compiled+cudnn": ran}, True),
                               ({"eager+checkpoint": ran}, False), ({"compiled": ran}, True)):
            said = "; ".join(tables.compared(SMALL, {}, ran, ratios, {"variants": variants}))
            self.assertEqual("(goal 1: MISSED)" in said, told, said)
            self.assertEqual("not compared with PyTorch's best" in said, not told, said)
            self.assertIn("the fastest relay 0.900 of PyTorch's ", said)

    def test_cudnn_comes_first_wherever_pytorch_is_compared_with(self):
        given = []
        bench = parts.Bench(self.work.path, "cuda:0", False, 0, 1, sys.executable)
        with mock.patch.object(bench, "compare", lambda model, forms, cap, variants: given.append(variants.split(","))):
            bench.parts()
        self.assertEqual([variants[:2] for variants in given], 4 * [["compiled+cudnn", "compiled"]])

    def test_parts_that_are_named_run_in_that_order(self):
        some = [Part(name, None, 1, name != "c") for name in "abc"]
        for names, everything, chosen in (("ca", False, "ca"), ("aba", True, "ab"), ("", False, "ab"), ("", True, "abc")):
            self.assertEqual("".join(part.name for part in part_report.choose(some, [*names], everything, None)), chosen)

    def test_the_largest_that_fits(self):
        for most in (1, 5, 64):
            for limit in range(most + 1):
                self.assertEqual(models.largest_that_fits(lambda n: n <= limit, most), limit)


class EpsSideTest(ByHandTest):
    def place(self):
        place = eps_side.Place(self.work.path, "cpu", self.work.path / "tokens.bin")
        place.tokens.write_bytes(bytes(2 * 4000))
        return place

    @measures_the_process
    def test_a_run_that_is_out_of_time_ends_with_the_steps_it_had(self):
        got = eps_side.train(self.place(), SMALL, Batch(2, 2), "relay", 64 << 20, time.monotonic() + 3, measured=10**6)
        self.assertGreater(got["steps"], 0)
        self.assertLess(got["steps"], 10**6)
        self.assertGreater(got["tokens_per_second"], 0)

    def test_speed_is_by_the_median_of_the_steps_that_count(self):
        place = self.place()
        for warm_up, measured in ((eps_side.WARM_UP, 5), (0, 1)):
            got = eps_side.train(place, SMALL, Batch(2, 2), "relay", 64 << 20, time.monotonic() + 60, measured,
                                 warm_up=warm_up)
            self.assertEqual((got["steps"], len(got["all_step_seconds"])), (measured, warm_up + measured))
            self.assertEqual(got["step_seconds"], statistics.median(got["all_step_seconds"][warm_up:]))
            self.assertEqual(got["tokens_per_second"], got["tokens_per_step"] / got["step_seconds"])

    def test_a_run_that_fails_says_why(self):
        place = self.place()
        place.tokens.write_bytes(b"12")
        with self.assertRaisesRegex(Failed, "has 1 tokens"):
            eps_side.train(place, SMALL, Batch(2, 2), "relay", 64 << 20, time.monotonic() + 60)

    def test_copies_are_counted_behind_the_warm_up_without_waits(self):
        """In a whole trace, and in what is left of one whose processes were killed."""
        lines = [{"ph": "M", "name": "process_name", "pid": 1, "tid": 0, "args": {"name": "worker 1"}}]
        lines += [{"ph": "M", "name": "thread_name", "pid": 1, "tid": tid, "args": {"name": name}}
                  for tid, name in enumerate(("steps", "in", "out"), start=1)]
        event = lambda name, tid, ts, **args: lines.append(  # noqa: E731
            {"ph": "X", "name": name, "pid": 1, "tid": tid, "ts": ts, "dur": 900.0, **({"args": args} if args else {})})
        for step in range(eps_side.WARM_UP + 2):
            speed = 10 if step < eps_side.WARM_UP else 1000
            event("pull h.0", 2, 1000.0 * step, detail="pull", copied_bytes=1000, copy_seconds=1 / speed)
            event("wait: version", 2, 1000.0 * step)
            event("pull head", 2, 1000.0 * step + 1, detail="pull", copied_bytes=3000, copy_seconds=3 / speed)
            event("push h.0", 3, 1000.0 * step + 2, detail="push", copied_bytes=500, copy_seconds=0.25)
            event("expand h.0", 3, 1000.0 * step + 3, detail="expand")
            event(f"step {step}", 1, 1000.0 * step, detail="1 vnodes")
        want = {"pull": {"bytes_per_step": 4000, "bytes_per_second": 1e6},
                "push": {"bytes_per_step": 500, "bytes_per_second": 2000}}
        whole, cut = self.work.path / "whole", self.work.path / "cut"
        whole.mkdir()
        (whole / "trace.json").write_text(json.dumps({"traceEvents": lines}))
        (cut / "trace").mkdir(parents=True)
        written = "".join(f"{json.dumps(line)},\n" for line in lines)
        (cut / "trace/worker-1.json").write_text(f'[\n{written}{{"ph":"X"')
        for out in (whole, cut):
            found = eps_side.copies(out)
            self.assertEqual(set(found), set(want))
            for kind, figures in want.items():
                for name, value in figures.items():
                    self.assertAlmostEqual(found[kind][name], value, msg=f"{out} {kind} {name}")
        self.assertEqual(eps_side.copies(self.work.path), {})

    @measures_the_process
    def test_pulls_on_the_emulated_device_are_counted_to_the_byte(self):
        place = self.place()
        place.device = "cuda:0"
        with mock.patch.object(eps_run, "EPS", self.emulated_eps()):
            got = eps_side.train(place, SMALL, Batch(2, 2), "relay", 64 << 20, time.monotonic() + 120, measured=2,
                                 changes={"relay": {"weight_slots": 2}}, picture="step")
        self.assertEqual(got["steps"], 2)
        self.assertEqual(got["copies"]["pull"]["bytes_per_step"], models.pulled_bytes(SMALL))
        flags = 4 * (SMALL.layers + 2)  # one of each push, which say that it is finite
        self.assertEqual(got["copies"]["push"]["bytes_per_step"], models.pushed_bytes(SMALL) + flags)
        self.assertGreater(got["copies"]["pull"]["bytes_per_second"], 0)
        self.assertTrue((self.work.path / "step.svg").exists())

    def test_a_profile_that_fails_is_told_and_not_tried_again(self):
        bench = parts.Bench(self.work.path, "cuda:99", True, 1 << 30, 1, sys.executable)  # which is not there
        for _ in range(2):
            planned, profile, _ = bench.plan(SMALL, Batch(2, 2), "relay", 64 << 20, time.monotonic() + 60)
            self.assertEqual((planned["step"]["profile"], profile.flags), ("nominal", ["--profile", "nominal"]))
        self.assertEqual(len({*bench.slow}), 1)
        self.assertIn("plans from nominal figures of another GPU: eps profile: ", bench.slow[0])

    def test_a_profile_that_was_out_of_time_is_tried_again_with_much_more_of_it(self):
        place, clock, had = self.place(), Clock(), []

        def out_of_time(command, deadline):
            had.append(deadline - clock.now)
            clock.now = deadline
            raise processes.OutOfTime(f"eps was ended after {had[-1]:.0f} s: ...", "")

        with mock.patch.object(processes, "run", out_of_time), mock.patch.object(eps_side, "time", clock):
            # The last would have no more than the one before it: a profile gets 60 s at most.
            for seconds, tried in ((10, [10]), (10, [10]), (14, [10]), (15, [10, 15]), (20, [10, 15]),
                                   (100, [10, 15, 60]), (1000, [10, 15, 60])):
                profile = eps_side.profile(place, SMALL, Batch(2, 2), clock.now + seconds)
                self.assertEqual(had, tried)
                self.assertEqual(profile.failed, f"eps profile: eps was ended after {tried[-1]} s: ...")
            eps_side.profile(place, SMALL, Batch(2, 3), clock.now + 1)  # another one
            self.assertEqual(had[3:], [1])
        self.assertEqual(place.profiles, {})

    def test_an_earlier_report_of_this_machine_has_its_ceilings_and_profiles(self):
        earlier, here = self.work.path / "earlier", self.work.path / "here"
        for folder in (earlier, here):
            folder.mkdir()
        known = earlier / "report.json"
        report = part_report.Report(here, "a GPU", {})
        for device, taken in (("a GPU", True), ("another GPU", False)):
            known.write_text(json.dumps({"device": device, "when": "then", "parts": {"ceilings": CEILINGS}}))
            bench = parts.Bench(self.work.path, "cpu", True, 1 << 30, 1, sys.executable, kept=here)
            command.take_earlier(bench, report, known)
            self.assertEqual((bench.ceilings.flops, bench.place.earlier),
                             (2e12, earlier) if taken else (None, None))
        self.assertEqual(report.warnings, [f"--ceilings {known} is of another device (another GPU), and left alone."])
        (earlier / "profile-64-wide-4-heads-context-32-vocab-257-micro-batch-2.json").write_text("{}")
        bench.place.earlier = earlier
        profile = bench.profile(SMALL, Batch(2, 2), time.monotonic() + 60)
        self.assertEqual((profile.file.parent, profile.file.read_text()), (here, "{}"))
        self.assertTrue(str(profile).endswith("micro-batch-2.json, of an earlier report"))
        for text in ("", "[]", "{}"):
            known.write_text(text)
            with self.assertRaisesRegex(gpu_machine.CannotRun, "report.json: no report.json of an earlier run: "):
                command.take_earlier(bench, report, known)

    def test_what_the_host_has_left_is_there_for_swapping(self):
        bench = parts.Bench(self.work.path, "cuda", False, 128 << 30, 1, sys.executable)
        batch, cap = Batch(4, 8), 8 << 30
        with mock.patch.object(eps_side, "profile", lambda *_: eps_side.Profile()):
            planned, _, host_memory = bench.plan(models.GPT_1B, batch, "relay", cap, time.monotonic() + 60)
            self.assertGreater(planned["device"]["swapped_inner"], 0)
            self.assertGreater(planned["worker_host"]["inner_bytes"], 0)
            self.assertLessEqual(planned["worker_host"]["inner_bytes"] + planned["worker_host"]["boundary_bytes"],
                                 host_memory)
            self.assertLessEqual(planned["host_total_bytes"] + parts.HOST_SPARE, 128 << 30)
            counts = eps_side.plan_in_short(planned, eps_side.Profile(), host_memory)
            self.assertEqual(counts["kept"] + counts["swapped"] + counts["recomputed"],
                             (models.GPT_1B.layers - counts["depth_first_blocks"]) * batch.micro_batches)
            bench.host_bytes = 24 << 30  # what the daemon and boundaries take
            planned, _, host_memory = bench.plan(models.GPT_1B, batch, "relay", cap, time.monotonic() + 60)
            self.assertEqual((planned["device"]["swapped_inner"], host_memory), (0, 0))

    def test_a_plans_pulls_are_those_of_its_slots_and_of_its_depth_first_blocks(self):
        layer = models.WIRE_BYTES * SMALL.block_parameters
        of_two = models.pulled_bytes(SMALL)
        self.assertEqual(models.pulled_bytes(SMALL, weight_slots=1), of_two + layer)
        self.assertEqual(models.pulled_bytes(SMALL, depth_first=1), of_two - layer)
        once = models.WIRE_BYTES * (SMALL.parameters + SMALL.vocab * SMALL.d)  # the table for embedding and head
        for all_stay in ((0, SMALL.layers + 2), (SMALL.layers, 1)):
            self.assertEqual(models.pulled_bytes(SMALL, *all_stay), once)

    LOG = ("T INFO worker_ready worker=1 device_outside_bytes=33554432 host_bytes=1\n"
           "T WARNING memory_not_pinned bytes=4096 cost=slow error=no\n"
           'T INFO attention_by_plain_kernel B=2 why="no engine"\n'
           "T WARNING memory_not_pinned bytes=96 cost=slow error=no\n"
           "T INFO device_memory_grew device_outside_bytes=300000000\n")

    def test_what_a_worker_logs(self):
        self.assertEqual(eps_side.outside_bytes(self.LOG), 300000000)  # the last: attention's workspace comes late
        self.assertIsNone(eps_side.outside_bytes(""))
        self.assertEqual(eps_side.not_pinned(self.LOG),
                         "memory_not_pinned: 2 times, 4192 bytes; the first: cost=slow error=no")
        self.assertEqual(eps_side.plain_attention(self.LOG), 'attention_by_plain_kernel: B=2 why="no engine"')
        passed_over = "T WARNING attention_engine_passed_over engine=4 status=\"INTERNAL: x\"\n"
        self.assertEqual(eps_side.engines_passed_over(self.LOG + 2 * passed_over),
                         'attention_engine_passed_over: 2 times; the first: engine=4 status="INTERNAL: x"')
        self.assertEqual([said("") for said in (eps_side.not_pinned, eps_side.plain_attention,
                                                eps_side.engines_passed_over)], ["", "", ""])

    def test_what_makes_a_part_slow_is_said_first(self):
        bench = parts.Bench(self.work.path, "cpu", True, 0, 1, sys.executable)
        table = Table("Speeds", ["a"], [[1.5]])
        figures = {"not_pinned": "memory_not_pinned: 2 times", "plain_attention": ""}

        def measure(_):
            bench.slow += filter(None, figures.values())
            return Outcome("fast", [table])

        def fail(_):
            raise Failed("failed", measure(_))

        outcome = bench.with_warnings(measure)(0)
        self.assertEqual(outcome.said, "NOT AS IT SHOULD BE: memory_not_pinned: 2 times; fast")
        self.assertIn("NOT AS IT SHOULD BE", outcome.tables[0].notes[0])
        with self.assertRaisesRegex(Failed, "NOT AS IT SHOULD BE: memory_not_pinned: 2 times; failed"):
            bench.with_warnings(fail)(0)
        self.assertEqual(bench.with_warnings(lambda _: Outcome("fast"))(0).said, "fast")

    @measures_the_process
    def test_a_run_that_does_not_end_when_asked_is_killed(self):
        """A daemon that is stopped keeps `eps train` waiting."""
        place = self.place()

        def stop(process, out, deadline):
            found = watch(process, out, deadline)
            for daemon in eps_run.children(process.pid, "eps_server"):
                os.kill(daemon, signal.SIGSTOP)
                self.stopped = daemon
            return found

        watch, start = eps_side.watch, time.monotonic()
        with mock.patch.object(eps_side, "watch", stop):
            eps_side.train(place, SMALL, Batch(2, 2), "relay", 64 << 20, time.monotonic() + 3, measured=10**6)
        self.assertLess(time.monotonic() - start, 3 + eps_side.INTERRUPT_SECONDS + 5)
        self.gone([self.stopped], timeout=5)

    def test_a_step_pulls_and_pushes_what_the_arithmetic_says(self):
        steps, place = 3, self.place()
        spec = eps_side.run_spec(place, SMALL, Batch(2, 2), "relay", steps, {"relay": {"weight_slots": 2}})
        out = self.work.out("run")
        daemon, address = self.start_daemon(spec, out, "--linger-seconds", 60)
        page = json.loads((out / "endpoints.json").read_text())["metrics"]
        self.assertEqual(self.start_worker(address, "--device-memory", 64 << 20).wait(), 0)
        deadline = time.monotonic() + 60
        while not (out / "summary.json").exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        counted = eps_side.counters(page)
        self.assertEqual(counted["steps"], steps)
        self.assertEqual(counted["pulled_bytes"], steps * models.pulled_bytes(SMALL))
        self.assertEqual(counted["pushed_bytes"], steps * models.pushed_bytes(SMALL))
        daemon.terminate()
        self.assertEqual(daemon.wait(), 0, self.log(daemon))
        self.assertFalse((out / "checkpoints/latest").exists(), "the run was to leave no checkpoint")


class TorchSideTest(SystemTest):
    """With the system's Python, where that has PyTorch."""
    PYTHON = "/usr/bin/python3"

    def setUp(self):
        super().setUp()
        if not os.access(self.PYTHON, os.X_OK) or run([self.PYTHON, "-c", "import torch"]).returncode != 0:
            self.skipTest(f"{self.PYTHON} has no PyTorch")

    def test_speed_is_by_the_median_of_steps(self):
        bench = parts.Bench(self.work.path, "cpu", True, 1 << 30, 1, self.PYTHON)
        found = bench.torch(SMALL, Batch(2, 2), "eager,eager+cudnn", time.monotonic() + 60, measured=5)["variants"]
        self.assertEqual(found["eager+cudnn"]["error"], "cuDNN's attention is a GPU's")
        eager = found["eager"]
        self.assertEqual(len(eager["all_step_seconds"]), 5, eager)
        self.assertEqual(eager["step_seconds"], statistics.median(eager["all_step_seconds"]))
        self.assertEqual(eager["tokens_per_second"], Batch(2, 2).tokens(SMALL) / eager["step_seconds"])

    # The steps' own work is left out, and a GPU's marks.
    ORDER = """
import sys, types
sys.path.insert(0, sys.argv[1])
import torch, torch_side
said = []

class Trainer:
    device = torch.device("cpu")

    def __init__(self, *_):
        pass

    def step(self, batches):
        said.append(f"step {batches}")
        return torch.tensor(1.0)

mark = torch_side.Laps.mark
torch_side.Trainer = Trainer
torch_side.batches_of = lambda args, text, step: said.append(f"made {step}") or step
torch_side.Laps.mark = lambda laps: said.append("mark") or mark(laps)
torch_side.measure(types.SimpleNamespace(device="cpu", warm_up=2, steps=2, micro_batches=1, micro_batch=1, context=1),
                   set(), None, None)
print(", ".join(said))
"""

    def test_steps_that_are_timed_wait_for_no_copy_of_tokens(self):
        done = run([self.PYTHON, "-c", self.ORDER, str(ROOT / "bench/gpu")])
        self.assertEqual(done.stdout.strip(), "made 0, made 1, made 2, made 3, step 0, step 1, mark, step 2, mark, "
                                              "step 3, mark", done.stderr)

    # PyTorch's own choice of attention is replaced: what a processor has of it knows no cuDNN.
    CHOOSES = """
import contextlib, sys, types
sys.path.insert(0, sys.argv[1])
import torch_side
said = []

@contextlib.contextmanager
def sdpa_kernel(backends):
    said.append(f"only {backends}")
    try:
        yield
    finally:
        said.append("as before")

def measure(args, words, text, notes):
    said.append("measured")
    if "fails" in words:
        raise RuntimeError("out of memory")
    return {}

args = types.SimpleNamespace(device="cuda")
torch_side.measure = measure
sys.modules["torch.nn.attention"] = attention = types.ModuleType("attention")
print(torch_side.attempt(args, {"cudnn"}, None, None))
attention.SDPBackend, attention.sdpa_kernel = types.SimpleNamespace(), sdpa_kernel
print(torch_side.attempt(args, {"cudnn"}, None, None))
attention.SDPBackend.CUDNN_ATTENTION = "cuDNN"
for words in ({"cudnn"}, {"cudnn", "fails"}, {"compiled"}):
    torch_side.attempt(args, words, None, None)
print(said)
"""

    def test_attention_by_cudnn_is_chosen_for_its_variants_alone(self):
        done = run([self.PYTHON, "-c", self.CHOOSES, str(ROOT / "bench/gpu")])
        self.assertEqual(done.stdout.splitlines(), 2 * ["{'error': 'this PyTorch has no attention by cuDNN'}"] + [str(
            2 * ["only ['cuDNN']", "measured", "as before"] + ["measured"])], done.stderr)

    def test_attention_s_price_says_why_there_is_none(self):
        done = run([self.PYTHON, str(ROOT / "bench/gpu/attention_price.py")],
                   env={**os.environ, "CUDA_VISIBLE_DEVICES": ""})
        self.assertEqual(json.loads(done.stdout)["error"], "PyTorch sees no GPU", done.stderr)
