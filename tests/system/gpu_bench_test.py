"""bench/gpu/run on a processor: its parts run and say what they are to say, and its arithmetic is the programs'."""

import contextlib
import io
import json
import os
import sys
import time

from eps_run import BIN, ROOT, ByHandTest, SystemTest, measures_the_process, run

sys.path.insert(0, str(ROOT / "bench/gpu"))

import eps_side  # noqa: E402
import models  # noqa: E402
import part_report  # noqa: E402
import tables  # noqa: E402
from models import Batch, Ceilings, Model  # noqa: E402
from part_report import Failed, Outcome, Part, Table  # noqa: E402

SMALL = Model("small", 3, 64, 4, 32, 257)
# Of a machine that never was: what is measured on a GPU alone is to be reported all the same.
CEILINGS = {"links": {"copies": [{"memory": "registered", "piece_bytes": 1 << 25, "in_gb_per_second": 50,
                                  "out_gb_per_second": 50, "both_in_gb_per_second": 40, "both_out_gb_per_second": 40}],
                      "peak_bf16_tflops": 2},
            "update": {"parameters": 1000, "update_seconds": 0.5, "floor_seconds": 0.25, "ratio": 0.5}}


class GpuBenchTest(SystemTest):
    @measures_the_process
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
        self.assertEqual({part["state"] for part in said["parts"].values()}, {"passed"}, said["parts"])
        self.assertEqual(len(said["parts"]["gpt-7b"]["points"]), 5)
        for point in said["parts"]["gpt-7b"]["points"].values():
            self.assertGreater(point["utilisation"], 0)
            self.assertGreater(min(point["floors"].values()), 0)
        for name in ("bert-large", "gpt-1.3b"):
            self.assertGreater(said["parts"][name]["relay_to_resident"], 0)
        self.assertEqual(said["parts"]["gpt-7b-80gib"]["kept"]["recomputed"], 0)
        self.assertIn("8 layers", said["parts"]["largest"]["said"])
        text = (report / "report.md").read_text()
        for table in said["tables"]:
            self.assertIn(table["title"], text)

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
        floors = models.floor_seconds(model, Batch(1, 1), 0, ceilings)
        self.assertEqual(floors["compute"], models.model_operations(model, 4) / 2e12)
        self.assertEqual(floors["update"], model.parameters / 2000)
        self.assertEqual(set(models.floor_seconds(model, Batch(1, 1), 0, Ceilings()).values()), {None})

    def test_ceilings_as_tables(self):
        links = {**CEILINGS["links"], "device_copy_gb_per_second": 4000.0, "register_seconds_per_gb": 0.25,
                 "register_in_pieces_seconds_per_gb": 0.5,
                 "products": [{"form": "NN", "M": 8192, "N": 8192, "K": 8192, "tflops": 700.0}]}
        copies, products = map(part_report.markdown_table, tables.link_tables(links))
        self.assertIn("| registered | 32 | 50 | 50 | 40 | 40 |", copies)
        self.assertIn("0.250 s a GB at once", copies)
        self.assertIn("| NN | 8,192 | 8,192 | 8,192 | 700 |", products)
        update = part_report.markdown_table(tables.update_table({**CEILINGS["update"], "threads": 2}))
        self.assertIn("0.500 of the byte floor", update)

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

    def test_a_run_that_fails_says_why(self):
        place = self.place()
        place.tokens.write_bytes(b"12")
        with self.assertRaisesRegex(Failed, "has 1 tokens"):
            eps_side.train(place, SMALL, Batch(2, 2), "relay", 64 << 20, time.monotonic() + 60)

    def test_a_step_pulls_and_pushes_what_the_arithmetic_says(self):
        steps, place = 3, self.place()
        spec = eps_side.run_spec(place, SMALL, Batch(2, 2), "relay", steps)
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

    def test_a_part_that_fails_keeps_what_it_found(self):
        def fail(_):
            raise Failed("too slow", Outcome("", [Table("Speeds", ["a"], [[1.5]])], {"speed": 1.5}))

        failed, parts, _ = self.run_parts([Part("part", fail, 1), Part("other", lambda _: 1 / 0, 1)], 0)
        self.assertEqual(failed, 2)
        self.assertEqual((parts["part"]["state"], parts["part"]["speed"]), ("failed", 1.5))
        self.assertEqual(parts["part"]["said"], "too slow")
        self.assertIn("ZeroDivisionError", parts["other"]["said"])
        self.assertIn("## Speeds\n\n| a |\n| --- |\n| 1.5 |\n", (self.work.out("report") / "report.md").read_text())
