"""Invariant 6: bad input is refused by name, before anything is started or changed."""

import gzip
import json
import re
import socket
import struct

import byte_level_tokenizer
from eps_run import BIN, EPS, SystemTest, run, summary, train


class BadRunSpecTest(SystemTest):
    def refuse(self, changes, *words, args=()):
        out = self.work.out("run")
        done = train(self.work.spec(changes), out, *args)
        self.refused(done, 2, *words)
        self.assertFalse(out.exists(), "something was started")

    def test_an_unknown_field_is_named(self):
        self.refuse({"batch": {"virtual_knodes": 4}}, "virtual_knodes")

    def test_an_unknown_field_of_a_textproto_is_named_with_its_line(self):
        path = self.work.path / "run.textproto"
        path.write_text('model { family: GPT2 layers: 2\n  d_modell: 64 }\n')
        self.refused(train(path, self.work.out("run")), 2, "d_modell", "run.textproto:2")

    def test_a_wrong_type_is_named(self):
        self.refuse({"model": {"layers": "three"}}, "layers")

    def test_an_unknown_enumerator_is_named(self):
        self.refuse({"optimizer": {"clip": {"mode": "SOMETIMES"}}}, "SOMETIMES")

    def test_heads_that_do_not_divide_d_model_are_named(self):
        self.refuse({"model": {"heads": 5}}, "heads", "d_model", "64")

    def test_a_page_that_others_reach_is_refused_without_naming_flags_of_others(self):
        done = train(self.work.spec(), self.work.out("run"), "--metrics-listen", "0.0.0.0:7000")
        self.refused(done, 2, "--metrics-listen: 0.0.0.0:7000: not a loopback address")
        self.assertNotIn("--metrics-any-address", done.stderr)

    def test_a_gpu_that_is_not_there_is_refused_alike_by_all(self):
        spec, out = self.work.spec({"steps": 1}), self.work.out("trained")
        self.assertEqual(train(spec, out).returncode, 0)
        on = ["--device", "cuda:4095"]  # no machine has so many
        for command in (["train", "--run", spec, "--out", self.work.out("run")], ["verify", "--run", spec],
                        ["sample", "--checkpoint", out], ["profile", "--run", spec, "--out", self.work.path / "profile"]):
            self.refused(run([str(EPS), *map(str, command), *on]), 2, "eps: ")
        self.assertFalse((self.work.path / "profile").exists())
        self.assertFalse(self.work.out("run").exists())

    def test_of_more_workers_than_virtual_nodes_a_run_says_that_some_stand_by_and_no_plan_is_made(self):
        spec = self.work.spec()
        for command in ([EPS, "plan"], [EPS, "doctor", "--no-measuring"]):
            done = run([*map(str, command), "--run", str(spec), "--workers", "5"])
            self.refused(done, 2, "--workers: 5, must be at most 4, as batch.virtual_nodes is: others would have nothing to do")
        for workers, stand_by in ((5, True), (4, False)):
            done = self.train_ok(spec, self.work.out(f"run-{workers}"), "--workers", workers)
            self.assertEqual("warning: 5 workers share batch.virtual_nodes: 4: 1 will stand by" in done.stderr, stand_by)

    def test_zero_steps_are_refused(self):
        self.refuse({"steps": 0}, "steps")

    def test_negative_and_zero_counts_are_named(self):
        for group, field in (("batch", "virtual_nodes"), ("batch", "micro_batch"), ("model", "layers")):
            self.refuse({group: {field: -1}}, field)

    def test_a_set_of_an_unknown_field_is_named(self):
        self.refuse({}, "batch.nothing", args=("--set", "batch.nothing=3"))

    def test_a_missing_run_spec_is_named(self):
        self.refused(train(self.work.path / "nowhere.textproto", self.work.out("run")), 2, "nowhere.textproto")

    def test_not_json(self):
        path = self.work.path / "run.json"
        path.write_text('{"model": ')
        self.refused(train(path, self.work.out("run")), 2, "run.json")


class BadDataTest(SystemTest):
    def refuse(self, changes, *words):
        out = self.work.out("run")
        self.refused(train(self.work.spec(changes), out), 2, *words)
        self.assertFalse(out.exists(), "something was started")

    def test_a_misspelt_template_is_named_by_its_field(self):
        (self.work.path / "chat.jsonl").write_text('{"messages": [{"role": "user", "content": "a"}]}\n')
        self.refuse({"data": {"path": "chat.jsonl", "chat_template": "chatlm"}},
                    'data.chat_template: "chatlm", must be auto, llama3, ')

    def test_what_is_packed_is_not_offered_as_text(self):
        for name, content in (("chat.jsonl.gz", gzip.compress(b"{}")), ("x.parquet", b"PAR1"), ("x.zip", b"PK\3\4")):
            (self.work.path / name).write_bytes(content)
            done = train(self.work.spec({"data": {"path": name}}), self.work.out("run"))
            self.refused(done, 2, "data.path: " + name)
            self.assertNotIn("TEXT", done.stderr)

    def test_what_is_no_text_is_not_trained_on_as_its_bytes(self):
        lines = b'{"text": "so it was"}\n' * 100
        for name, content, words, hint in (
                ("chat.jsonl.gz", gzip.compress(lines), "is compressed by gzip", "unpack it first"),
                ("chat.txt", lines, "is JSON", "data.format: TEXT takes it as it is"),
                ("chat.json", b"[\n" + lines + b"]", "is a JSON array", "data.format: TEXT takes it as it is"),
                ("x.parquet", b"PAR1" + lines, "is Parquet", "as JSONL"),
                ("lfs.txt", b"version https://git-lfs.github.com/spec/v1\n", "is a pointer of Git LFS", "git lfs pull")):
            (self.work.path / name).write_bytes(content)
            for tokenizer in ("BYTES", None):
                self.refuse({"data": {"path": name, "tokenizer": tokenizer}}, "data.path: " + name, words, hint)
        (self.work.path / "wide.txt").write_bytes("so it was\n".encode("utf-16") * 100)
        self.refuse({"data": {"path": "wide.txt", "tokenizer": None}}, "data.path: wide.txt is UTF-16")
        (self.work.path / "ids.bin").write_bytes(b"\1\0" * 1000)
        self.refuse({"data": {"path": "ids.bin", "tokenizer": "MODEL", "tokenizer_path": "."}},
                    "data.tokenizer: MODEL, but data.path holds token ids")
        out = self.work.out("as-it-is")
        self.train_ok(self.work.spec({"steps": 1, "data": {"path": "chat.txt", "format": "TEXT"}}), out)

    def test_json_by_any_name_of_it_is_jsonl(self):
        for name in ("chat.json", "chat.JSONL"):
            (self.work.path / name).write_text('{"text": "so it was, and so it is"}\n' * 40)
            out = self.work.out(f"{name}-run")
            self.train_ok(self.work.spec({"steps": 1, "data": {"path": name, "tokenizer": None}}, name="spec.json"), out)
            self.assertTrue((out / "data" / "tokens.bin.docs").exists())

    def test_an_empty_text_is_refused(self):
        (self.work.path / "empty.txt").write_bytes(b"")
        self.refuse({"data": {"path": "empty.txt"}}, "empty.txt")

    def test_a_text_too_short_for_one_sample_says_how_much_is_needed(self):
        (self.work.path / "short.txt").write_bytes(b"x" * 32)
        self.refuse({"data": {"path": "short.txt"}}, "short.txt", "33")

    def test_a_missing_text_is_named(self):
        self.refuse({"data": {"path": "missing.txt"}}, "missing.txt")

    def test_a_token_beyond_the_vocabulary_is_named_with_its_place(self):
        tokens = [i % 50 for i in range(5000)]
        tokens[4321] = 77
        (self.work.path / "tokens.bin").write_bytes(struct.pack(f"<{len(tokens)}H", *tokens))
        self.refuse({"model": {"vocab": 64}, "data": {"path": "tokens.bin", "tokenizer": None, "token_bytes": 2}},
                    "tokens.bin", "77", "64", "8642")

    def test_a_token_file_of_an_odd_length_is_refused(self):
        (self.work.path / "tokens.bin").write_bytes(b"\0" * 4001)
        self.refuse({"data": {"path": "tokens.bin", "tokenizer": None, "token_bytes": 2}}, "tokens.bin", "4001")

    def test_token_files_of_two_and_four_bytes_train_alike(self):
        tokens = [(i * i) % 200 for i in range(5000)]
        losses = []
        for size, code in ((2, "H"), (4, "I")):
            (self.work.path / f"tokens{size}.bin").write_bytes(struct.pack(f"<{len(tokens)}{code}", *tokens))
            out = self.work.out(f"run{size}")
            spec = self.work.spec({"steps": 3, "data": {"path": f"tokens{size}.bin", "tokenizer": None,
                                                        "token_bytes": size}})
            self.train_ok(spec, out)
            losses.append(summary(out)["loss"])
        self.assertEqual(losses[0], losses[1])


class BadModelFolderTest(SystemTest):
    """Adversarial safetensors, through the whole program."""

    CONFIG = {"model_type": "gpt2", "n_layer": 1, "n_embd": 8, "n_head": 2, "n_positions": 16, "vocab_size": 256,
              "layer_norm_epsilon": 1e-5, "activation_function": "gelu_new", "embd_pdrop": 0, "attn_pdrop": 0,
              "resid_pdrop": 0}

    def setUp(self):
        super().setUp()
        self.folder = self.work.path / "hf"
        self.folder.mkdir()
        (self.folder / "config.json").write_text(json.dumps(self.CONFIG))
        self.file = self.folder / "model.safetensors"
        d, shapes = 8, {"transformer.wte.weight": [256, 8], "transformer.wpe.weight": [16, 8]}
        h = "transformer.h.0."
        shapes.update({h + "ln_1.weight": [d], h + "ln_1.bias": [d], h + "attn.c_attn.weight": [d, 3 * d],
                       h + "attn.c_attn.bias": [3 * d], h + "attn.c_proj.weight": [d, d], h + "attn.c_proj.bias": [d],
                       h + "ln_2.weight": [d], h + "ln_2.bias": [d], h + "mlp.c_fc.weight": [d, 4 * d],
                       h + "mlp.c_fc.bias": [4 * d], h + "mlp.c_proj.weight": [4 * d, d], h + "mlp.c_proj.bias": [d],
                       "transformer.ln_f.weight": [d], "transformer.ln_f.bias": [d]})
        self.header, offset = {}, 0
        for name, shape in shapes.items():
            length = 4 * shape[0] * (shape[1] if len(shape) > 1 else 1)
            self.header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [offset, offset + length]}
            offset += length
        self.data = b"\0" * offset

    def write(self, header=None, data=None, length=None):
        text = json.dumps(self.header if header is None else header).encode()
        data = self.data if data is None else data
        self.file.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)

    def spec(self):
        return self.work.spec({
            "model": {"from": "hf", **{k: None for k in ("family", "layers", "d_model", "heads", "context", "vocab",
                                                         "init_seed")}}, "steps": 2})

    def refuse(self, *words):
        out = self.work.out("run")
        self.refused(train(self.spec(), out), 2, "model.safetensors", *words)
        self.assertFalse(out.exists(), "something was started")
        imported = self.work.out("imported")
        self.refused(run([str(EPS), "import", "--from", str(self.folder), "--out", str(imported)]), 2,
                     "model.safetensors", *words)
        self.assertFalse(imported.exists())

    def test_a_good_folder_trains(self):
        self.write()
        self.train_ok(self.spec(), self.work.out("run"))

    def test_a_folder_without_a_tokenizer_does_not_make_bytes_of_a_text(self):
        self.write()
        spec = json.loads(self.spec().read_text())
        del spec["data"]["tokenizer"]
        path = self.work.path / "no_tokenizer.json"
        path.write_text(json.dumps(spec))
        self.refused(train(path, self.work.out("run")), 2, "data.tokenizer: missing", "tokenizer.json", "tokenizer: BYTES")

    def test_ids_of_another_tokenizer_are_refused(self):
        self.write()
        byte_level_tokenizer.write(self.folder)
        text, ids = self.work.path / "text.txt", self.work.path / "ids.bin"
        self.assertEqual(run([str(EPS), "tokenize", "--tokenizer", "bytes", "--in", str(text), "--out", str(ids)]).returncode, 0)
        spec = json.loads(self.spec().read_text())
        spec["data"].update({"path": "ids.bin", "tokenizer": "TOKEN_IDS"})
        path = self.work.path / "other_tokenizer.json"
        path.write_text(json.dumps(spec))
        self.refused(train(path, self.work.out("run")), 2, "data.path: the ids of", "are of another tokenizer", "model.from")

    def test_missing_file(self):
        self.refuse()

    def test_truncated_data(self):
        self.write(data=self.data[:-5])
        self.refuse()

    def test_header_length_beyond_the_file(self):
        self.write(length=1 << 40)
        self.refuse("header")

    def test_header_of_more_than_100_mb(self):
        self.file.write_bytes(struct.pack("<Q", 100_000_001) + b" " * 100_000_001 + self.data)
        self.refuse("header")

    def test_header_that_is_not_json(self):
        self.file.write_bytes(struct.pack("<Q", 16) + b"{" * 16 + self.data)
        self.refuse("header")

    def test_overlapping_offsets(self):
        name = "transformer.wpe.weight"
        begin, end = self.header[name]["data_offsets"]
        self.header[name]["data_offsets"] = [begin - 64, end - 64]
        self.write()
        self.refuse(name)

    def test_offsets_beyond_the_file(self):
        name = "transformer.ln_f.bias"
        self.header[name]["data_offsets"] = [1 << 60, (1 << 60) + 32]
        self.write()
        self.refuse(name)

    def test_wrong_dtype(self):
        self.header["transformer.wpe.weight"]["dtype"] = "I32"
        self.write()
        self.refuse("transformer.wpe.weight", "I32")

    def test_wrong_shape(self):
        self.header["transformer.wpe.weight"]["shape"] = [8, 16]
        self.write()
        self.refuse("transformer.wpe.weight")

    def test_missing_tensor(self):
        header = {k: v for k, v in self.header.items() if k != "transformer.ln_f.bias"}
        self.write(header=header, data=self.data[:-32])
        self.refuse("ln_f.bias")

    def with_tensor(self, name, shape, data):
        self.header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(self.data), len(self.data) + len(data)]}
        self.data += data

    def test_a_tensor_that_the_model_does_not_have(self):
        self.with_tensor("transformer.h.1.ln_1.weight", [8], b"\0" * 32)
        self.write()
        self.refuse("transformer.h.1.ln_1.weight", "no part of the model")

    def test_a_mask_of_an_older_export_is_no_stranger(self):
        self.with_tensor("transformer.h.0.attn.bias", [1, 1, 16, 16], b"\0" * 1024)
        self.write()
        self.train_ok(self.spec(), self.work.out("run"))

    def test_a_head_of_its_own_is_taken_only_if_it_is_the_token_embedding(self):
        tables = 4 * 256 * 8
        self.with_tensor("lm_head.weight", [256, 8], self.data[:tables])
        self.write()
        self.train_ok(self.spec(), self.work.out("tied"))
        self.data = self.data[:-1] + b"\1"
        self.write()
        self.refuse("lm_head.weight", "token embedding")

    def test_an_index_that_names_a_file_which_is_not_there(self):
        self.write()
        shard = self.folder / "model-00001-of-00002.safetensors"
        self.file.rename(shard)
        index = {"weight_map": {name: shard.name for name in self.header}}
        path = self.folder / "model.safetensors.index.json"
        path.write_text(json.dumps(index))
        self.train_ok(self.spec(), self.work.out("whole"))
        index["weight_map"]["transformer.wpe.weight"] = "model-00002-of-00002.safetensors"
        path.write_text(json.dumps(index))
        self.refuse("index.json", "model-00002-of-00002.safetensors")

    def test_an_unknown_family_is_named(self):
        self.write()
        for family in ("mamba", None, 7):
            (self.folder / "config.json").write_text(json.dumps({**self.CONFIG, "model_type": family}))
            for command in ([EPS, "train", "--run", self.spec(), "--out", self.work.out("run")],
                            [EPS, "plan", "--run", self.spec()],
                            [EPS, "import", "--from", self.folder, "--out", self.work.out("imported")],
                            [EPS, "sample", "--checkpoint", self.folder]):
                done = run(list(map(str, command)))
                self.refused(done, 2, "config.json", "model_type", "mamba" if family == "mamba" else "", "\"llama\"")

    def test_a_config_of_a_wrong_type_is_named(self):
        self.write()
        (self.folder / "config.json").write_text(json.dumps({**self.CONFIG, "n_head": "two"}))
        self.refused(train(self.spec(), self.work.out("run")), 2, "config.json", "n_head", "two")

    def test_config_without_heads(self):
        (self.folder / "config.json").write_text(json.dumps({k: v for k, v in self.CONFIG.items() if k != "n_head"}))
        self.write()
        self.refused(train(self.spec(), self.work.out("run")), 2, "config.json", "n_head")


class BadCheckpointTest(SystemTest):
    def test_a_corrupted_checkpoint_is_named_and_not_trained_from(self):
        spec = self.work.spec({"steps": 6})
        out, exported = self.work.out("run"), self.work.out("exported")
        self.train_ok(spec, out)
        folder = out / "checkpoints" / "step-00000005"
        (out / "checkpoints" / "latest").write_text(folder.name + "\n")  # as if the run had been ended there
        for name in ("model.safetensors", "optimizer.safetensors", "manifest.json"):
            file = folder / name
            good = file.read_bytes()
            at = len(good) // 2
            for bad in (good[:-1], good[:at] + bytes([good[at] ^ 1]) + good[at + 1:], b""):
                file.write_bytes(bad)
                self.refused(train(spec, out, "--resume"), 2, name)
                if name == "model.safetensors":
                    self.refused(run([str(EPS), "export", "--checkpoint", str(folder), "--out", str(exported)]), 2, name)
                    self.assertFalse(exported.exists())
            file.write_bytes(good)
        self.train_ok(spec, out, "--resume")
        self.assertEqual(summary(out)["steps"], 6)


class DoorsTest(SystemTest):
    def test_an_occupied_port_is_named(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            address = f"127.0.0.1:{taken.getsockname()[1]}"
            done = run([str(BIN / "eps_server"), "--run", str(self.work.spec()), "--out", str(self.work.out("run")),
                        "--listen", address], timeout=60)
            self.refused(done, 2, address)
            self.assertFalse(self.work.out("run").exists())

    def test_a_listen_address_that_is_not_loopback_is_refused(self):
        for address in ("0.0.0.0:0", "[::]:0", "10.0.0.1:0", "example.org:0"):
            done = run([str(BIN / "eps_server"), "--run", str(self.work.spec()), "--out", str(self.work.out("run")),
                        "--listen", address], timeout=60)
            self.refused(done, 2, address)
            self.assertFalse(self.work.out("run").exists())

    def test_bad_usage_ends_with_2(self):
        spec = self.work.spec()
        for command in ([EPS, "train"], [EPS, "nothing"], [EPS, "train", "--frobnicate"], [BIN / "eps_server"],
                        [BIN / "gpu_worker"], [BIN / "gpu_worker", "--connect", "127.0.0.1:70000"],
                        [EPS, "status", "--connect", "127.0.0.1"], [EPS, "status"],
                        [EPS, "sample", "--checkpoint", ".", "--temperature", "nan"],
                        [EPS, "plan", "--run", spec, "--device-memory", "12 parsecs"],
                        [EPS, "plan", "--run", spec, "--device-memory", ""]):
            done = run([str(word) for word in command], timeout=60)
            self.assertEqual(done.returncode, 2, f"{command}: {done.stdout} {done.stderr}")
            self.assertNotEqual(done.stderr, "")

    def test_a_misspelt_command_is_named_and_help_is_no_mistake(self):
        self.refused(run([str(EPS), "trian", "--run", "run.json"]), 2, '"trian" is no command; do you mean train?')
        for words in (["--help"], ["--help", "trian"], ["train", "--help"], ["--version"]):
            done = run([str(EPS), *words])
            self.assertEqual((done.returncode, done.stderr), (0, ""), words)
        versions = {run([str(BIN / name), "--version"]).stdout.removeprefix(name)
                    for name in ("eps", "eps_server", "gpu_worker")}
        self.assertEqual(len(versions), 1)
        self.assertRegex(versions.pop(), r"^ \d+\.\d+\.\d+ \(protocol \d+\)\n$")

    def test_a_misspelt_flag_is_named_before_what_is_missing(self):
        for command in ([EPS], [BIN / "eps_server"], [EPS, "train"], [EPS, "plan"], [EPS, "verify"], [EPS, "export"],
                        [EPS, "import"], [EPS, "keys"], [EPS, "sample"], [EPS, "evaluate"], [EPS, "resize"],
                        [EPS, "grow"], [EPS, "branch"], [EPS, "trace"], [EPS, "profile"], [BIN / "gpu_worker"]):
            for words in (["--nonsense"], ["--nonsense", "a"], ["--nonsense=a"]):
                done = run([*map(str, command), *words])
                self.refused(done, 2, "not expected: --nonsense\n")
                self.assertNotIn("required", done.stderr)
        self.refused(run([str(EPS), "train"]), 2, "--run is required")

    def test_help_that_nobody_gets_is_no_success(self):
        for words in ([EPS, "--help"], [EPS, "train", "--help"], [EPS, "--version"],
                      *([BIN / name, word] for name in ("eps_server", "gpu_worker") for word in ("--help", "--version")),
                      [BIN / "gpu_worker", "--probe"]):
            done = run(["sh", "-c", '"$@" >/dev/full', "sh", *map(str, words)])
            self.refused(done, 1, f"{words[0].name}: cannot write all of the output: No space left on device")

    def test_an_out_that_cannot_be_written_to_is_bad_input_whatever_the_reason(self):
        disk = self.work.path / "disk"
        disk.mkdir()
        made = run(["mount", "-t", "tmpfs", "-o", "ro", "eps-test", str(disk)])
        if made.returncode != 0:
            self.skipTest(f"mounting is not allowed here: {made.stderr.strip()}")
        self.addCleanup(run, ["umount", "--lazy", str(disk)])
        spec = self.work.spec()
        self.refused(train(spec, disk / "run"), 2, "Read-only file system", str(disk / "run"))
        for command in ([BIN / "eps_server", "--run", spec, "--out", disk / "run"],
                        [EPS, "tokenize", "--tokenizer", "bytes", "--in", self.work.path / "text.txt", "--out", disk / "x"],
                        [EPS, "keys", "--out", disk / "keys"]):
            self.refused(run(list(map(str, command))), 2, "Read-only file system")

    def test_a_cuda_worker_says_what_is_missing(self):
        out = self.work.out("run")
        done = train(self.work.spec({"steps": 1}), out, "--device", "cuda:0")
        if done.returncode == 0:
            self.skipTest("there is a GPU")
        self.refused(done, 2, "CUDA")
        self.assertFalse(out.exists(), "nothing is started for a device that is not there")
        done = run([str(BIN / "gpu_worker"), "--connect", "127.0.0.1:1", "--device", "cuda:0"])
        if "toolkit" in done.stderr:
            self.refused(done, 2, "made on a machine without the toolkit of CUDA 13")
        else:
            self.refused(done, 1, "no NVIDIA driver is found (libcuda.so.1)", "needs NVIDIA's driver 580")
        self.refused(run([str(BIN / "gpu_worker"), "--connect", "127.0.0.1:1", "--device", "cuda:x"]), 2, "cuda:I")

    def test_a_plan_for_a_device_that_is_not_there_is_a_plan(self):
        spec = self.work.spec({"steps": 1})
        plans = [json.loads(run([str(EPS), "plan", "--run", str(spec), "--device", device, "--json"]).stdout)
                 for device in ("cpu", "cuda", "cuda:7")]
        self.assertEqual(plans[1], plans[2])
        self.assertEqual(plans[0]["host"], plans[1]["host"])
        # bf16 on the wire: activations are half as large, and weights need no expanding.
        self.assertLess(plans[1]["device"]["smallest_cap_bytes"], plans[0]["device"]["smallest_cap_bytes"])
        self.refused(run([str(EPS), "plan", "--run", str(spec), "--device", "gpu"]), 2, "cuda:I")

    def test_help_of_every_command_ends_with_0(self):
        listed = run([str(EPS), "--help"]).stdout.partition("Subcommands:\n")[2]
        commands = re.findall(r"^  (\w+) ", listed, re.M)
        self.assertIn("train", commands)
        for command in ([EPS, "--help"], [BIN / "eps_server", "--help"], [BIN / "gpu_worker", "--help"],
                        *([EPS, name, "--help"] for name in commands)):
            done = run([str(word) for word in command], timeout=60)
            self.assertEqual(done.returncode, 0, f"{command}: {done.stderr}")
            self.assertIn("--", done.stdout)
