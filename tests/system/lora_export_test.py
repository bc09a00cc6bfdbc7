"""What goes out of a run with adapters: merged into the weights for all programs, or alone for those that know PEFT."""

import json
import shutil
import time
from subprocess import DEVNULL

import byte_level_tokenizer
import numpy as np
import safetensors_file
from eps_run import EPS, SystemTest, latest_checkpoint, run, start, summary

NO_SHAPE = {key: None for key in ("family", "layers", "d_model", "heads", "context", "vocab", "init_seed")}
LLAMA = {"family": "LLAMA", "kv_heads": 2, "d_ff": 100}
BERT = {"family": "BERT", "layers": 2, "d_model": 64, "heads": 4, "d_ff": 128, "context": 32, "vocab": 256,
        "init_seed": 1}
CLASSES = {"model": {**BERT, "classes": 2}, "data": {"path": "rows.tsv"}, "steps": 4}
LORA = {"rank": 4, "alpha": 6}
FAST = {"schedule": {"peak": 1e-2, "warmup_steps": 1}}  # so that B is far from zero
SIGNIFICAND_BITS = {"F32": 24, "BF16": 8, "F16": 11}


def values(folder, name=""):
    """Each tensor as fp64, whatever its dtype."""
    found = {}
    for tensor, (dtype, shape, data) in safetensors_file.read_raw(folder / name).items():
        if dtype == "BF16":
            array = (np.frombuffer(data, np.uint16).astype(np.uint32) << 16).view(np.float32)
        else:
            array = np.frombuffer(data, safetensors_file.DTYPES[dtype])
        found[tensor] = array.astype(np.float64).reshape(shape)
    return found


def merged(tensors, scale, is_in_out):
    """W + scale B A of a checkpoint's tensors, in fp64."""
    found = {name: array for name, array in tensors.items() if ".lora_" not in name}
    for name in [name for name in tensors if name.endswith(".lora_A.weight")]:
        module = name.removesuffix(".lora_A.weight")
        product = scale * tensors[f"{module}.lora_B.weight"] @ tensors[name]
        found[f"{module}.weight"] = found[f"{module}.weight"] + (product.T if is_in_out else product)
    return found


class LoraExportTest(SystemTest):
    def trained(self, model, name="run", **changes):
        out = self.work.out(name)
        spec = {"steps": 4, "optimizer": FAST, **changes, "model": {"lora": LORA, **model}}
        self.train_ok(self.work.spec(spec, name=f"{name}.json"), out)
        return out

    def exported(self, out, name, *args):
        folder = self.work.out(name)
        self.eps("export", "--checkpoint", out, "--out", folder, *args)
        return folder

    def adapter(self, out, name="peft", *args):
        """The folder, its config and its tensors' names and shapes, less what PEFT puts in front of all."""
        folder = self.exported(out, name, "--adapter", *args)
        shapes = {}
        for tensor, (_, shape, _) in safetensors_file.read_raw(folder / "adapter_model.safetensors").items():
            self.assertTrue(tensor.startswith("base_model.model."), tensor)
            shapes[tensor.removeprefix("base_model.model.")] = shape
        return folder, json.loads((folder / "adapter_config.json").read_text()), shapes

    def refused_whole(self, out, *words, args=("--adapter",)):
        before = sorted(self.work.path.iterdir())
        done = run([str(EPS), "export", "--checkpoint", str(out), "--out", str(self.work.path / "none"), *args])
        self.refused(done, 2, *words)
        self.assertEqual(sorted(self.work.path.iterdir()), before)


class MergedTest(LoraExportTest):
    def test_weights_are_what_their_adapters_make_of_them_in_every_dtype(self):
        for name, model, lora, scale in (("llama", LLAMA, LORA, 1.5),
                                         ("gpt2", {}, {"rank": 4, "alpha": 3, "rank_stabilized": True}, 1.5)):
            out = self.trained({**model, "lora": lora}, name)
            tensors = values(latest_checkpoint(out))
            wanted = merged(tensors, scale, is_in_out=name == "gpt2")
            self.assertLess(len(wanted), len(tensors))
            for dtype, bits in SIGNIFICAND_BITS.items():
                with self.subTest(model=name, dtype=dtype):
                    folder = self.exported(out, f"{name}-{dtype}", "--dtype", dtype)
                    config = json.loads((folder / "config.json").read_text())
                    self.assertFalse([key for key in config if "lora" in key])
                    found = values(folder)
                    self.assertEqual(sorted(found), sorted(wanted))
                    for tensor, array in wanted.items():
                        # Half of a last place, and what fp32 has rounded before; F16 has places of 2^-24 at the least.
                        limit = np.abs(array) * 2.0 ** -bits + (2.0 ** -25 if dtype == "F16" else 0) + 1e-6
                        self.assertTrue((np.abs(found[tensor] - array) <= limit).all(), tensor)
            changed = [tensor for tensor in wanted if (wanted[tensor] != tensors[tensor]).any()]
            self.assertEqual(len(changed), 3 * (4 if name == "gpt2" else 7))

    def test_it_does_as_well_as_the_checkpoint(self):
        out = self.trained(LLAMA, steps=12)
        (self.work.path / "held.txt").write_bytes((self.work.path / "text.txt").read_bytes()[:20000])
        exact = ["--data", self.work.path / "held.txt", "--json", "--set", "precision.wire=FP32"]
        loss = [json.loads(self.eps("evaluate", "--checkpoint", folder, *exact, *more).stdout)["loss"]
                for folder, more in ((out, []), (self.exported(out, "hf"), ["--set", "data.tokenizer=BYTES"]))]
        self.assertLess(abs(loss[0] - loss[1]), 1e-5)
        base = self.work.out("base")  # which the adapters have left far behind
        self.train_ok(self.work.spec({"model": LLAMA, "steps": 1, "optimizer": {"schedule": {"peak": 1e-9}}}), base)
        untrained = json.loads(self.eps("evaluate", "--checkpoint", base, *exact).stdout)["loss"]
        self.assertGreater(untrained - loss[1], 0.1)

    def test_a_run_begins_with_it(self):
        self.exported(self.trained(LLAMA), "hf")
        for lora in ({}, {"lora": LORA}):
            out = self.work.out(f"after-{len(lora)}")
            self.train_ok(self.work.spec({"model": {"from": "hf", **NO_SHAPE, **lora}, "steps": 2}), out)
            self.assertEqual(summary(out)["steps"], 2)

    def test_train_with_export_and_import_write_the_same(self):
        out, with_run = self.work.out("run"), self.work.out("with")
        spec = self.work.spec({"model": {**LLAMA, "lora": LORA}, "steps": 3, "optimizer": FAST})
        self.train_ok(spec, out, "--export", with_run, "--export-dtype", "BF16")
        after, imported = self.exported(out, "after", "--dtype", "BF16"), self.work.out("in")
        self.assertEqual({p.name: p.read_bytes() for p in with_run.iterdir()},
                         {p.name: p.read_bytes() for p in after.iterdir()})
        again = self.train_ok(spec, out, "--export", with_run, "--export-dtype", "BF16", "--resume")
        self.assertIn("has the model already", again.stdout)
        self.eps("import", "--from", latest_checkpoint(out), "--out", imported)
        self.assertEqual((imported / "model.safetensors").read_bytes(),
                         (self.exported(out, "wide") / "model.safetensors").read_bytes())
        base = self.work.out("base")  # unmerged weights are another model
        self.train_ok(self.work.spec({"model": LLAMA, "steps": 1}, name="base.json"), base, "--export",
                      self.work.out("other"), "--export-dtype", "BF16")
        done = run([str(EPS), "train", "--run", str(spec), "--out", str(out), "--quiet", "--resume", "--export",
                    str(self.work.out("other")), "--export-dtype", "BF16"])
        self.refused(done, 2, "not this run's model", "tensor ")


class AdapterTest(LoraExportTest):
    def grown(self, layers):
        """A run with adapters that began with a folder of three layers, made so deep."""
        self.train_ok(self.work.spec({"model": LLAMA, "steps": 1}), self.work.out("first"), "--export",
                      self.work.out("base"))
        out, grown = self.trained({"from": "base", **NO_SHAPE}), self.work.out("grown")
        self.eps("grow", "--checkpoint", out, "--out", grown, "--layers", layers)
        return grown

    def test_a_llamas_folder_is_peft_s_with_the_tokenizer_and_no_config_of_the_base(self):
        base = self.work.out("base")
        vocab = byte_level_tokenizer.write(self.work.path)
        self.train_ok(self.work.spec({"model": {**LLAMA, "vocab": vocab}, "steps": 1}), self.work.out("first"),
                      "--export", base)
        byte_level_tokenizer.write(base)
        (base / "generation_config.json").write_text('{"temperature": 0.6}')
        out = self.trained({"from": "base", "context": 32, **{key: None for key in NO_SHAPE if key != "context"}},
                           data={"tokenizer": None})
        folder, config, shapes = self.adapter(out)
        self.assertEqual(sorted(p.name for p in folder.iterdir()),
                         ["adapter_config.json", "adapter_model.safetensors", "tokenizer.json"])
        self.assertEqual(config, {
            "peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": str(base), "r": 4,
            "lora_alpha": 6, "use_rslora": False, "lora_dropout": 0.0, "bias": "none", "fan_in_fan_out": False,
            "inference_mode": True, "init_lora_weights": True, "layers_to_transform": None, "modules_to_save": None,
            "target_modules": ["down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"]})
        self.assertEqual(len(shapes), 3 * 7 * 2)
        self.assertEqual(shapes["model.layers.2.mlp.down_proj.lora_A.weight"], [4, 100])
        self.assertEqual(shapes["model.layers.2.mlp.down_proj.lora_B.weight"], [64, 4])
        self.assertEqual(shapes["model.layers.0.self_attn.k_proj.lora_B.weight"], [32, 4])
        header = (folder / "adapter_model.safetensors").read_bytes()[8:]
        self.assertTrue(header.startswith(b'{"__metadata__":{"eps_base_values":"BF16","format":"pt"}'), header[:80])

    def test_base_and_adapter_are_the_merged_model(self):
        self.train_ok(self.work.spec({"steps": 1}), self.work.out("first"), "--export", self.work.out("base"))
        out = self.trained({"from": "base", **NO_SHAPE}, precision={"wire": "FP32", "gradients": "FP32"})
        folder, config, _ = self.adapter(out)
        self.assertTrue(config["fan_in_fan_out"])
        self.assertEqual(config["target_modules"], ["c_attn", "c_fc", "c_proj"])
        tensors = values(self.work.out("base"))
        tensors |= {name.removeprefix("base_model.model."): array
                    for name, array in values(folder, "adapter_model.safetensors").items()}
        wanted = merged(tensors, config["lora_alpha"] / config["r"], is_in_out=True)
        found = values(self.exported(out, "hf"))
        self.assertEqual(sorted(found), sorted(wanted))
        for name, array in wanted.items():
            self.assertTrue((np.abs(found[name] - array) <= 1e-6).all(), name)

    def test_values_are_the_checkpoints_in_every_dtype(self):
        out = self.trained({**LLAMA, "lora": {**LORA, "targets": ["v_proj", "1.mlp.up_proj"]}})
        tensors = values(latest_checkpoint(out))
        for dtype, bits in SIGNIFICAND_BITS.items():
            folder, config, shapes = self.adapter(out, dtype, "--dtype", dtype)
            self.assertEqual(config["target_modules"], ["1.mlp.up_proj", "v_proj"])
            self.assertIsNone(config["base_model_name_or_path"])
            self.assertEqual(len(shapes), 2 * 4)
            raw = safetensors_file.read_raw(folder / "adapter_model.safetensors")
            self.assertEqual({kind for kind, _, _ in raw.values()}, {dtype})
            for name, array in values(folder, "adapter_model.safetensors").items():
                wanted = tensors[name.removeprefix("base_model.model.")]
                limit = np.abs(wanted) * 2.0 ** -bits + (2.0 ** -25 if dtype == "F16" else 0)
                self.assertTrue((np.abs(array - wanted) <= (0 if dtype == "F32" else limit)).all(), name)

    def table(self):
        rows = [f"{'long ' * (i % 7)}text number {i}\t{'many' if i % 2 else 'few'}" for i in range(200)]
        (self.work.path / "rows.tsv").write_text("sentence\tlabel\n" + "\n".join(rows) + "\n")

    def test_a_classifiers_has_its_output_and_what_the_base_lacks(self):
        self.table()
        out = self.trained(**CLASSES)
        _, config, shapes = self.adapter(out)
        self.assertEqual(config["task_type"], "SEQ_CLS")
        self.assertEqual(config["target_modules"], ["intermediate.dense", "key", "output.dense", "query", "value"])
        # Of a model that began from nothing no base has the pooler.
        self.assertEqual(sorted(config["modules_to_save"]), ["bert.pooler.dense", "classifier"])
        self.assertEqual(shapes["classifier.weight"], [2, 64])
        self.assertEqual(shapes["classifier.bias"], [2])
        self.assertEqual(len(shapes), 2 * 6 * 2 + 4)
        self.exported(out, "hf")
        again = self.trained({"from": "hf", **{key: None for key in (*BERT, "classes")}}, "again", steps=2,
                             data={"path": "rows.tsv", "tokenizer": "BYTES"})
        _, config, shapes = self.adapter(again, "peft-again")
        self.assertEqual(config["modules_to_save"], ["classifier"])
        self.assertNotIn("bert.pooler.dense.weight", shapes)
        # Of a checkpoint nobody knows what the model was made of: the pooler comes along, and with another base's name, too.
        third = self.trained({"from": str(latest_checkpoint(again)), "lora": None,
                              **{key: None for key in (*BERT, "classes")}}, "third", steps=2,
                             data={"path": "rows.tsv", "tokenizer": "BYTES"})
        self.assertEqual(sorted(self.adapter(third, "peft-third")[1]["modules_to_save"]),
                         ["bert.pooler.dense", "classifier"])
        named = self.work.out("peft-named")
        self.eps("export", "--checkpoint", again, "--out", named, "--adapter", "--base", "who/bert")
        self.assertEqual(sorted(json.loads((named / "adapter_config.json").read_text())["modules_to_save"]),
                         ["bert.pooler.dense", "classifier"])

    def test_a_model_of_masked_tokens_has_no_task(self):
        out = self.trained({**BERT, "vocab": 257}, data={"mask": {"token": 256}}, steps=2)
        _, config, shapes = self.adapter(out)
        self.assertIsNone(config["task_type"])
        self.assertIsNone(config["modules_to_save"])
        self.assertEqual(len(shapes), 2 * 6 * 2)

    def test_modules_that_were_trained_whole_come_along_and_parts_are_refused_by_name(self):
        out = self.trained({**LLAMA, "freeze": ["!model.norm.weight"]}, "whole")
        folder, config, _ = self.adapter(out)
        self.assertEqual(config["modules_to_save"], ["model.norm"])
        found = values(folder, "adapter_model.safetensors")["base_model.model.model.norm.weight"]
        self.assertTrue((found == values(latest_checkpoint(out))["model.norm.weight"]).all())
        self.assertTrue((found != 1).any())
        for freeze, words in (("!*.0.ln_1.bias", ["module transformer.h.0.ln_1",
                                                  "transformer.h.0.ln_1.weight was not"]),
                              ("!*.c_fc.bias", ["module transformer.h.0.mlp.c_fc has an adapter"]),
                              ("!*.wte.*", ["module transformer.wte", "is the head's table"])):
            out = self.trained({"freeze": [freeze]}, freeze[3:6], steps=1)
            self.refused_whole(out, "--adapter", *words, "leave --adapter out")
            self.exported(out, f"{out.name}-hf")

    def test_what_has_no_adapters_is_refused_by_the_option(self):
        out = self.work.out("run")
        self.train_ok(self.work.spec({"steps": 1}), out)
        self.refused_whole(out, "--adapter: ", "has no adapters (model.lora)")
        self.refused_whole(self.exported(out, "hf"), "--adapter: ", "is no run's checkpoint")
        self.refused_whole(out, "--adapter", "--max-shard-size", args=("--adapter", "--max-shard-size", "5MiB"))

    def test_a_deeper_model_than_its_base_is_refused(self):
        grown = self.grown(5)
        self.refused_whole(grown, "--adapter: ", "has 5 layers, and what it began with 3")

    def test_a_run_that_began_with_a_deeper_model_goes_on_top_of_it_and_goes_on_without_it(self):
        grown = self.grown(4)
        spec = self.work.spec({"model": {"from": str(latest_checkpoint(grown)), **NO_SHAPE}, "steps": 3,
                               "optimizer": FAST}, name="after.json")
        out = self.work.out("after")
        self.begin(spec, out, 2)
        self.assertEqual(json.loads((out / "source" / "config.json").read_text())["num_hidden_layers"], 4)
        _, config, shapes = self.adapter(out)
        self.assertEqual(config["base_model_name_or_path"], str(latest_checkpoint(grown)))
        self.assertEqual(len(shapes), 4 * 7 * 2)
        for folder in ("base", "run", "grown"):
            shutil.rmtree(self.work.out(folder))
        self.train_ok(spec, out, "--resume")
        self.assertEqual(summary(out)["steps"], 3)
        self.assertEqual(self.adapter(out, "again")[2], shapes)


    def test_a_run_that_no_longer_names_its_base_says_so_and_others_name_for_it_is_taken(self):
        self.grown(4)  # of "run", which began with "base"
        branch, after = self.work.out("branch"), self.work.out("after")
        self.eps("branch", "--checkpoint", self.work.out("run"), "--out", branch, "--set", "steps=40")
        self.train_ok(self.work.spec({"model": {"from": str(latest_checkpoint(self.work.out("run"))), **NO_SHAPE},
                                      "steps": 1, "optimizer": FAST}, name="after.json"), after)
        for out, base, words in ((branch, None, "its run no longer names"),
                                 (after, str(latest_checkpoint(self.work.out("run"))), "a run's checkpoint")):
            with self.subTest(out.name):
                silent = self.work.out(f"{out.name}-silent")
                said = self.eps("export", "--checkpoint", out, "--out", silent, "--adapter").stderr
                self.assertIn(words, said)
                self.assertIn("--base names", said)
                self.assertEqual(json.loads((silent / "adapter_config.json").read_text())["base_model_name_or_path"], base)
                named = self.work.out(f"{out.name}-named")
                said = self.eps("export", "--checkpoint", out, "--out", named, "--adapter", "--base", "who/what").stderr
                self.assertNotIn("--base", said)
                self.assertEqual(json.loads((named / "adapter_config.json").read_text())["base_model_name_or_path"],
                                 "who/what")
        self.refused_whole(branch, "--adapter", args=("--base", "who/what"))


class NothingHalfDoneTest(LoraExportTest):
    def test_a_folder_in_the_way_is_left_as_it_is(self):
        out = self.trained(LLAMA, steps=1)
        full = self.work.out("full")
        full.mkdir()
        (full / "file").write_text("x")
        (self.work.path / "plain").write_text("x")
        for args in ([], ["--adapter"]):
            for to, code, error in ((full, 2, "is there and not empty"), (out / "hf", 2, "lies in the run's folder"),
                                    (self.work.path / "plain" / "hf", None, "plain")):
                done = run([str(EPS), "export", "--checkpoint", str(out), "--out", str(to), *args])
                self.assertIn(done.returncode, (1, 2) if code is None else (code,), done.stderr)
                self.assertIn(error, done.stderr)
        self.assertEqual([p.name for p in full.iterdir()], ["file"])
        self.assertEqual(sorted(p.name for p in self.work.path.iterdir()),
                         ["full", "plain", "run", "run.json", "text.txt"])

    def test_a_kill_leaves_no_folder_and_the_next_export_removes_what_it_left(self):
        out = self.trained({**LLAMA, "d_model": 512, "d_ff": 2048}, steps=1)
        for args in ([], ["--adapter"]):
            to = self.work.out("hf")
            for delay in (0.0, 0.05, 0.1, 0.2):
                process = start([EPS, "export", "--checkpoint", out, "--out", to, *args], stdout=DEVNULL,
                                stderr=DEVNULL)
                time.sleep(delay)
                process.kill()
                process.wait()
                if not to.exists():
                    continue
                wanted = "adapter_config.json" if args else "config.json"
                self.assertTrue((to / wanted).exists(), "it was there before it was whole")
                for path in to.iterdir():
                    path.unlink()
                to.rmdir()
            self.exported(out, "hf", *args)
            self.assertEqual(sorted(p.name for p in self.work.path.iterdir()), ["hf", "run", "run.json", "text.txt"])
            for path in to.iterdir():
                path.unlink()
            to.rmdir()
