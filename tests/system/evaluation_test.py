"""Evaluations between steps: the same for any workers, through kills and resumes, and without a trace in the training."""

import json
import os
import signal
from pathlib import Path

from eps_run import (ENDLESS, EPS, SystemTest, children, long, merged, model_hash, run, sample_text, summary, train,
                     wait_for_steps)

EVALUATION = {"path": "held.txt", "every_steps": 5}
DROPOUT = {"model": {"dropout": 0.1}}


def lines(out, name):
    return [json.loads(line) for line in (out / name).read_text().splitlines()]


def evaluations(out):
    """Without the time that they took."""
    return [{key: value for key, value in line.items() if key != "seconds"} for line in lines(out, "evaluations.jsonl")]


def losses(out):
    return [line["loss"] for line in lines(out, "metrics.jsonl")]


class EvaluationTest(SystemTest):
    def setUp(self):
        super().setUp()
        (self.work.path / "held.txt").write_bytes(sample_text(3000)[::-1])

    def spec(self, changes=None, name="evaluated.json"):
        return self.work.spec({**DROPOUT, "evaluation": EVALUATION, **(changes or {})}, name=name)

    def reference(self):
        out = self.work.out("reference")
        self.train_ok(self.spec(), out)
        return evaluations(out), model_hash(out)

    @long
    def test_the_training_has_the_same_bits_with_and_without_and_the_values_are_the_same_for_any_workers(self):
        plain = self.work.out("plain")
        self.train_ok(self.work.spec(DROPOUT), plain)
        found, expected = self.reference()
        out = self.work.out("reference")
        self.assertEqual(model_hash(plain), expected)
        self.assertEqual(losses(out), losses(plain))
        self.assertEqual([line["step"] for line in lines(out, "metrics.jsonl")], list(range(12)))
        self.assertFalse((plain / "evaluations.jsonl").exists())
        self.assertEqual([line["step"] for line in found], [5, 10, 12])
        # 93 samples of 32 tokens, of which the last round of 16 is not filled.
        self.assertEqual({line["tokens"] for line in found}, {93 * 32})
        self.assertLess(found[2]["loss"], found[0]["loss"])
        self.assertTrue(0 < found[2]["accuracy"] < 1)
        self.assertEqual(summary(out)["evaluation"]["loss"], found[2]["loss"])
        for name, *args in (("workers", "--workers", 2), ("grpc", "--workers", 2, "--set", "transport=GRPC"),
                            ("group", "--workers", 2, "--set", "relay.group_members=2"),
                            ("smallest", "--set", "relay.inner=RECOMPUTE", "--set", "relay.weight_slots=1")):
            other = self.work.out(name)
            self.train_ok(self.spec(), other, *args)
            self.assertEqual(evaluations(other), found, name)
            self.assertEqual(model_hash(other), expected, name)

    def test_what_is_held_out_is_evaluated_and_its_share_may_not_change_on_a_resume(self):
        spec = self.spec({"evaluation": {"held_out": 0.1, "every_steps": 5, "samples": 20}})
        out = self.work.out("held")
        self.train_ok(spec, out)
        self.assertEqual([(line["step"], line["tokens"]) for line in evaluations(out)],
                         [(5, 640), (10, 640), (12, 640)])
        other = self.spec({"evaluation": {"held_out": 0.2, "every_steps": 5}}, name="other.json")
        self.refused(run([EPS, "train", "--run", other, "--out", out, "--resume"]), 2, "evaluation.held_out")

    def test_a_killed_worker_and_a_killed_daemon_leave_the_same_evaluations(self):
        found, expected = self.reference()
        # Evaluations between all steps, so that most kills fall into one.
        every = self.spec({"evaluation": {**EVALUATION, "every_steps": 1}}, "every.json")
        reference = self.work.out("every")
        self.train_ok(every, reference)
        self.assertEqual(model_hash(reference), expected)
        everything = evaluations(reference)
        self.assertEqual([line for line in everything if line["step"] in (5, 10, 12)], found)
        often = {"evaluation": {**EVALUATION, "every_steps": 1}, "checkpoint": {"every_steps": 2}}
        endless = self.spec(merged(ENDLESS, often), "endless.json")
        for program in ("gpu_worker", "eps_server"):
            out = self.work.out(f"{program}-killed")
            process = self.start_endless(endless, out, "--workers", 2)
            wait_for_steps(process, out, 5)
            self.wait_for_first_checkpoint(out)
            os.kill(children(process.pid, program)[0], signal.SIGKILL)
            if program == "eps_server":
                self.ends(process, 1)
                process = self.start_endless(endless, out, "--workers", 1, "--resume")
            self.ends_like_a_quiet_run(process, endless, out)
            if program == "gpu_worker":
                self.assertIn("worker_lost", (out / "logs" / "eps_server.log").read_text())
            found, quiet = evaluations(out), evaluations(Path(f"{out}-quiet"))
            self.assertGreaterEqual(len(found), len(quiet) - 1)  # the signal may have come before the last
            self.assertEqual(found, quiet[:len(found)], program)

    def test_a_run_that_is_interrupted_among_evaluations_goes_on_with_the_same_values(self):
        spec = self.spec({"evaluation": {**EVALUATION, "every_steps": 1}}, "every.json")
        reference = self.work.out("every")
        self.train_ok(spec, reference)
        out = self.work.out("stopped")
        self.begin(spec, out, 3)
        self.train_ok(spec, out, "--resume", "--workers", 2)
        self.assertEqual(evaluations(out), evaluations(reference))
        self.assertEqual(model_hash(out), model_hash(reference))

    def test_jsonl_is_evaluated_as_it_is_trained_on_and_bad_files_are_refused_by_field(self):
        def conversation(i):
            return {"messages": [{"role": "user", "content": f"Number {i}?"}, {"role": "assistant", "content": f"It is {i % 7}."}]}
        for name, numbers in (("train.jsonl", range(100)), ("held.jsonl", range(100, 120))):
            (self.work.path / name).write_text("".join(json.dumps(conversation(i)) + "\n" for i in numbers))
        data = {"path": "train.jsonl", "tokenizer": None}
        spec = self.spec({"model": {**DROPOUT["model"], "context": 64}, "data": data,
                          "evaluation": {"path": "held.jsonl", "every_steps": 6}}, "jsonl.json")
        out = self.work.out("jsonl")
        self.train_ok(spec, out)
        found = evaluations(out)
        self.assertEqual([line["step"] for line in found], [6, 12])
        self.assertEqual(found[0]["tokens"], 20 * 10)  # twenty answers, of nine bytes and what ends each
        self.train_ok(spec, self.work.out("jsonl-two"), "--workers", 2)
        self.assertEqual(evaluations(self.work.out("jsonl-two")), found)
        (self.work.path / "held.jsonl").write_text('{"text": 7}\n')
        self.refused(train(spec, self.work.out("bad")), 2, "evaluation.path", "line 1")
        missing = self.spec({"evaluation": {**EVALUATION, "path": "none.txt"}}, "missing.json")
        self.refused(train(missing, self.work.out("missing")), 2, "evaluation.path", "none.txt")
