"""Processors of several kinds: what a run says of them, how they are made alike, and how far apart they are if not."""

import json
import signal
import unittest

from eps_run import (BIN, TIME_SCALE, ByHandTest, SystemTest, committed_steps, latest_checkpoint, long, model_hash,
                     run, summary, train, wait_for_steps)

# How far the losses of two device models may part in a hundred steps, of each step and of the last twenty together
# (docs/notation.md): with wire and gradients in fp32, and in bf16.
BOUNDS = {"FP32": (1e-5, 1e-6), "BF16": (1e-2, 3e-3)}


def model_of(*flags):
    """The device model of the cpu device, as `gpu_worker --probe` says it."""
    done = run([BIN / "gpu_worker", "--probe", *flags])
    assert done.returncode == 0, done.stderr
    return done.stdout.removeprefix("cpu: ").rsplit(",", 1)[0]


WIDEST, NARROW = model_of(), model_of("--vectors", "avx2")


class VectorsTest(SystemTest):
    def test_what_the_processor_does_not_have_or_nobody_knows_is_refused(self):
        done = run([BIN / "gpu_worker", "--probe", "--vectors", "sse"])
        self.refused(done, 2, "--vectors", "sse")
        done = train(self.work.spec(), self.work.out("run"), "--vectors", "avx1024")
        self.refused(done, 2, "--vectors", "avx1024")
        self.assertFalse(self.work.out("run").exists())
        if "AVX3" in WIDEST:
            self.assertRegex(model_of("--vectors", "avx512"), r"^cpu AVX3 onednn-[0-9.]+-avx512_core$")
        else:
            done = train(self.work.spec(), self.work.out("run"), "--vectors", "avx512")
            self.refused(done, 2, "--vectors avx512: this processor does not have such instructions")
            self.assertFalse(self.work.out("run").exists())

    def test_every_worker_of_a_run_is_held_to_avx2(self):
        spec = self.work.spec()
        self.train_ok(spec, self.work.out("one"), "--vectors", "avx2")
        self.train_ok(spec, self.work.out("two"), "--vectors", "avx2", "--workers", 2)
        self.assertEqual(summary(self.work.out("one"))["device_models"], [NARROW])
        self.assertEqual(model_hash(self.work.out("one")), model_hash(self.work.out("two")))
        self.assertRegex(NARROW, r"^cpu AVX2 onednn-[0-9.]+-avx2$")

    @unittest.skipIf(WIDEST == NARROW, "this processor has one kind of vectors")
    @long
    def test_losses_of_two_device_models_part_by_no_more_than_is_said(self):
        for form, (bound, mean_bound) in BOUNDS.items():
            # Narrower models have the same bits: their products are single chains of fused multiply-adds.
            spec = self.work.spec({"precision": {"wire": form, "gradients": form}, "steps": 100,
                                   "model": {"d_model": 192, "heads": 4}})
            wide, narrow = self.work.out(f"wide-{form}"), self.work.out(f"narrow-{form}")
            self.train_ok(spec, wide)
            self.train_ok(spec, narrow, "--vectors", "avx2")
            self.assertNotEqual(model_hash(wide), model_hash(narrow), "the same bits: nothing was compared")
            losses = [summary(out)["loss"] for out in (wide, narrow)]
            self.assertLess(losses[0][-1], losses[0][0] - 0.5, "the run learns nothing")
            apart = [abs(a - b) / b for a, b in zip(*losses, strict=True)]
            self.assertLess(max(apart), bound, f"{form}: step {apart.index(max(apart))}")
            ends = [sum(loss[-20:]) for loss in losses]
            self.assertLess(abs(ends[0] - ends[1]) / ends[1], mean_bound, form)


@unittest.skipIf(WIDEST == NARROW, "this processor has one kind of vectors")
class MixedTest(ByHandTest):
    def test_a_run_that_goes_on_with_another_device_model_says_so_and_where_it_must_not_refuses(self):
        spec, out = self.work.spec({"steps": 2000}), self.work.out("run")
        self.begin(spec, out, 3, worker_args=("--vectors", "avx2"))
        self.assertEqual(json.loads((latest_checkpoint(out) / "manifest.json").read_text())["device_models"], [NARROW])
        steps = committed_steps(out)

        refused = train(spec, out, "--resume", "--set", "relay.device_models=ONE")
        self.refused(refused, 1, f'computes with "{WIDEST}", the run was computed with "{NARROW}"', "--vectors avx2")
        self.assertEqual(committed_steps(out), steps)

        same = train(spec, out, "--resume", "--steps", steps + 2, "--vectors", "avx2",
                     "--set", "relay.device_models=ONE")
        self.refused(same, 2, "steps")  # of another run; the same refusal as ever
        self.begin(spec, out, steps + 2, "--resume", "--set", "relay.device_models=ONE", worker_args=("--vectors", "avx2"))
        self.assertEqual(summary(out)["device_models"], [NARROW])

        process = self.start(BIN / "eps", "train", "--run", spec, "--out", out, "--resume")
        wait_for_steps(process, out, committed_steps(out) + 2)
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.wait(timeout=60 * TIME_SCALE), 130, self.log(process))
        self.assertIn("device_models_differ", self.log(process))
        self.assertEqual(summary(out)["device_models"], sorted([NARROW, WIDEST]))

        steps = committed_steps(out)
        mixed = train(spec, out, "--resume", "--set", "relay.device_models=ONE")
        self.assertIn("relay.device_models: ONE: the run was computed with 2 of them", mixed.stderr)
        self.assertEqual((mixed.returncode, committed_steps(out)), (2, steps))

    def test_a_worker_of_another_model_beside_those_that_compute_is_refused_where_the_run_wants_one(self):
        spec = self.work.spec({"steps": 2000, "relay": {"device_models": "ONE"}})
        out = self.work.out("run")
        daemon, address = self.start_daemon(spec, out)
        narrow = self.start_worker(address, "--vectors", "avx2")
        wait_for_steps(daemon, out, 2)
        wide = self.start_worker(address)
        self.assertEqual(wide.wait(timeout=60 * TIME_SCALE), 2)
        self.assertIn("relay.device_models: ONE", self.log(wide))
        wait_for_steps(daemon, out, committed_steps(out) + 2)
        narrow.send_signal(signal.SIGTERM)
        daemon.send_signal(signal.SIGTERM)
        daemon.wait(timeout=60 * TIME_SCALE)
