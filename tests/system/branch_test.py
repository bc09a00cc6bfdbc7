"""eps branch: a run that goes on from another one's checkpoint, and is otherwise not that run any more."""

import json

from eps_run import EPS, SystemTest, latest_checkpoint, model_hash, run, summary, train

# A rate that no step's number changes, and nothing that hides a gradient that is too large.
SPEC = {"optimizer": {"schedule": {"peak": 1e-3, "warmup_steps": 5, "decay": None, "final": None}, "clip": None},
        "steps": 16, "checkpoint": {"every_steps": 8}}


class BranchTest(SystemTest):
    def ask(self, checkpoint, out, *fields, **kwargs):
        settings = [word for field in fields for word in ("--set", field)]
        return run([str(EPS), "branch", "--checkpoint", str(checkpoint), "--out", str(out), *settings], **kwargs)

    def branch(self, checkpoint, name, *fields, **kwargs):
        """The folder of a run that goes on from `checkpoint`."""
        out = self.work.out(name)
        done = self.ask(checkpoint, out, *fields, **kwargs)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn(f"with {', '.join(fields)}; go on with\n"
                      f"  eps train --run {out}/run.textproto --out {out} --resume\n", done.stdout)
        return out

    def trained(self, steps=16, name="run"):
        out = self.work.out(name)
        self.train_ok(self.work.spec({**SPEC, "steps": steps}, name=f"{name}.json"), out)
        return out

    def go_on(self, out, *args):
        self.train_ok(out / "run.textproto", out, "--resume", *args)
        return summary(out)

    def test_more_steps_at_a_rate_that_stays_give_the_bits_of_a_run_that_had_them_from_its_beginning(self):
        whole, first = self.trained(24, "whole"), self.trained()
        more = self.branch(first, "more", "steps=24")
        self.assertEqual(self.go_on(more, "--workers", 2)["loss"], summary(whole)["loss"])
        self.assertEqual(model_hash(more), model_hash(whole))
        self.assertEqual((latest_checkpoint(more) / "optimizer.safetensors").read_bytes(),
                         (latest_checkpoint(whole) / "optimizer.safetensors").read_bytes())

    def test_a_run_that_diverged_goes_on_from_its_newest_checkpoint_with_a_lower_rate(self):
        whole, first = self.trained(24, "whole"), self.trained()
        diverges = self.branch(first, "diverges", "steps=24", "optimizer.schedule.peak=1e30")
        newest = f"{diverges}/checkpoints/step-00000016"
        failures = []
        for _ in range(2):
            failed = train(diverges / "run.textproto", diverges, "--resume")
            self.refused(failed, 1, "not finite", f"the newest checkpoint is {newest}; --resume would fail again: eps branch")
            self.assertNotIn("go on with --resume", failed.stderr)
            failures.append(json.loads((diverges / "failure.json").read_text()))
        for failure in failures:  # which layer is the first to be found is not the same each time
            self.assertRegex(failure["failure"], "^step 17: .* not finite; lower optimizer.schedule.peak")
            self.assertEqual((failure["step"], failure["diverged"]), (17, True))
        status = run([str(EPS), "status", "--out", str(diverges)])
        self.refused(status, 1, "has failed: ", f"the newest checkpoint is {newest}; --resume would fail again: eps branch")
        self.assertNotIn("once that is mended", status.stderr)
        lower = train(diverges / "run.textproto", diverges, "--resume", "--set", "optimizer.schedule.peak=1e-3")
        self.refused(lower, 2, "optimizer.schedule.peak: was 1e+30, now 0.001", "eps branch goes on from a checkpoint")

        mended = self.branch(diverges, "mended", "optimizer.schedule.peak=1e-3")
        self.assertEqual(self.go_on(mended)["loss"], summary(whole)["loss"])
        self.assertEqual(model_hash(mended), model_hash(whole))

    def test_a_schedule_that_is_hardly_meant_is_told_of_a_branch_too(self):
        odd = self.branch(self.trained(), "odd", "steps=18", "optimizer.schedule.warmup_steps=18")
        self.go_on(odd)
        self.assertIn(" WARNING run_spec_is_odd field=optimizer.schedule.warmup_steps why=",
                      (odd / "logs" / "eps_server.log").read_text())

    def test_an_evaluation_may_be_added_and_its_file_is_seen_from_where_one_is(self):
        evaluated = self.branch(self.trained() / "checkpoints" / "step-00000008", "evaluated", "evaluation.path=text.txt",
                                "evaluation.every_steps=4", "evaluation.samples=8", "optimizer.schedule.peak=5e-4",
                                cwd=self.work.path)
        losses = self.go_on(evaluated)["loss"]
        self.assertEqual(losses[:9], summary(self.work.out("run"))["loss"][:9])  # that of step 8 is before its update
        self.assertNotEqual(losses[9:], summary(self.work.out("run"))["loss"][9:])
        lines = (evaluated / "evaluations.jsonl").read_text().splitlines()
        self.assertEqual([json.loads(line)["step"] for line in lines], [8, 12, 16])

    def test_of_a_run_that_has_done_all_of_its_steps_it_says_what_going_on_needs(self):
        out = self.work.out("lower")
        done = self.ask(self.trained(), out, "optimizer.schedule.peak=5e-4")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("has done all of its 16 steps: to train on, make it in another --out with --set steps=N", done.stdout)
        self.assertNotIn("eps train", done.stdout)

    def test_what_changes_nothing_or_does_not_fit_the_checkpoint_is_refused_by_field_and_leaves_nothing(self):
        first = self.trained()
        middle, out = first / "checkpoints" / "step-00000008", self.work.out("branch")
        for fields, *words in (
                ((), "nothing would change: eps train --resume goes on with the same run"),
                (("steps=16",), "nothing would change"),
                (("steps=24", "batch.micro_batch=1"), "--set: batch.micro_batch: a checkpoint's tensors", "leave it out"),
                (("data.seed=8",), "--set: data.seed: a checkpoint's tensors"),
                (("model.dropout=0.1",), "--set: model.dropout: a checkpoint's tensors"),
                (("precision.moments=BF16",), "--set: precision.moments: a checkpoint's tensors"),
                (("optimizer.schedule.peek=1",), "--set: optimizer.schedule.peek: unknown field"),
                (("optimizer.schedule.peak=-1",), "--set: optimizer.schedule.peak: -1"),
                (("steps=4",), "--set: steps: 4, must be at least 8, as many as are done")):
            with self.subTest(fields):
                self.refused(self.ask(middle, out, *fields), 2, *words)
                self.assertFalse(out.exists())
        self.refused(self.ask(self.work.out("none"), out, "steps=24"), 2, "none")
        self.refused(self.ask(first, first, "steps=24"), 2, "holds checkpoints of a run; give another folder")
