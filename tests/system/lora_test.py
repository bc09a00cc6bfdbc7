"""Adapters of low rank (model.lora): the base stays as it came, the bits are the same however the run goes, and what
has adapters samples, is evaluated, grown and begun from as it is."""

import json

import numpy as np

import safetensors_file
from eps_run import EPS, SystemTest, latest_checkpoint, merged, run, summary, train

NO_SHAPE = {key: None for key in ("family", "layers", "d_model", "heads", "context", "vocab")}
LORA = {"rank": 4, "alpha": 8}
FAST = {"optimizer": {"schedule": {"peak": 1e-2}}}  # adapters learn at ten times what whole weights do
LLAMA = {"family": "LLAMA", "layers": 3, "d_model": 64, "heads": 4, "kv_heads": 2, "d_ff": 160, "context": 32,
         "vocab": 256}


def adapters(tensors):
    return {name for name in tensors if ".lora_" in name}


class LoraTest(SystemTest):
    def base(self):
        """A model that was trained for a few steps, as a folder in 16 bits."""
        self.train_ok(self.work.spec({"steps": 30, "optimizer": {"schedule": {"peak": 1e-2}}}, name="before.json"),
                      self.work.out("before"))
        self.eps("export", "--checkpoint", self.work.out("before"), "--out", self.work.out("hf"), "--dtype", "BF16")
        return merged(FAST, {"model": {"from": "hf", "lora": LORA, **NO_SHAPE}})

    def test_adapters_learn_and_the_base_stays_as_it_came_byte_by_byte(self):
        # What the base has never seen: the same text in capitals.
        (self.work.path / "capitals.txt").write_bytes((self.work.path / "text.txt").read_bytes().upper())
        spec = self.work.spec(merged(self.base(), {"steps": 40, "model": {"lora": {"dropout": 0.05}},
                                                   "data": {"path": "capitals.txt"}}))
        out = self.work.out("run")
        self.train_ok(spec, out, "--workers", 2)
        losses = summary(out)["loss"]
        self.assertLess(np.mean(losses[-5:]), np.mean(losses[:5]) - 1)
        was = safetensors_file.read_raw(self.work.out("hf") / "model.safetensors")
        now = safetensors_file.read_raw(latest_checkpoint(out))
        self.assertEqual(set(now), set(was) | adapters(now))
        self.assertEqual(len(adapters(now)), 3 * 4 * 2)
        for name, tensor in was.items():
            self.assertEqual(now[name], tensor, name)
        moments = safetensors_file.read_raw(latest_checkpoint(out) / "optimizer.safetensors")
        self.assertEqual({name.split(".", 1)[1] for name in moments}, adapters(now))

    def test_the_bits_are_the_same_for_any_workers_through_kills_and_a_resume_and_in_a_group(self):
        for family, shape in (("GPT2", {"d_model": 160, "residual_dropout": 0.1}), ("LLAMA", LLAMA)):
            targets = ["c_attn", "mlp.c_proj"] if family == "GPT2" else []
            lora = {"rank": 12, "dropout": 0.1, "targets": targets}
            self.has_the_same_bits(merged(FAST, {"model": {**shape, "lora": lora}}), family)

    def test_eps_verify_finds_the_same_bits_in_every_way_to_carry_it_out(self):
        spec = self.work.spec({"model": {**LLAMA, "qk_norm": True, "lora": {"rank": 3, "rank_stabilized": True}}})
        done = run([str(EPS), "verify", "--run", str(spec), "--steps", "3"], timeout=600)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_the_plan_says_what_adapters_save_and_the_workers_hold_to_it(self):
        plain = self.work.spec({"steps": 2})
        lora = self.work.spec({"model": {"lora": LORA}, "steps": 2}, name="lora.json")
        before, now = self.plan(plain), self.plan(lora)
        own = 3 * 4 * (64 + 3 * 64 + 64 + 64 + 64 + 256 + 256 + 64)  # of rank 4, three blocks
        self.assertEqual(now["parameters"], before["parameters"] + own)
        self.assertEqual(now["host"]["model_state_bytes"], 2 * before["parameters"] + 14 * own)
        self.assertIn(f"{now['parameters']} parameters, of which {own} train,", self.eps("plan", "--run", lora).stdout)
        smallest = now["device"]["smallest_cap_bytes"]
        self.assertLess(smallest, before["device"]["smallest_cap_bytes"])
        for cap in (smallest, 2 * smallest):
            out = self.work.out(f"run-{cap}")
            self.train_ok(lora, out, "--device-memory", cap)
            self.assertEqual([summary(out)[key] for key in ("parameters", "trainable_parameters")],
                             [now["parameters"], own])
            self.assertEqual(summary(out)["device_peak_bytes"],
                             self.plan(lora, "--device-memory", cap)["device"]["arena_bytes"])
            self.assertEqual(summary(out)["model_state_bytes"], now["host"]["model_state_bytes"])

    def test_a_checkpoint_with_adapters_is_sampled_evaluated_and_begun_from(self):
        changes = merged(self.base(), {"evaluation": {"held_out": 0.1, "every_steps": 12}})
        out = self.work.out("run")
        self.train_ok(self.work.spec(changes), out)
        said = [json.loads(line) for line in (out / "evaluations.jsonl").read_text().splitlines()]
        found = json.loads(self.eps("evaluate", "--checkpoint", out, "--json").stdout)
        self.assertEqual(found["loss"], said[-1]["loss"])
        base = json.loads(self.eps("evaluate", "--checkpoint", self.work.out("hf"), "--data",
                                   self.work.path / "text.txt", "--set", "data.tokenizer=BYTES", "--json").stdout)
        self.assertNotEqual(base["loss"], found["loss"])
        self.assertTrue(self.eps("sample", "--checkpoint", out, "--prompt", "and the ", "--tokens", 4).stdout)
        self.assertIn("adapters_new tensors=24", (out / "logs" / "eps_server.log").read_text())

        # Another run goes on with them: not the same moments, but the same weights.
        further = self.work.spec(merged(FAST, {
            "model": {"from": str(latest_checkpoint(out)), **NO_SHAPE}, "steps": 3,
            "optimizer": {"schedule": {"peak": 1e-30, "final": 1e-30}}}), name="further.json")
        again = self.work.out("again")
        self.train_ok(further, again)
        self.assertNotIn("adapters_new", (again / "logs" / "eps_server.log").read_text())
        was, now = (safetensors_file.read_raw(latest_checkpoint(run_)) for run_ in (out, again))
        self.assertEqual(set(was), set(now))
        for name in set(was) - adapters(was):
            self.assertEqual(now[name], was[name], name)
        for name in adapters(was):
            before, after = (np.frombuffer(tensors[name][2], np.float32) for tensors in (was, now))
            np.testing.assert_allclose(after, before, rtol=1e-6, atol=1e-12, err_msg=name)
        self.refused(train(further, self.work.out("twice"), "--set", "model.lora.rank=2"), 2,
                     "model.lora: given, and model.from has adapters")

    def test_a_branch_and_a_deeper_model_have_the_adapters(self):
        spec, out = self.work.spec(merged(FAST, {"model": {"lora": LORA}})), self.work.out("run")
        self.train_ok(spec, out)
        self.eps("branch", "--checkpoint", out, "--out", self.work.out("branch"), "--set", "steps=16")
        self.eps("grow", "--checkpoint", out, "--out", self.work.out("deeper"), "--insert", "1:ZERO_GATED", "--set",
                 "steps=16")
        first = []  # of the further losses: what was inserted adds nothing yet
        for name, blocks in (("branch", 3), ("deeper", 4)):
            grown = self.work.out(name)
            self.train_ok(grown / "run.textproto", grown, "--resume")
            tensors = safetensors_file.read_raw(latest_checkpoint(grown))
            self.assertEqual(len(adapters(tensors)), blocks * 4 * 2, name)
            losses = summary(grown)["loss"]
            self.assertEqual(losses[:12], summary(out)["loss"])
            first.append(losses[12])
        self.assertEqual(*first)

    def test_what_makes_no_sense_is_refused_by_field(self):
        for lora, words in (({"alpha": 8}, "model.lora.rank: missing"),
                            ({"rank": 0}, "model.lora.rank: 0, must be between 1 and 4096"),
                            ({"rank": 5000}, "model.lora.rank: 5000, must be between 1 and 4096"),
                            ({"rank": 4, "alpha": 0}, "model.lora.alpha: 0, must be greater than 0"),
                            ({"rank": 4, "targets": ["q_proj"]},
                             'model.lora.targets: "q_proj" names no product of the blocks that may have an adapter; '
                             'names end with c_attn, '),
                            ({"rank": 4, "dropout": 1}, "model.lora.dropout: 1, must be at least 0 and less than 1")):
            self.refused(train(self.work.spec({"model": {"lora": lora}}), self.work.out("run")), 2, words)
            self.assertFalse(self.work.out("run").exists())
        spec, out = self.work.spec({"model": {"lora": LORA}, "steps": 2}), self.work.out("run")
        self.refused(train(spec, out, "--set", "model.freeze=*"), 2, "model.freeze: every tensor is frozen")
        self.train_ok(spec, out)
        self.refused(train(spec, out, "--resume", "--set", "model.lora.rank=8"), 2, "model.lora.rank: was 4, now 8")
        self.refused(train(spec, out, "--resume", "--set", "model.lora.targets=c_fc"), 2,
                     "model.lora.targets: was absent")
