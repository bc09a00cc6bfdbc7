"""Adapters of PEFT's form as a start: eps import --adapter puts them beside the model that they go on top of."""

import json
import math
import shutil

import safetensors_file
from eps_run import EPS, SystemTest, latest_checkpoint, merged, run, summary

LLAMA = {"family": "LLAMA", "layers": 3, "d_model": 64, "heads": 4, "kv_heads": 2, "d_ff": 96, "context": 32, "vocab": 256,
         "init_seed": 1}
LORA = {"rank": 4, "alpha": 6, "dropout": 0.05}
FAST = {"optimizer": {"schedule": {"peak": 1e-2, "warmup_steps": 1}}, "data": {"tokenizer": "BYTES"}}
BERT = {"family": "BERT", "layers": 2, "d_model": 64, "heads": 4, "d_ff": 128, "context": 32, "vocab": 256,
        "init_seed": 1}
NO_SHAPE = {key: None for key in ("family", "layers", "d_model", "heads", "context", "vocab", "init_seed")}


class LoraImportTest(SystemTest):
    def setUp(self):
        super().setUp()
        self.base, self.peft = self.work.out("base"), self.work.out("peft")

    def trained(self, model, targets=()):
        """A run with adapters beside a base in 16 bits, and its adapters in PEFT's form."""
        self.train_ok(self.work.spec({"model": model, "steps": 2}, name="first.json"), self.work.out("first"))
        self.eps("export", "--checkpoint", self.work.out("first"), "--out", self.base, "--dtype", "BF16", "--max-shard-size",
                 "100KiB")
        out = self.work.out("run")
        lora = {**LORA, "targets": list(targets)}
        self.train_ok(self.work.spec(merged(FAST, {"model": {**NO_SHAPE, "from": "base", "lora": lora}})), out)
        self.eps("export", "--checkpoint", out, "--out", self.peft, "--adapter")
        return out

    def imported(self, name="start"):
        folder = self.work.out(name)
        said = self.eps("import", "--from", self.base, "--adapter", self.peft, "--out", folder).stdout
        return folder, said

    def test_what_was_exported_comes_back_as_it_was_beside_the_same_base(self):
        for family, model, targets in (("gpt2", {}, ["c_attn", "1.mlp.c_proj"]), ("llama", LLAMA, [])):
            with self.subTest(family):
                out = self.trained(model, targets)
                folder, said = self.imported()
                adapters = sum(name.endswith("lora_A.weight") for name in safetensors_file.read_raw(latest_checkpoint(out)))
                weights = sum(math.prod(shape) for _, shape, _ in safetensors_file.read_raw(self.base).values())
                self.assertIn(f"{weights} parameters of {self.base}, whose files are linked, and adapters of rank 4 beside "
                              f"{adapters} weights", said)
                self.assertIn(f"they were trained beside {self.base}, as adapter_config.json has it", said)
                self.assertEqual(safetensors_file.read_raw(folder), safetensors_file.read_raw(latest_checkpoint(out)))
                for shard in self.base.glob("model*.safetensors"):
                    self.assertTrue(shard.samefile(folder / shard.name), shard)

                # Merged, in PEFT's form again, and what it says: the same as of the checkpoint that it came from.
                for name, checkpoint in (("of-run", out), ("of-import", folder)):
                    self.eps("export", "--checkpoint", checkpoint, "--out", self.work.out(name))
                self.assertEqual((self.work.out("of-run") / "model.safetensors").read_bytes(),
                                 (self.work.out("of-import") / "model.safetensors").read_bytes())
                self.assertTrue(self.eps("sample", "--checkpoint", folder, "--prompt", "and the ", "--tokens", 4).stdout)

                # A run goes on with them, without the folder too.
                spec = self.work.spec(merged(FAST, {"model": {**NO_SHAPE, "from": "start", "lora": {"dropout": 0.1}}, "steps": 6}), name="on.json")
                on = self.work.out("on")
                self.begin(spec, on, 3)
                shutil.rmtree(folder)
                self.train_ok(spec, on, "--resume", "--workers", 2)
                self.assertLess(summary(on)["loss_first"], summary(out)["loss_first"])
                self.assertNotIn("adapters_new", (on / "logs" / "eps_server.log").read_text())
                said = json.loads((latest_checkpoint(on) / "config.json").read_text())["eps_lora"]
                self.assertEqual((said["rank"], said["alpha"], said["dropout"]), (4, 6.0, 0.1))
                again = self.eps("export", "--checkpoint", on, "--out", self.work.out("peft-again"), "--adapter")
                self.assertIn("--base names the model without them", again.stderr)
                for path in self.work.path.iterdir():
                    if path.is_dir():
                        shutil.rmtree(path)

    def test_a_classifier_s_head_and_norms_that_were_trained_take_the_place_of_the_bases(self):
        rows = [f"{'good' if i % 2 else 'bad'} text {i}\t{i % 2}" for i in range(40)]
        (self.work.path / "rows.tsv").write_text("sentence\tlabel\n" + "\n".join(rows) + "\n")
        data = {"path": "rows.tsv", "tokenizer": "BYTES"}
        self.train_ok(self.work.spec({"model": {**BERT, "classes": 2}, "data": data, "steps": 2}, name="first.json"),
                      self.work.out("first"))
        self.eps("export", "--checkpoint", self.work.out("first"), "--out", self.base)
        out = self.work.out("run")
        self.train_ok(self.work.spec(merged(FAST, {"model": {**{key: None for key in BERT}, "from": "base", "lora": LORA,
                                                             "freeze": ["!*.1.output.LayerNorm.*"]},
                                                   "precision": {"wire": "FP32", "gradients": "FP32"},
                                                   "data": data})), out)
        self.eps("export", "--checkpoint", out, "--out", self.peft, "--adapter")
        folder, said = self.imported()
        self.assertIn("in the place of the model's own: classifier.weight, classifier.bias, bert.encoder.layer.1.output.LayerNorm.weight, ", said)
        self.assertIn(" copied, and adapters of rank 4", said)
        self.assertEqual(safetensors_file.read_raw(folder), safetensors_file.read_raw(latest_checkpoint(out)))
        for name, checkpoint in (("of-run", out), ("of-import", folder)):
            self.eps("export", "--checkpoint", checkpoint, "--out", self.work.out(name))
        self.assertEqual((self.work.out("of-run") / "model.safetensors").read_bytes(),
                         (self.work.out("of-import") / "model.safetensors").read_bytes())

    def test_the_adapters_own_tokenizer_comes_along(self):
        self.trained({})
        (self.base / "tokenizer.json").write_text("{}")
        (self.base / "chat_template.jinja").write_text("base")
        (self.base / "generation_config.json").write_text("{}")
        folder, _ = self.imported("first-start")
        self.assertEqual((folder / "chat_template.jinja").read_text(), "base")
        (self.peft / "chat_template.jinja").write_text("own")
        folder, said = self.imported("without-vocabulary")
        self.assertEqual((folder / "chat_template.jinja").read_text(), "base")
        self.assertIn("no vocabulary of its own: chat_template.jinja", said)
        (self.peft / "chat_template.jinja").unlink()
        (self.peft / "tokenizer.json").write_text('{"own": 1}')
        folder, _ = self.imported("second-start")
        self.assertEqual((folder / "tokenizer.json").read_text(), '{"own": 1}')
        self.assertFalse((folder / "chat_template.jinja").exists())
        self.assertTrue((folder / "generation_config.json").exists())

    def test_what_does_not_fit_is_refused_by_its_name_and_nothing_is_left(self):
        out = self.trained({})
        config = json.loads((self.peft / "adapter_config.json").read_text())
        start = self.work.out("start")

        def refused(*words, base=self.base, **members):
            (self.peft / "adapter_config.json").write_text(json.dumps({**config, **members}))
            self.refused(run([str(EPS), "import", "--from", str(base), "--adapter", str(self.peft), "--out", str(start)]), 2,
                         *words)
            self.assertFalse(start.exists())
            self.assertEqual(list(self.work.path.glob("start*")), [])

        self.refused(run([str(EPS), "import", "--from", str(self.base), "--adapter", "", "--out", str(start)]), 2,
                     "--adapter: is empty")
        refused("adapter_config.json: use_dora: true, must be absent", use_dora=True)
        refused("adapter_config.json: a_later_variant: ", a_later_variant={"scale": 2})
        refused("adapter_model.safetensors: tensor base_model.model.transformer.h.0.attn.c_attn.lora_A.weight at byte ",
                "has the shape (4, 64), adapter_config.json and the model ask for (5, 64)", r=5)
        refused("is a run's checkpoint; export it first", base=latest_checkpoint(out))
        (self.peft / "adapter_config.json").write_text(json.dumps(config))
        folder, _ = self.imported("adapted")
        refused("has adapters already; merge them first", base=folder)
        (self.peft / "adapter_model.safetensors").rename(self.peft / "adapter_model.bin")
        refused("adapter_model.bin is not read: save the adapter as safetensors")
