"""Depth that changes: blocks that steps leave out."""

import json
import os
import signal

import layer_drop
from eps_run import (EPS, ByHandTest, SystemTest, children, latest_checkpoint, model_hash, run, start_train, summary, train,
                     wait_for_steps)

LAYERS, STEPS, SHARE = 4, 24, 0.4
DROPS = {"model": {"layers": LAYERS, "dropout": 0.1}, "depth": {"drop": {"share": SHARE}}, "steps": STEPS}


def dropped(step, rule="UNIFORM"):
    return layer_drop.dropped(1, step, LAYERS, SHARE, rule)


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def block_of(tensor):
    """None: the tensor is no block's."""
    return int(tensor.split(".")[2]) if tensor.startswith("transformer.h.") else None


class LayerDropTest(SystemTest):
    def eps(self, *args, code=0):
        done = run([str(EPS), *map(str, args)], timeout=600)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done

    def outcome(self, out):
        optimizer = (latest_checkpoint(out) / "optimizer.safetensors").read_bytes()
        return model_hash(out), optimizer, summary(out)["loss"]

    def test_the_bits_are_the_same_however_the_run_is_carried_out(self):
        for wire, clip in (("BF16", {"mode": "EXACT", "norm": 1.0}), ("FP32", None)):
            precision = {"precision": {"wire": wire, "gradients": wire}, "optimizer": {"clip": clip}}
            spec = self.work.spec({**DROPS, **precision}, name=f"{wire}.json")
            quiet = self.work.out(f"{wire}-quiet")
            self.train_ok(spec, quiet)
            expected = self.outcome(quiet)
            whole = self.work.out(f"{wire}-whole")
            self.train_ok(spec, whole, "--set", "depth.drop.share=0")
            self.assertNotEqual(model_hash(whole), expected[0])
            for name, args in {"two": ("--workers", 2, "--set", "transport=GRPC"),
                               "one-slot": ("--set", "relay.inner=RECOMPUTE", "--set", "relay.weight_slots=1"),
                               "swapped": ("--set", "relay.inner=SWAP", "--set", "relay.boundaries=HOST"),
                               "resident": ("--set", "relay.resident=true", "--workers", 2),
                               "group": ("--set", "relay.group_members=2", "--workers", 2)}.items():
                with self.subTest(f"{wire}, {name}"):
                    out = self.work.out(f"{wire}-{name}")
                    self.train_ok(spec, out, *args)
                    self.assertEqual(self.outcome(out), expected)
            self.assertIn("group_formed", (out / "logs" / "eps_server.log").read_text())

    def test_a_lost_worker_and_a_resume_change_no_bit(self):
        spec = self.work.spec({**DROPS, "steps": 60, "checkpoint": {"every_steps": 4}})
        quiet, out = self.work.out("quiet"), self.work.out("killed")
        self.train_ok(spec, quiet)
        process = start_train(spec, out, "--workers", 2)
        wait_for_steps(process, out, 5)
        os.kill(children(process.pid, "gpu_worker")[0], signal.SIGKILL)
        wait_for_steps(process, out, 11)
        os.kill(children(process.pid, "eps_server")[0], signal.SIGKILL)
        process.communicate(timeout=120)
        self.train_ok(spec, out, "--resume", "--workers", 2)
        self.assertEqual(self.outcome(out), self.outcome(quiet))

    def test_a_checkpoint_counts_each_blocks_own_updates(self):
        for rule in ("UNIFORM", "LINEAR"):
            with self.subTest(rule):
                spec = self.work.spec({**DROPS, "depth": {"drop": {"share": SHARE, "rule": rule}}}, name=f"{rule}.json")
                out = self.work.out(rule)
                self.train_ok(spec, out, "--workers", 2)
                updates = json.loads((latest_checkpoint(out) / "manifest.json").read_text())["updates"]
                want = {"wte": STEPS, "wpe": STEPS, "ln_f": STEPS}
                for block in range(LAYERS):
                    want[f"h.{block}"] = sum(block not in dropped(step, rule) for step in range(STEPS))
                self.assertEqual(updates, want)
                self.assertLess(min(want.values()), STEPS)

    def test_eps_verify_finds_the_same_bits_in_every_way_to_carry_it_out(self):
        self.eps("verify", "--run", self.work.spec(DROPS), "--steps", 5)

    def test_an_evaluation_has_all_blocks(self):
        """With a learning rate of next to nothing the loss of the same samples is that of the whole model at any step."""
        spec = self.work.spec({**DROPS, "model": {"layers": LAYERS}, "steps": 4,
                               "optimizer": {"schedule": {"peak": 1e-30, "warmup_steps": 0, "final": 1e-30},
                                             "adamw": {"weight_decay": 0.0}},
                               "evaluation": {"held_out": 0.01, "every_steps": 1}})
        out = self.work.out("run")
        self.train_ok(spec, out)
        losses = [line["eval_loss"] for line in lines(out / "metrics.jsonl") if "eval_loss" in line]
        self.assertEqual(len(losses), 4)
        self.assertEqual(len(set(losses)), 1, losses)

    def test_a_share_that_cannot_be_is_refused_and_so_is_another_one_on_a_resume(self):
        self.refused(train(self.work.spec(), self.work.out("run"), "--set", "depth.drop.share=1"), 2,
                     "depth.drop.share: 1, must be at least 0 and less than 1")
        bert = {"model": {"family": "BERT", "d_ff": 100}, "data": {"mask": {"token": 3}}}
        self.refused(train(self.work.spec(bert), self.work.out("run"), "--set", "depth.drop.share=0.1"), 2,
                     "depth.drop.share: a BERT's block begins with the norm")
        spec = self.work.spec(DROPS)
        self.train_ok(spec, self.work.out("run"))
        self.refused(train(spec, self.work.out("run"), "--resume", "--set", "depth.drop.share=0.2"), 2,
                     "depth.drop.share: was 0.4, now 0.2")


class DigestTest(ByHandTest):
    def test_what_a_step_drops_is_computed_by_nobody_and_stays_as_it_was(self):
        spec, out = self.work.spec({**DROPS, "steps": 8}), self.work.out("run")
        of_daemon, of_worker = self.work.path / "daemon.jsonl", self.work.path / "worker.jsonl"
        daemon, address = self.start_daemon(spec, out, "--digests", of_daemon)
        worker = self.start_worker(address, "--device-memory", "64MiB", "--digests", of_worker)
        self.assertEqual(daemon.wait(timeout=120), 0, self.log(daemon))
        self.assertEqual(worker.wait(timeout=120), 0, self.log(worker))
        computed = {}
        for line in lines(of_worker):
            computed.setdefault(line["step"], set()).add(line["layer"])
        before, steps = {}, lines(of_daemon)
        self.assertEqual(len(steps), 8)
        for step in steps:
            gone = dropped(step["step"])
            self.assertEqual(computed[step["step"]], {0} | {i + 1 for i in range(LAYERS) if i not in gone})
            for tensor in step["tensors"]:
                name = tensor["name"]
                if step["step"]:
                    self.assertEqual(tensor["master"] == before[name], block_of(name) in gone, (step["step"], name))
                before[name] = tensor["master"]
        self.assertTrue(any(dropped(step) for step in range(1, 8)))
