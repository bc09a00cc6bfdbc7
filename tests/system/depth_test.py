"""Depth that changes: blocks that steps leave out, and models that grow between steps."""

import json
import os
import shutil
import signal
from pathlib import Path

import layer_drop
import safetensors_file
from eps_run import (ENDLESS, EPS, ByHandTest, SystemTest, children, committed_steps, latest_checkpoint, merged, model_hash,
                     run, summary, train, wait_for_steps)

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
        spec = self.work.spec(merged(merged(DROPS, ENDLESS), {"checkpoint": {"every_steps": 4}}))
        out = self.work.out("killed")
        process = self.start_endless(spec, out, "--workers", 2)
        wait_for_steps(process, out, 5)
        os.kill(children(process.pid, "gpu_worker")[0], signal.SIGKILL)
        wait_for_steps(process, out, 11)
        self.wait_for_first_checkpoint(out)
        os.kill(children(process.pid, "eps_server")[0], signal.SIGKILL)
        self.ends(process, 1)
        self.ends_like_a_quiet_run(self.start_endless(spec, out, "--resume", "--workers", 2), spec, out)
        self.assertEqual(self.outcome(out), self.outcome(Path(f"{out}-quiet")))

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

    def test_the_plan_has_the_memory_of_all_blocks_and_the_time_of_those_that_run(self):
        spec, out = self.work.spec({**DROPS, "steps": 8}), self.work.out("run")
        plan = json.loads(self.eps("plan", "--run", spec, "--json").stdout)
        whole = json.loads(self.eps("plan", "--run", spec, "--json", "--set", "depth.drop.share=0").stdout)
        self.assertEqual(plan["device"], whole["device"])
        self.assertEqual(plan["host"], whole["host"])
        step = plan["step"]
        self.assertEqual(step["predicted_seconds"], whole["step"]["predicted_seconds"])
        self.assertEqual(step["average_dropped_blocks"], 2)
        self.assertLess(step["average_predicted_seconds"], 0.8 * step["predicted_seconds"])
        self.assertIn("with 2 dropped, as depth.drop does on average", self.eps("plan", "--run", spec).stdout)
        self.train_ok(spec, out, "--device-memory", plan["device"]["smallest_cap_bytes"])
        self.assertEqual(summary(out)["device_peak_bytes"], plan["device"]["smallest_cap_bytes"])

    def test_an_evaluation_has_all_blocks(self):
        """With a learning rate of next to nothing the loss of the same samples is that of the whole model at any step."""
        spec = self.work.spec({**DROPS, "model": {"layers": LAYERS}, "steps": 4,
                               "optimizer": {"schedule": {"peak": 1e-30, "warmup_steps": 0, "final": 1e-30},
                                             "adamw": {"weight_decay": 0.0}},
                               "evaluation": {"held_out": 0.01, "every_steps": 1}})
        out = self.work.out("run")
        self.train_ok(spec, out)
        losses = [line["loss"] for line in lines(out / "evaluations.jsonl")]
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
        self.ends(daemon, 0)
        self.ends(worker, 0)
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


class GrowTest(SystemTest):
    SPEC = {"optimizer": {"schedule": {"peak": 1e-3, "warmup_steps": 5, "decay": None, "final": None}}, "steps": 16,
            "checkpoint": {"every_steps": 8}}

    def grow(self, *args, code=0, words=()):
        done = run([str(EPS), "grow", *map(str, args)])
        self.assertEqual(done.returncode, code, f"{done.args}\n{done.stdout}\n{done.stderr}")
        for word in words:
            self.assertIn(word, done.stderr)
        return done

    def trained(self):
        spec, out = self.work.spec(self.SPEC), self.work.out("run")
        self.train_ok(spec, out)
        return spec, out, out / "checkpoints" / "step-00000008"

    def test_a_zero_gated_model_has_the_loss_that_it_had_and_goes_on_exactly(self):
        _, out, middle = self.trained()
        grown = self.work.out("grown")
        done = self.grow("--checkpoint", middle, "--out", grown, "--insert", "0:ZERO_GATED", "--insert", "2:ZERO_GATED")
        self.assertIn(f"eps train --run {grown}/run.textproto --out {grown} --resume", done.stdout)
        quiet = self.work.out("quiet")
        shutil.copytree(grown, quiet)
        self.train_ok(grown / "run.textproto", quiet, "--resume")
        was, now = summary(out)["loss"], summary(quiet)["loss"]
        self.assertEqual(now[:9], was[:9])  # that of step 8 is of the grown model
        self.assertNotEqual(now[9:], was[9:])
        self.assertLess(sum(now[12:]), sum(now[5:9]))
        updates = json.loads((latest_checkpoint(quiet) / "manifest.json").read_text())["updates"]
        self.assertEqual(updates, {**{f"h.{i}": 8 if i in (1, 4) else 16 for i in range(5)},
                                   "wte": 16, "wpe": 16, "ln_f": 16})
        gate = safetensors_file.read(latest_checkpoint(quiet) / "model.safetensors")["transformer.h.1.mlp.c_proj.weight"]
        self.assertTrue(gate.any(), "the gate has not opened")

    def test_a_grown_run_that_is_killed_and_goes_on_otherwise_has_the_same_bits(self):
        _, _, middle = self.trained()

        def grown(name, steps):
            out = self.work.out(name)
            self.grow("--checkpoint", middle, "--out", out, "--insert", "0:ZERO_GATED", "--set", f"steps={steps}")
            return out / "run.textproto", out

        spec, killed = grown("killed", ENDLESS["steps"])
        process = self.start_endless(spec, killed, "--resume", "--workers", 2, "--set", "checkpoint.every_steps=2")
        wait_for_steps(process, killed, 12 - 8)  # metrics.jsonl begins with step 8
        os.kill(children(process.pid, "eps_server")[0], signal.SIGKILL)
        self.ends(process, 1)
        process = self.start_endless(spec, killed, "--resume", "--set", "relay.resident=true")
        wait_for_steps(process, killed, committed_steps(killed) + 5)
        process.send_signal(signal.SIGINT)
        self.ends(process, 130)
        losses = summary(killed)["loss"]
        spec, quiet = grown("quiet", len(losses))
        self.train_ok(spec, quiet, "--resume")
        self.assertEqual((model_hash(killed), losses), (model_hash(quiet), summary(quiet)["loss"]))

    def test_copies_have_the_weights_and_moments_of_their_blocks_and_the_run_goes_on(self):
        _, out, _ = self.trained()
        for name, args, sources in (("stacked", ("--layers", 5), (0, 1, 2, 0, 1)),
                                    ("spread", ("--layers", 6, "--by", "COPY"), (0, 0, 1, 1, 2, 2)),
                                    ("inserted", ("--insert", "1:COPY"), (0, 1, 1, 2))):
            with self.subTest(name):
                grown = self.work.out(name)
                self.grow("--checkpoint", out, "--out", grown, *args, "--set", "steps=24")
                for file in ("model.safetensors", "optimizer.safetensors"):
                    was = safetensors_file.read(latest_checkpoint(out) / file)
                    now = safetensors_file.read(latest_checkpoint(grown) / file)
                    for tensor, values in now.items():
                        head, found, rest = tensor.partition("transformer.h.")
                        block, _, part = rest.partition(".")
                        source = f"{head}{found}{sources[int(block)]}.{part}" if found else tensor
                        self.assertEqual(values.tobytes(), was[source].tobytes(), tensor)
                self.assertEqual(json.loads((latest_checkpoint(grown) / "manifest.json").read_text())["updates"], {})
                self.train_ok(grown / "run.textproto", grown, "--resume", "--workers", 2)
                losses = summary(grown)["loss"]
                self.assertEqual(losses[:16], summary(out)["loss"])
                self.assertLess(losses[-1], losses[0] - 0.5)
                done = run([str(EPS), "export", "--checkpoint", str(grown), "--out", str(self.work.out(name + "-hf"))])
                self.assertEqual(done.returncode, 0, done.stderr)

    def test_of_a_run_that_has_done_all_of_its_steps_it_says_what_going_on_needs(self):
        spec, out = self.work.spec({**self.SPEC, "steps": 2}), self.work.out("run")
        self.train_ok(spec, out)
        done = self.grow("--checkpoint", out, "--out", self.work.out("grown"), "--layers", 6)
        self.assertIn("has done all of its 2 steps", done.stdout)
        self.assertIn("--set steps=N", done.stdout)
        self.assertNotIn("eps train", done.stdout)
        spaced = self.work.out("my grown")
        done = self.grow("--checkpoint", out, "--out", spaced, "--layers", 6, "--set", "steps=4")
        self.assertIn(f"eps train --run '{spaced}/run.textproto' --out '{spaced}' --resume\n", done.stdout)

    def test_a_grown_model_may_drop_layers_and_a_dropping_one_may_grow(self):
        spec = self.work.spec({**self.SPEC, "depth": {"drop": {"share": 0.5}}})
        out, grown = self.work.out("run"), self.work.out("grown")
        self.train_ok(spec, out)
        self.grow("--checkpoint", out, "--out", grown, "--insert", "2:ZERO_GATED", "--set", "steps=24")
        was = json.loads((latest_checkpoint(out) / "manifest.json").read_text())["updates"]
        now = json.loads((latest_checkpoint(grown) / "manifest.json").read_text())["updates"]
        self.assertEqual(now, {**was, "h.3": 0})
        hashes = set()
        for workers in (1, 2):
            other = self.work.out(f"{workers}-workers")
            shutil.copytree(grown, other)
            self.train_ok(grown / "run.textproto", other, "--resume", "--workers", workers)
            hashes.add(model_hash(other))
        self.assertEqual(len(hashes), 1)

    def test_what_cannot_be_grown_is_refused_and_leaves_nothing(self):
        spec, out, middle = self.trained()
        grown = self.work.out("grown")
        at = ("--checkpoint", middle, "--out", grown)
        self.grow(*at, code=2, words=("give either --insert or --layers",))
        self.grow(*at, "--insert", "0:COPY", "--layers", 6, code=2, words=("give either --insert or --layers",))
        self.grow(*at, "--insert", "3:COPY", code=2, words=("--insert: insert behind block 3: the model has blocks 0 to 2",))
        self.grow(*at, "--insert", "3", code=2, words=("must be AFTER:COPY or AFTER:ZERO_GATED",))
        self.grow(*at, "--layers", 3, code=2, words=("--layers: layers: 3, must be more than the 3",))
        self.grow(*at, "--layers", 9999, code=2, words=("layers: 9999",))
        self.grow(*at, "--layers", 6, "--set", "batch.micro_batch=1", code=2, words=("--set: batch.micro_batch: a checkpoint",))
        self.grow("--checkpoint", self.work.out("none"), "--out", grown, "--layers", 6, code=2, words=("none",))
        self.assertFalse(grown.exists())
        self.grow("--checkpoint", out, "--out", out, "--layers", 6, code=2, words=("holds checkpoints of a run",))
        self.grow(*at, "--layers", 6)
        # Of another shape than the run it was made from.
        self.refused(train(spec, grown, "--resume"), 2, "model.layers: was 6, now 3")
        self.train_ok(spec, grown, "--resume", "--set", "model.layers=6")
