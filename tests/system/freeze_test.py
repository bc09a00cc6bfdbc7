"""Frozen tensors: pulled and never pushed, as they came in every checkpoint, and no part of the daemon's optimizer."""

import fnmatch
import time
from pathlib import Path

import safetensors_file
from eps_run import EPS, SystemTest, children, latest_checkpoint, measures_the_process, run, start_train, summary, train

NO_SHAPE = {key: None for key in ("family", "layers", "d_model", "heads", "context", "vocab")}
# A layer that is frozen whole, below one that trains; blobs of both kinds; and the way back ends before the embedding.
FREEZE = ["transformer.w*", "transformer.h.0.*", "transformer.h.1.attn.*", "!transformer.h.1.attn.c_attn.bias"]


def is_frozen(name, patterns=FREEZE):
    frozen = False
    for pattern in patterns:
        if fnmatch.fnmatchcase(name, pattern.lstrip("!")):
            frozen = not pattern.startswith("!")
    return frozen


class FreezeTest(SystemTest):
    def folder(self, dtype="BF16"):
        """A model that was trained for a few steps, in 16 bits."""
        self.train_ok(self.work.spec({"steps": 3}, name="before.json"), self.work.out("before"))
        self.eps("export", "--checkpoint", self.work.out("before"), "--out", self.work.out("hf"), "--dtype", dtype)

    def test_what_is_frozen_is_exported_byte_by_byte_as_it_came_and_the_rest_has_learnt(self):
        for dtype in ("BF16", "F16"):
            with self.subTest(dtype):
                self.folder(dtype)
                precision = {"wire": {"BF16": "BF16", "F16": "FP16"}[dtype]}
                precision["gradients"] = precision["wire"]
                spec = self.work.spec({"model": {"from": "hf", "freeze": FREEZE, **NO_SHAPE}, "precision": precision})
                out, after = self.work.out("run"), self.work.out("after")
                self.train_ok(spec, out, "--workers", 2)
                self.assertLess(summary(out)["loss_last"], summary(out)["loss_first"])
                kept = safetensors_file.read_raw(latest_checkpoint(out))
                moments = safetensors_file.read_raw(latest_checkpoint(out) / "optimizer.safetensors")
                self.eps("export", "--checkpoint", out, "--out", after, "--dtype", dtype)
                was = safetensors_file.read_raw(self.work.out("hf") / "model.safetensors")
                now = safetensors_file.read_raw(after / "model.safetensors")
                self.assertEqual(sorted(was), sorted(now))
                self.assertTrue(any(is_frozen(name) for name in was) and not all(is_frozen(name) for name in was))
                for name in was:
                    self.assertEqual(was[name] == now[name], is_frozen(name), name)
                    self.assertEqual(kept[name][0], dtype if is_frozen(name) else "F32", name)
                    self.assertEqual(f"exp_avg.{name}" in moments, not is_frozen(name), name)
                self.assertTrue(self.eps("sample", "--checkpoint", out, "--prompt", "and the ", "--tokens", 4).stdout)
                for folder in ("before", "hf", "run", "after"):
                    self.work.out(folder).rename(self.work.out(f"{dtype}-{folder}"))

    def test_the_bits_are_the_same_for_any_workers_through_kills_and_a_resume_and_in_a_group(self):
        shape = {"d_model": 160, "vocab": 1000, "freeze": FREEZE}  # blobs of several chunks
        for wire in ("BF16", "FP32"):
            self.has_the_same_bits({"model": shape, "precision": {"wire": wire, "gradients": wire},
                                    "batch": {"micro_batches": 1, "micro_batch": 1}}, wire)

    def test_eps_verify_finds_the_same_bits_in_every_way_to_carry_it_out(self):
        spec = self.work.spec({"model": {"freeze": FREEZE}})
        done = run([str(EPS), "verify", "--run", str(spec), "--steps", "3"], timeout=600)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_patterns_that_choose_nothing_or_everything_are_refused(self):
        for patterns, words in ((["transformer.h.7.*"], 'model.freeze: "transformer.h.7.*" matches no tensor'),
                                (["*"], "model.freeze: every tensor is frozen")):
            spec = self.work.spec({"model": {"freeze": patterns}})
            self.refused(train(spec, self.work.out("run")), 2, words)
        out = self.work.out("run")
        self.train_ok(self.work.spec({"steps": 2}), out)
        self.refused(train(self.work.spec({"steps": 2}), out, "--resume", "--set", "model.freeze=*.bias"), 2,
                     "model.freeze: was absent")

    def test_the_plan_says_what_freezing_saves_and_the_workers_hold_to_it(self):
        spec = self.work.spec({"steps": 2})
        frozen = self.work.spec({"model": {"freeze": ["*", "!transformer.h.2.*"]}, "steps": 2}, name="frozen.json")
        plain, saved = self.plan(spec), self.plan(frozen)
        block = 12 * 64 * 64 + 13 * 64
        others = plain["parameters"] - block
        self.assertEqual(saved["parameters"], plain["parameters"])
        self.assertEqual(plain["host"]["model_state_bytes"], 14 * plain["parameters"])
        self.assertEqual(saved["host"]["model_state_bytes"], 14 * block + 2 * others)
        self.assertEqual(saved["host"]["hold_bytes"], 4 * block)
        self.assertLess(saved["worker_host"]["redo_push_bytes"], plain["worker_host"]["redo_push_bytes"])
        self.assertLess(saved["device"]["arena_bytes"], plain["device"]["arena_bytes"])
        smallest = saved["device"]["smallest_cap_bytes"]
        for cap in (smallest, 2 * smallest):
            out = self.work.out(f"run-{cap}")
            self.train_ok(frozen, out, "--device-memory", cap)
            self.assertEqual(summary(out)["device_peak_bytes"],
                             self.plan(frozen, "--device-memory", cap)["device"]["arena_bytes"])
            self.assertEqual(summary(out)["model_state_bytes"], saved["host"]["model_state_bytes"])

    @measures_the_process
    def test_the_daemon_holds_no_more_than_the_plan_says(self):
        spec = self.work.spec({
            "model": {"layers": 10, "d_model": 640, "heads": 10, "context": 16, "freeze": ["*", "!transformer.h.9.*"]},
            "batch": {"virtual_nodes": 2, "micro_batches": 1, "micro_batch": 1}, "steps": 4,
            "checkpoint": {"every_steps": 2}})
        plan = self.plan(spec)
        host, parameters = plan["host"], plan["parameters"]
        block = 12 * 640 * 640 + 13 * 640
        self.assertEqual(host["model_state_bytes"], 14 * block + 2 * (parameters - block))
        process, peak = start_train(spec, self.work.out("run"), "--workers", 2), 0
        while process.poll() is None:
            for pid in children(process.pid, "eps_server"):
                try:
                    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
                except OSError:
                    continue
                peak = max([peak, *(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))])
            time.sleep(0.02)
        self.assertEqual(process.returncode, 0, process.communicate())
        self.assertGreater(peak, 0.9 * host["model_state_bytes"])
        self.assertLessEqual(peak, 1.05 * host["total_bytes"], host)
