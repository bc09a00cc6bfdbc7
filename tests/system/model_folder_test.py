"""Folders of Hugging Face's form, through the programs: in shards and whole, out and in again, byte by byte."""

import json

import safetensors_file
from eps_run import EPS, SystemTest, latest_checkpoint, model_hash, run, summary

NO_SHAPE = {key: None for key in ("family", "layers", "d_model", "heads", "context", "vocab", "init_seed")}


LLAMA = {"family": "LLAMA", "kv_heads": 2, "d_ff": 100, "max_positions": 1 << 24}


class FolderTest(SystemTest):
    def eps(self, *words):
        done = run([str(EPS), *map(str, words)])
        self.assertEqual(done.returncode, 0, done.stderr)
        return done


class PositionsTest(FolderTest):
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


class ShardsTest(FolderTest):
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

    def test_an_export_that_is_refused_leaves_nothing(self):
        out = self.work.out("run")
        self.train_ok(self.work.spec({"steps": 1}), out)
        before = sorted(self.work.path.iterdir())
        for size in ("0", "-1", "many", ""):
            self.refused(run([str(EPS), "export", "--checkpoint", str(out), "--out", str(self.work.out("hf")),
                              "--max-shard-size", size]), 2, "--max-shard-size")
        self.assertEqual(sorted(self.work.path.iterdir()), before)
