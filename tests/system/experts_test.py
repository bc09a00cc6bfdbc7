"""A mixture of experts (model.experts): the same bits however the run goes, also with adapters over quantized experts; what
the plan says is kept, and such a model is exported, sampled, evaluated, grown and begun from as any other."""

import json

import numpy as np

import safetensors_file
from eps_run import DEVICE, EPS, SystemTest, latest_checkpoint, long, merged, run, summary

NO_SHAPE = {key: None for key in ("family", "layers", "d_model", "heads", "context", "vocab")}
# Matrices of an expert leave a gap behind each; 11 experts do not all have tokens.
EXPERTS = {"family": "LLAMA", "layers": 3, "d_model": 30, "heads": 4, "head_dim": 10, "kv_heads": 2, "d_ff": 21,
           "context": 32, "vocab": 256, "qk_norm": True, "experts": {"num": 11, "per_token": 3, "balance": 0.01}}
MIXTRAL = merged(EXPERTS, {"d_model": 32, "d_ff": 64, "qk_norm": False, "experts": {"num": 4, "per_token": 2}})
ADAPTED = {"precision": {"frozen": "NF4"}, "optimizer": {"schedule": {"peak": 1e-2}},
           "model": {**MIXTRAL, "lora": {"rank": 4, "alpha": 8, "dropout": 0.1}}}


class ExpertsTest(SystemTest):
    @long
    def test_the_bits_are_the_same_for_any_workers_through_kills_and_a_resume_and_in_a_group(self):
        self.has_the_same_bits({"model": EXPERTS}, "whole")
        self.has_the_same_bits(ADAPTED, "adapted")

    def test_eps_verify_finds_the_same_bits_in_every_way_to_carry_it_out(self):
        offload = {"optimizer_offload": {"path": str(self.work.out("offload")), "memory_bytes": 0}}
        self.work.out("offload").mkdir()
        for changes in ({"model": EXPERTS}, ADAPTED, merged(offload, {"model": MIXTRAL, "precision": {"wire": "FP32"}}),
                        # Gates are trained and the rest of experts is not.
                        {"model": {**EXPERTS, "freeze": ["*.experts.*", "!*.gate_proj.*"]}}):
            done = run([str(EPS), "verify", "--run", str(self.work.spec(changes)), "--steps", "2", *DEVICE], timeout=600)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_a_model_from_nothing_learns(self):
        for name, model in (("experts", EXPERTS), ("mixtral", MIXTRAL)):
            out = self.work.out(name)
            self.train_ok(self.work.spec({"model": model, "steps": 60, "optimizer": {"schedule": {"peak": 1e-2}}}), out,
                          "--workers", 2)
            losses = summary(out)["loss"]
            self.assertLess(np.mean(losses[-5:]), losses[0] - 2)

    def test_the_scale_of_the_loss_is_that_of_the_balance_too(self):
        routers = []
        for scale in (2 ** 4, 2 ** 10):
            spec = self.work.spec({"model": merged(MIXTRAL, {"experts": {"balance": 1}}), "steps": 12,
                                   "precision": {"wire": "FP16", "gradients": "FP16", "loss_scale": {"initial": scale}}},
                                  name=f"{scale}.json")
            self.train_ok(spec, self.work.out(f"{scale}"))
            weights = safetensors_file.read(latest_checkpoint(self.work.out(f"{scale}")) / "model.safetensors")
            routers.append(np.concatenate([weights[f"model.layers.{i}.block_sparse_moe.gate.weight"] for i in range(3)]))
        # Powers of two change no digit, but of the smallest numbers.
        self.assertLess(np.linalg.norm(routers[0] - routers[1]), 1e-3 * np.linalg.norm(routers[1]))

    def test_the_plan_says_what_experts_take_and_the_workers_hold_to_it(self):
        spec = self.work.spec({"model": MIXTRAL, "steps": 2})
        now = self.plan(spec)
        attention, norms = 32 * 10 * (4 + 2 + 2) + 10 * 4 * 32, 2 * 32
        block = attention + norms + 4 * 32 + 4 * 3 * 32 * 64
        self.assertEqual(now["parameters"], 3 * block + 2 * 256 * 32 + 32)
        padding = 4 * 32 // 2  # of three blocks' two norms each, and of the last one, to 64 elements
        self.assertEqual(now["host"]["model_state_bytes"], 14 * (now["parameters"] + padding * 7 // 2))
        for cap in (now["device"]["smallest_cap_bytes"], 2 * now["device"]["smallest_cap_bytes"]):
            out = self.work.out(f"run-{cap}")
            self.train_ok(spec, out, "--device-memory", cap)
            self.assertEqual(summary(out)["device_peak_bytes"],
                             self.plan(spec, "--device-memory", cap)["device"]["arena_bytes"])
        # Deeper models need no more.
        deeper = self.work.spec({"model": {**MIXTRAL, "layers": 9}, "steps": 2}, name="deeper.json")
        self.assertEqual(self.plan(deeper)["device"]["smallest_cap_bytes"], now["device"]["smallest_cap_bytes"])

    def test_a_checkpoint_is_exported_sampled_evaluated_grown_and_begun_from(self):
        spec, out = self.work.spec({"model": MIXTRAL, "evaluation": {"held_out": 0.1, "every_steps": 12}}), self.work.out("run")
        self.train_ok(spec, out)
        said = [json.loads(line) for line in (out / "evaluations.jsonl").read_text().splitlines()]
        self.assertEqual(json.loads(self.eps("evaluate", "--checkpoint", out, "--json").stdout)["loss"], said[-1]["loss"])

        self.eps("export", "--checkpoint", out, "--out", self.work.out("hf"), "--dtype", "F32")
        config = json.loads((self.work.out("hf") / "config.json").read_text())
        self.assertEqual([config[key] for key in ("model_type", "num_local_experts", "num_experts_per_tok")], ["mixtral", 4, 2])
        exported = safetensors_file.read(self.work.out("hf") / "model.safetensors")
        self.assertEqual(exported["model.layers.2.block_sparse_moe.experts.3.w2.weight"].shape, (32, 64))
        texts = [self.eps("sample", "--checkpoint", folder, "--prompt", "and the ", "--tokens", 30).stdout
                 for folder in (out, self.work.out("hf"))]
        self.assertEqual(*texts)

        self.eps("grow", "--checkpoint", out, "--out", self.work.out("deeper"), "--insert", "1:ZERO_GATED", "--set", "steps=16")
        self.eps("branch", "--checkpoint", out, "--out", self.work.out("branch"), "--set", "steps=16")
        first = []
        for name in ("branch", "deeper"):
            self.train_ok(self.work.out(name) / "run.textproto", self.work.out(name), "--resume")
            first.append(summary(self.work.out(name))["loss"][12])
        self.assertEqual(*first)  # the new block passes on what it gets

        begun = self.work.spec({"model": {"from": "hf", "experts": {"balance": 0.1}, **NO_SHAPE}, "steps": 2},
                               name="begun.json")
        self.train_ok(begun, self.work.out("begun"))
        self.eps("evaluate", "--checkpoint", self.work.out("begun"), "--data", self.work.path / "text.txt",
                 "--set", "data.tokenizer=BYTES")

    def test_what_experts_cannot_be_is_refused_by_field(self):
        for changes, message in (
                ({"model": {"experts": {"num": 4, "per_token": 2}}}, "model.experts.num: given, but it is of family: LLAMA"),
                ({"model": merged(EXPERTS, {"experts": {"per_token": 12}})},
                 "model.experts.per_token: 12, must be between 1 and 11"),
                ({"model": {**EXPERTS, "freeze": ["*.1.mlp.experts.7.*"]}},
                 "model.freeze: of layers.1 a matrix of some experts is frozen and that of others is not"),
                ({"model": {**EXPERTS, "lora": {"rank": 2, "targets": ["down_proj"]}}},
                 'model.lora.targets: "down_proj" names no product of the blocks that may have an adapter')):
            done = run([str(EPS), "train", "--run", str(self.work.spec(changes)), "--out", str(self.work.out("refused"))])
            self.refused(done, 2, message)
            self.assertFalse(self.work.out("refused").exists())
