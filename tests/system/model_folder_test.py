"""Folders of Hugging Face's form, through the programs: in shards and whole, out and in again, byte by byte."""

import json
import shutil
import struct

import byte_level_tokenizer
import safetensors_file
from eps_run import EPS, SystemTest, latest_checkpoint, model_hash, run, summary, train

NO_SHAPE = {key: None for key in ("family", "layers", "d_model", "heads", "context", "vocab", "init_seed")}


LLAMA = {"family": "LLAMA", "kv_heads": 2, "d_ff": 100, "max_positions": 1 << 24}


class PositionsTest(SystemTest):
    """A model that is made for far more positions than anybody has memory for."""

    def setUp(self):
        super().setUp()
        self.train_ok(self.work.spec({"model": LLAMA, "steps": 1}), self.work.out("first"))
        self.folder = self.work.out("hf")
        self.eps("export", "--checkpoint", self.work.out("first"), "--out", self.folder)
        self.assertEqual(json.loads((self.folder / "config.json").read_text())["max_position_embeddings"], 1 << 24)

    def test_a_text_is_planned_for_its_own_length(self):
        text = self.eps("sample", "--checkpoint", self.folder, "--prompt-tokens", "97,110,100", "--tokens", 40,
                        "--device-memory", "4MiB").stdout
        self.assertEqual(len(text.split()), 40)

    def test_a_run_takes_a_part_of_it(self):
        out = self.work.out("run")
        self.train_ok(self.work.spec({"model": {"from": "hf", **NO_SHAPE, "context": 24}, "steps": 2}), out)
        self.assertEqual(summary(out)["steps"], 2)


# What programs other than this one look for, which nothing here reads.
COMPANIONS = {"generation_config.json": '{"temperature": 0.6}', "tokenizer.json": '{"of": "the source"}',
              "tokenizer_config.json": '{"eos_token": "</s>"}', "special_tokens_map.json": "{}"}
# Of each family: a model, what its run says of data, and what its config.json says in words of its own.
FAMILIES = {
    "gpt2": ({}, {}, {"n_inner": None, "task_specific_params": {"text-generation": {"max_length": 50}}}),
    "mistral": ({**LLAMA, "max_positions": 128}, {},
                {"model_type": "mistral", "architectures": ["MistralForCausalLM"], "sliding_window": None}),
    "bert": ({"family": "BERT", "d_ff": 128, "vocab": 257}, {"mask": {"token": 256}},
             {"architectures": ["BertForMaskedLM"], "pad_token_id": 0}),
}


# Of any tokenizer: the folder's, for all that a run knows. Of bytes it would be none.
IDS = {"path": "ids.bin", "tokenizer": "TOKEN_IDS", "token_bytes": 2}


class SourceTest(SystemTest):
    """What a run from a folder has of it when it goes out again, the folder itself being gone."""

    def setUp(self):
        super().setUp()
        text = (self.work.path / "text.txt").read_bytes()
        (self.work.path / "ids.bin").write_bytes(struct.pack(f"<{len(text)}H", *text))

    def source(self, name):
        """A folder as transformers would have saved it, and its config."""
        model, data, words = FAMILIES[name]
        self.train_ok(self.work.spec({"model": model, "data": data, "steps": 1}), self.work.out(f"{name}-first"))
        folder = self.work.out(name)
        self.eps("export", "--checkpoint", self.work.out(f"{name}-first"), "--out", folder)
        config = {**json.loads((folder / "config.json").read_text()), "bos_token_id": 1, "eos_token_id": [2, 3],
                  "torch_dtype": "float16", "transformers_version": "4.57.0", "unknown": {"kept": [1, None]}, **words}
        (folder / "config.json").write_text(json.dumps(config))
        for companion, text in COMPANIONS.items():
            (folder / companion).write_text(text)
        return folder, config

    def train_from(self, name, folder):
        out = self.work.out(f"{name}-run")
        changes = {"model": {"from": folder.name, **NO_SHAPE}, "data": {**IDS, **FAMILIES[name][1]}, "steps": 1}
        self.train_ok(self.work.spec(changes, name=f"{name}.json"), out)
        shutil.rmtree(folder)
        return out

    def companions(self, folder):
        return {path.name: path.read_text() for path in folder.iterdir()
                if path.name not in ("config.json", "model.safetensors")}

    def test_it_goes_out_as_it_came_in_but_for_the_tensors_type(self):
        for name in FAMILIES:
            with self.subTest(name):
                folder, config = self.source(name)
                out, exported, imported = self.train_from(name, folder), self.work.out("exported"), self.work.out("in")
                said = self.eps("export", "--checkpoint", out, "--out", exported, "--dtype", "BF16").stdout
                self.assertIn(f"from {out}/source: config.json, generation_config.json", said)
                self.assertEqual(json.loads((exported / "config.json").read_text()), {**config, "torch_dtype": "bfloat16"})
                tensors = safetensors_file.read_raw(exported / "model.safetensors")
                self.assertEqual({dtype for dtype, _, _ in tensors.values()}, {"BF16"})
                self.eps("import", "--from", exported, "--out", imported)
                self.assertEqual(json.loads((imported / "config.json").read_text()), {**config, "torch_dtype": "float32"})
                for written in (exported, imported):
                    self.assertEqual(self.companions(written), COMPANIONS)
                    shutil.rmtree(written)

    def test_a_grown_run_has_it_too(self):
        folder, config = self.source("mistral")
        grown, exported = self.work.out("grown"), self.work.out("out")
        self.eps("grow", "--checkpoint", self.train_from("mistral", folder), "--out", grown, "--layers", 5)
        self.eps("export", "--checkpoint", grown, "--out", exported)
        self.assertEqual(json.loads((exported / "config.json").read_text()),
                         {**config, "torch_dtype": "float32", "num_hidden_layers": 5})
        self.assertEqual(self.companions(exported), COMPANIONS)

    def test_a_new_run_leaves_nothing_of_one_that_failed_before_its_first_checkpoint(self):
        folder, config = self.source("mistral")
        out = self.work.out("run")
        (out / "source").mkdir(parents=True)
        for name in ("config.json", "vocab.txt"):
            (out / "source" / name).write_text("of another model")
        self.train_ok(self.work.spec({"model": {"from": folder.name, **NO_SHAPE}, "steps": 1}), out)
        self.assertEqual(json.loads((out / "source" / "config.json").read_text()), config)
        self.assertFalse((out / "source" / "vocab.txt").exists())

    def test_what_cannot_be_copied_is_left_out_with_a_warning(self):
        folder, _ = self.source("mistral")
        (folder / "vocab.txt").mkdir()
        out = self.work.out("run")
        self.train_ok(self.work.spec({"model": {"from": folder.name, **NO_SHAPE}, "steps": 1}), out)
        self.assertIn("WARNING model_file_not_kept file=vocab.txt", (out / "logs" / "eps_server.log").read_text())

    def test_a_run_on_bytes_does_not_take_the_folders_tokenizer_along(self):
        folder, _ = self.source("gpt2")
        out, exported = self.work.out("run"), self.work.out("exported")
        self.train_ok(self.work.spec({"model": {"from": folder.name, **NO_SHAPE}, "steps": 1}), out)
        self.assertIn("has no tokenizer", self.eps("export", "--checkpoint", out, "--out", exported).stderr)
        self.assertEqual(list(self.companions(exported)), ["generation_config.json"])

    def test_a_folder_without_a_tokenizer_is_said_to_have_none(self):
        out = self.work.out("run")
        self.train_ok(self.work.spec({"steps": 1}), out)
        done = self.eps("export", "--checkpoint", out, "--out", self.work.out("hf"))
        self.assertIn("has no tokenizer", done.stderr)
        self.assertIn("llama.cpp cannot convert it", done.stderr)


class ResumeWithoutTheFolderTest(SystemTest):
    """A run from a folder whose tokenizer makes its tokens goes on when the folder is gone."""

    def setUp(self):
        super().setUp()
        self.folder, self.out = self.work.out("hf"), self.work.out("run")
        scratch = self.work.path / "scratch"
        scratch.mkdir()
        model = {"model": {**LLAMA, "vocab": byte_level_tokenizer.write(scratch)}, "steps": 1}
        self.train_ok(self.work.spec(model), self.work.out("first"))
        self.eps("export", "--checkpoint", self.work.out("first"), "--out", self.folder)
        byte_level_tokenizer.write(self.folder)
        self.spec = self.work.spec({"model": {"from": "hf", **NO_SHAPE, "context": 32}, "data": {"tokenizer": None},
                                    "evaluation": {"path": "text.txt", "every_steps": 6}}, name="run.json")
        self.train_ok(self.spec, self.out)
        self.want = model_hash(self.out)

    def go_back(self):
        """To the checkpoint before the last, without the tokens of its data."""
        shutil.rmtree(latest_checkpoint(self.out))
        shutil.rmtree(self.out / "data")
        shutil.rmtree(self.out / "evaluation")

    def resume(self, *args):
        return run([str(EPS), "train", "--run", str(self.spec), "--out", str(self.out), "--resume", *args])

    def test_it_ends_with_the_same_bits_and_says_what_it_took(self):
        self.go_back()
        shutil.rmtree(self.folder)
        done = self.resume()
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(model_hash(self.out), self.want)
        said = f"INFO kept_source_taken gone={self.folder} kept_in={self.out}/source"
        self.assertEqual((done.stdout + done.stderr).count(said), 1, done.stdout + done.stderr)

    def test_nothing_is_said_where_the_folder_is_there(self):
        self.go_back()
        done = self.resume()
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertNotIn("kept_source_taken", done.stdout + done.stderr)

    def test_where_the_run_has_lost_it_too_both_places_are_named(self):
        self.go_back()
        (self.folder / "tokenizer.json").unlink()
        shutil.rmtree(self.out / "source")
        self.refused(self.resume(), 2, "data.tokenizer_path: there is no tokenizer in", str(self.folder), f"{self.out}/source")
        shutil.rmtree(self.folder)
        self.refused(self.resume(), 2, "model.from: ", f"{self.folder}/config.json", f"{self.out}/source/config.json")

    def test_a_folder_that_lies_elsewhere_is_taken_from_there_with_the_tokens_that_were_made(self):
        shutil.rmtree(latest_checkpoint(self.out))
        elsewhere, tokens = self.folder.with_name("elsewhere"), self.out / "data" / "tokens.bin"
        self.folder.rename(elsewhere)
        made = tokens.stat().st_mtime_ns
        done = self.resume("--set", f"model.from={elsewhere}")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(model_hash(self.out), self.want)
        self.assertEqual(tokens.stat().st_mtime_ns, made)
        self.assertNotIn("kept_source_taken", done.stdout + done.stderr)
        self.go_back()
        shutil.rmtree(self.out / "source")  # nor is it needed
        self.folder.mkdir()
        self.refused(self.resume("--set", f"model.from={self.folder}x"), 2, f"{self.folder}x/config.json")
        done = self.resume("--set", f"model.from={elsewhere}")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(model_hash(self.out), self.want)

    def test_a_folder_that_has_become_another_model_is_refused_as_before(self):
        self.go_back()
        config = json.loads((self.folder / "config.json").read_text())
        (self.folder / "config.json").write_text(json.dumps({**config, "rms_norm_eps": 0.25}))
        self.refused(self.resume(), 2, "is of another run: model.layer_norm_eps: was ")


class ExportWithTheRunTest(SystemTest):
    """eps train --export."""

    def test_it_is_what_eps_export_writes(self):
        out, with_run, after = self.work.out("run"), self.work.out("with"), self.work.out("after")
        self.train_ok(self.work.spec({"steps": 2}), out, "--export", with_run, "--export-dtype", "BF16")
        self.eps("export", "--checkpoint", out, "--out", after, "--dtype", "BF16")
        self.assertEqual({p.name: p.read_bytes() for p in with_run.iterdir()},
                         {p.name: p.read_bytes() for p in after.iterdir()})

    def test_what_cannot_be_written_is_refused_before_the_run_starts(self):
        full = self.work.out("full")
        full.mkdir()
        (full / "file").write_text("x")
        spec, out = self.work.spec({"steps": 1}), self.work.out("run")
        for folder, more, error in ((full, [], "--export: "), (out, [], "the run's folder"),
                                    (out / "hf", [], "lies in the run's folder"),
                                    (self.work.path / "hf", ["--set", "checkpoint.last=false"], "checkpoint.last is false")):
            self.refused(train(spec, out, "--export", folder, *more), 2, error)
            self.assertFalse(out.exists())
        self.refused(train(spec, out, "--export-dtype", "BF16"), 2, "--export")
        unsaid = self.work.spec({"model": {"family": "LLAMA", "layers": 1, "d_model": 16, "heads": 2, "context": 8,
                                           "vocab": 256, "d_ff": 32, "out_bias": True}}, name="unsaid.json")
        self.refused(train(unsaid, out, "--export", self.work.path / "hf"), 2, "--export: model.", "model.out_bias: true")
        self.assertFalse(out.exists())

    def test_broken_files_beside_the_weights_are_refused_before_the_run_starts(self):
        self.train_ok(self.work.spec({"steps": 1}), self.work.out("first"), "--export", self.work.out("hf"))
        spec = self.work.spec({"model": {"from": "hf", **NO_SHAPE}, "steps": 1}, name="from.json")
        out, exported, broken = self.work.out("run"), self.work.out("exported"), self.work.path / "hf/generation_config.json"
        for text, error in (("{", "generation_config.json: not valid JSON"), ("", "generation_config.json: empty")):
            broken.write_text(text)
            self.refused(train(spec, out, "--export", exported), 2, "--export: ", error)
            self.refused(run([str(EPS), "import", "--from", str(broken.parent), "--out", str(exported)]), 2, error)
            self.assertFalse(out.exists() or exported.exists())
        self.train_ok(spec, out)  # which needs none of it
        self.refused(train(spec, out, "--resume", "--export", exported), 2, f"--export: {out}/source: ", error)

    def test_a_resume_of_a_run_that_is_done_and_exported_ends_well_and_changes_nothing(self):
        spec, out, folder = self.work.spec({"steps": 2}), self.work.out("run"), self.work.out("hf")
        self.train_ok(spec, out, "--export", folder)
        (folder / "config.json").touch()
        before = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
        done = self.train_ok(spec, out, "--export", folder, "--resume")
        self.assertIn("has the model already", done.stdout)
        self.assertEqual({path.name: path.stat().st_mtime_ns for path in folder.iterdir()}, before)
        shutil.rmtree(folder)
        self.train_ok(spec, out, "--export", folder, "--resume")
        self.assertTrue((folder / "model.safetensors").exists())

    def test_a_resume_takes_no_other_model_for_its_own(self):
        spec, out, other = self.work.spec({"steps": 2}), self.work.out("run"), self.work.out("other")
        self.train_ok(spec, out)
        self.train_ok(self.work.spec({"steps": 1}, name="other.json"), self.work.out("another"), "--export", other)
        before = (other / "model.safetensors").read_bytes()
        self.refused(train(spec, out, "--export", other, "--resume"), 2, "--export", "not this run's model", "tensor ")
        own = self.work.out("own")
        self.train_ok(spec, out, "--export", own, "--export-dtype", "BF16", "--resume")
        self.assertIn("has the model already",
                      self.train_ok(spec, out, "--export", own, "--export-dtype", "BF16", "--resume").stdout)
        self.refused(train(spec, out, "--export", own, "--resume"), 2, "config.json", "F32")
        narrow = json.loads((own / "config.json").read_text())
        wide = json.dumps({**narrow, "n_layer": narrow["n_layer"] + 1})
        (own / "config.json").write_text(wide)
        self.refused(train(spec, out, "--export", own, "--export-dtype", "BF16", "--resume"), 2, "config.json")
        self.assertEqual((own / "config.json").read_text(), wide)
        self.assertEqual((other / "model.safetensors").read_bytes(), before)

    def test_a_run_whose_export_fails_ends_with_1_and_names_its_checkpoint(self):
        out, in_the_way = self.work.out("run"), self.work.path / "file"
        in_the_way.write_text("x")
        done = train(self.work.spec({"steps": 1}), out, "--export", in_the_way / "hf")
        self.refused(done, 1, "--export: the run is done, its checkpoint is", "step-00000001", "eps export --checkpoint")
        self.assertEqual(summary(out)["steps"], 1)


class ShardsTest(SystemTest):
    def shards(self, folder):
        """Every tensor of the folder as its bytes; each shard is what the index says of it."""
        index = json.loads((folder / "model.safetensors.index.json").read_text())
        tensors, files = {}, sorted(set(index["weight_map"].values()))
        self.assertEqual(files, [f"model-{i + 1:05}-of-{len(files):05}.safetensors" for i in range(len(files))])
        for name in files:
            shard = safetensors_file.read_raw(folder / name)
            self.assertEqual({index["weight_map"][tensor] for tensor in shard}, {name})
            tensors.update(shard)
        self.assertEqual(set(tensors), set(index["weight_map"]))
        self.assertEqual(index["metadata"]["total_size"], sum(len(data) for _, _, data in tensors.values()))
        self.assertEqual(sorted(p.name for p in folder.iterdir()),
                         sorted([*files, "config.json", "model.safetensors.index.json"]))
        return files, tensors

    def test_a_checkpoint_goes_out_in_shards_and_comes_back_byte_by_byte(self):
        out = self.work.out("run")
        self.train_ok(self.work.spec({"steps": 2}), out)
        checkpoint = latest_checkpoint(out)
        wanted = safetensors_file.read_raw(checkpoint / "model.safetensors")
        shards, whole = self.work.out("shards"), self.work.out("whole")
        self.eps("export", "--checkpoint", out, "--out", shards, "--max-shard-size", "200KiB")
        files, tensors = self.shards(shards)
        self.assertGreater(len(files), 2)
        self.assertEqual(tensors, wanted)
        for name in files:
            self.assertLessEqual(sum(len(data) for _, _, data in safetensors_file.read_raw(shards / name).values()),
                                 200 * 1024)
        self.eps("import", "--from", shards, "--out", whole)
        self.assertEqual(safetensors_file.read_raw(whole / "model.safetensors"), wanted)
        self.assertEqual((whole / "config.json").read_bytes(), (checkpoint / "config.json").read_bytes())

    def test_a_folder_of_16_bits_is_copied_byte_by_byte_in_its_own_form(self):
        out = self.work.out("run")
        self.train_ok(self.work.spec({"steps": 1}), out)
        for dtype in ("BF16", "F16"):
            first, again = self.work.out(dtype), self.work.out(dtype + "-again")
            self.eps("export", "--checkpoint", out, "--out", first, "--dtype", dtype, "--max-shard-size", "100KiB")
            self.eps("export", "--checkpoint", first, "--out", again, "--dtype", dtype)
            _, tensors = self.shards(first)
            self.assertEqual({kind for kind, _, _ in tensors.values()}, {dtype})
            self.assertEqual(tensors, safetensors_file.read_raw(again / "model.safetensors"))

    def test_a_run_from_shards_gives_the_bits_of_one_from_the_whole_file(self):
        out = self.work.out("run")
        self.train_ok(self.work.spec({"steps": 1}), out)
        hashes = set()
        for name, size in (("whole", "1GiB"), ("shards", "64KiB")):
            folder, after = self.work.out(name), self.work.out(f"from-{name}")
            self.eps("export", "--checkpoint", out, "--out", folder, "--max-shard-size", size)
            self.train_ok(self.work.spec({"model": {"from": name, **NO_SHAPE}, "steps": 2}, name=f"{name}.json"), after)
            hashes.add(model_hash(after))
        self.assertEqual(len(hashes), 1)

    def test_a_weight_that_is_no_number_is_named_with_its_shard_and_byte(self):
        out, folder, copy = self.work.out("run"), self.work.out("hf"), self.work.out("copy")
        self.train_ok(self.work.spec({"steps": 1}), out)
        self.eps("export", "--checkpoint", out, "--out", folder, "--max-shard-size", "64KiB")
        shard = sorted(folder.glob("*.safetensors"))[1]
        data = bytearray(shard.read_bytes())
        first = 8 + int.from_bytes(data[:8], "little")  # of the first tensor
        data[first + 12:first + 16] = struct.pack("<f", float("inf"))
        shard.write_bytes(data)
        self.refused(run([str(EPS), "import", "--from", str(folder), "--out", str(copy)]), 2, f"{shard}: tensor ",
                     f"element 3 at byte {first + 12}: inf, must be finite")
        self.assertFalse(copy.exists())

    def test_an_export_that_is_refused_leaves_nothing(self):
        out = self.work.out("run")
        self.train_ok(self.work.spec({"steps": 1}), out)
        before = sorted(self.work.path.iterdir())
        for size in ("0", "-1", "many", ""):
            self.refused(run([str(EPS), "export", "--checkpoint", str(out), "--out", str(self.work.out("hf")),
                              "--max-shard-size", size]), 2, "--max-shard-size")
        self.assertEqual(sorted(self.work.path.iterdir()), before)
