"""A frozen base in 8 or 4 bits (precision.frozen): the run computes with the values that the format has, whatever way it
goes, and with less memory."""

import json

import numpy as np

import quantized_formats
import safetensors_file
from eps_run import DEVICE, EPS, SystemTest, latest_checkpoint, long, merged, model_hash, run, summary, train, weight_files

NO_SHAPE = {key: None for key in ("family", "layers", "d_model", "heads", "context", "vocab")}
LORA = {"rank": 4, "alpha": 8}
FAST = {"optimizer": {"schedule": {"peak": 1e-2}}}
MX, NF4 = {"precision": {"frozen": "MXINT8"}}, {"precision": {"frozen": "NF4"}}
# Odd rows, so that blocks go over their ends, and tensors of several chunks.
LLAMA = {"family": "LLAMA", "layers": 3, "d_model": 168, "heads": 4, "head_dim": 44, "kv_heads": 2, "d_ff": 1700,
         "context": 32, "vocab": 256}


def is_quantized(name, tensor):
    return (".h." in name or ".layers." in name) and tensor.ndim >= 2 and ".lora_" not in name


class QuantizedTest(SystemTest):
    def folders(self, shape, form="MXINT8"):
        """A model in fp32, as a folder, and the same with the values that the format has."""
        self.train_ok(self.work.spec({"model": shape, "steps": 12}, name="before.json"), self.work.out("before"))
        self.eps("export", "--checkpoint", self.work.out("before"), "--out", self.work.out("hf"), "--dtype", "F32")
        self.eps("export", "--checkpoint", self.work.out("before"), "--out", self.work.out("rounded"), "--dtype", "F32")
        tensors = safetensors_file.read(self.work.out("hf"))
        for name, tensor in tensors.items():
            if is_quantized(name, tensor):
                tensors[name] = quantized_formats.ROUNDED[form](tensor)
                self.assertFalse(np.array_equal(tensors[name], tensor), name)
        file, = weight_files(self.work.out("rounded"))
        safetensors_file.write(file, tensors)

    def of(self, folder, changes=None):
        return self.work.spec(merged(merged(FAST, {"model": {"from": folder, "lora": LORA, **NO_SHAPE}}), changes or {}),
                              name=f"{folder}.json")

    def test_a_run_has_the_bits_of_one_whose_base_was_rounded_by_others_in_every_wire(self):
        for form, shape in (("MXINT8", {"d_model": 104, "layers": 2}), ("NF4", LLAMA)):
            self.folders(shape, form)
            spec, by_others, frozen = self.of("hf"), self.of("rounded"), ("--set", f"precision.frozen={form}")
            for wire in ("BF16", "FP32", "FP16"):
                with self.subTest(form=form, wire=wire):
                    precision = ("--set", f"precision.wire={wire}")
                    outs = {}
                    for name, path, args in (("quantized", spec, frozen), ("again", by_others, frozen),
                                             ("rounded", by_others, ())):
                        outs[name] = self.work.out(f"{form}-{wire}-{name}")
                        self.train_ok(path, outs[name], *precision, *args)
                    losses = [summary(out)["loss"] for out in outs.values()]
                    self.assertEqual(losses[0], losses[1])
                    self.assertEqual(losses[0], losses[2])
                    self.holds_what_was_rounded(outs["quantized"], wire)
            for folder in ("before", "hf", "rounded"):
                self.work.out(folder).rename(self.work.out(f"{form}-{folder}"))

    def holds_what_was_rounded(self, out, wire):
        """Its checkpoint has those values, in 16 bits that hold them exactly."""
        want = safetensors_file.read(self.work.out("rounded"))
        found = safetensors_file.read_raw(latest_checkpoint(out))
        exact = {"BF16": "BF16", "FP16": "F16", "FP32": "F32"}[wire]
        for name, tensor in want.items():
            dtype, _, data = found[name]
            if not is_quantized(name, tensor):
                self.assertEqual(dtype, exact, name)
                continue
            self.assertEqual(dtype, "BF16", name)
            values = (np.frombuffer(data, np.uint16).astype(np.uint32) << 16).view(np.float32)
            self.assertTrue(np.array_equal(values.reshape(tensor.shape), tensor), name)

    @long
    def test_the_bits_are_the_same_for_any_workers_through_kills_and_a_resume_and_in_a_group(self):
        for wire, form in (("BF16", NF4), ("FP32", MX)):
            self.has_the_same_bits(merged(merged(FAST, form), {"model": {**LLAMA, "lora": {"rank": 12, "dropout": 0.1}},
                                                               "precision": {"wire": wire}}), wire)

    def test_the_bits_are_the_same_where_blocks_are_partly_frozen_and_shorter_in_bytes_than_tables(self):
        # What trains, what is frozen as it is and what is quantized, in one block; and blocks that are whole beside it.
        freeze = ["transformer.h.0.*", "transformer.h.1.attn.*", "!transformer.h.1.attn.c_proj.*", "*.lora_A.*"]
        for changes in (merged(MX, {"model": {"freeze": freeze[:-1]}}),
                        merged(NF4, {"model": {"freeze": ["transformer.h.*"], "vocab": 700}, "precision": {"wire": "FP32"}}),
                        merged(NF4, {"model": {"lora": LORA, "freeze": freeze[-1:]}})):
            spec = self.work.spec(changes)
            done = run([str(EPS), "verify", "--run", str(spec), "--steps", "2", *DEVICE], timeout=600)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_the_plan_says_what_it_saves_and_the_workers_hold_to_it(self):
        plain = self.work.spec({"model": {"lora": LORA}, "steps": 2}, name="plain.json")
        before, matrices = self.plan(plain), 3 * 12 * 64 * 64
        for form, changes, per_32 in (("MXINT8", MX, 33), ("NF4", NF4, 17)):
            spec = self.work.spec(merged(changes, {"model": {"lora": LORA}, "steps": 2}))
            now = self.plan(spec)
            saved = before["host"]["model_state_bytes"] - now["host"]["model_state_bytes"]
            self.assertEqual(saved, 2 * matrices - matrices * per_32 // 32)
            self.assertIn(f"in {form}, {per_32}/32 bytes a parameter", self.eps("plan", "--run", spec).stdout)
            for cap in (now["device"]["smallest_cap_bytes"], 2 * now["device"]["smallest_cap_bytes"]):
                out = self.work.out(f"run-{form}-{cap}")
                self.train_ok(spec, out, "--device-memory", cap)
                self.assertEqual(summary(out)["device_peak_bytes"],
                                 self.plan(spec, "--device-memory", cap)["device"]["arena_bytes"])
                self.assertEqual(summary(out)["model_state_bytes"], now["host"]["model_state_bytes"])
            # Deeper models need no more.
            deeper = self.work.spec(merged(changes, {"model": {"lora": LORA, "layers": 9}, "steps": 2}), name="deeper.json")
            self.assertEqual(self.plan(deeper)["device"]["smallest_cap_bytes"], now["device"]["smallest_cap_bytes"])

    def test_a_checkpoint_is_sampled_evaluated_branched_grown_and_exported(self):
        self.folders({"d_model": 96}, "NF4")
        text, frozen = self.work.path / "text.txt", ("--set", "precision.frozen=NF4")
        changes = merged(NF4, {"evaluation": {"held_out": 0.1, "every_steps": 12}})
        spec, out = self.of("hf", changes), self.work.out("run")
        self.train_ok(spec, out)
        said = [json.loads(line) for line in (out / "evaluations.jsonl").read_text().splitlines()]
        self.assertEqual(self.evaluated(out), said[-1]["loss"])
        self.assertTrue(self.eps("sample", "--checkpoint", out, "--prompt", "and the ", "--tokens", 4).stdout)
        said = [self.eps("sample", "--checkpoint", self.work.out(folder), "--prompt", "and the ", "--tokens", 40, *args).stdout
                for folder, args in (("hf", frozen), ("rounded", ()))]
        self.assertEqual(*said)
        for field, message in (("precision.frozen=INT4", "precision.frozen"), ("steps=3", "--set: steps: a model is served by")):
            sample = run([str(EPS), "sample", "--checkpoint", str(self.work.out("hf")), "--tokens", "1", "--set", field])
            self.refused(sample, 2, message)

        self.eps("branch", "--checkpoint", out, "--out", self.work.out("branch"), "--set", "steps=16")
        self.eps("grow", "--checkpoint", out, "--out", self.work.out("deeper"), "--insert", "1:ZERO_GATED", "--set",
                 "steps=16")
        first = []
        for name in ("branch", "deeper"):
            self.train_ok(self.work.out(name) / "run.textproto", self.work.out(name), "--resume")
            first.append(summary(self.work.out(name))["loss"][12])
        self.assertEqual(*first)

        # What quantizing a base costs can be asked before anything is trained.
        on_text = ("--data", text, "--set", "data.tokenizer=BYTES")
        losses = [self.evaluated(self.work.out("hf"), *on_text, *frozen),
                  self.evaluated(self.work.out("rounded"), *on_text), self.evaluated(self.work.out("hf"), *on_text)]
        self.assertEqual(losses[0], losses[1])
        self.assertNotEqual(losses[0], losses[2])
        self.assertAlmostEqual(losses[0], losses[2], delta=0.05 * losses[2])

        for merged_too in (True, False):
            after = self.work.out("after" if merged_too else "adapter")
            said = self.eps("export", "--checkpoint", out, "--out", after, *(() if merged_too else ("--adapter",)))
            self.assertEqual("trained beside blocks in NF4" in said.stdout, not merged_too)
        # The base of the run, its adapters beside it or merged into it, in 16 bits.
        want = self.evaluated(out, *on_text)
        said = self.eps("import", "--from", self.work.out("rounded"), "--adapter", self.work.out("adapter"), "--out",
                        self.work.out("adapted"))
        self.assertIn("beside blocks in NF4: precision.frozen=NF4 has the very same values", said.stdout)
        self.assertAlmostEqual(self.evaluated(self.work.out("adapted"), *on_text), want, delta=1e-9 * want)
        self.assertAlmostEqual(self.evaluated(self.work.out("after"), *on_text), want, delta=1e-3 * want)

    def evaluated(self, folder, *args):
        return json.loads(self.eps("evaluate", "--checkpoint", folder, "--json", *args).stdout)["loss"]

    def test_what_makes_no_sense_is_refused_by_field(self):
        nothing = "precision.frozen: no matrix of a block is frozen, by"
        for model in ({}, {"freeze": ["transformer.w*"]}, {"freeze": ["transformer.h.*.bias"]},
                      {"lora": LORA, "freeze": ["!*.attn.c_*", "!*.mlp.*"]}):
            self.refused(train(self.work.spec(merged(MX, {"model": model})), self.work.out("run")), 2, nothing)
            self.assertFalse(self.work.out("run").exists())
        self.refused(train(self.work.spec({"precision": {"frozen": "INT4"}}), self.work.out("run")), 2,
                     "precision.frozen")
        spec, out = self.work.spec(merged(MX, {"model": {"lora": LORA}, "steps": 2})), self.work.out("run")
        self.train_ok(spec, out)
        before = model_hash(out)
        self.refused(train(spec, out, "--resume", "--set", "precision.frozen=WIRE"), 2,
                     "precision.frozen: was MXINT8, now WIRE")
        self.refused(train(spec, out, "--resume", "--set", "precision.frozen=NF4"), 2, "precision.frozen: was MXINT8, now NF4")
        self.assertEqual(model_hash(out), before)
