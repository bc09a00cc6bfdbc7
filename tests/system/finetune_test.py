"""docs/finetune.md: its commands, in its order, on a small model of the same family."""

import json
import re
import shlex
import struct
import unittest

import byte_level_tokenizer
import safetensors_file
import torch_llama
from data_test import conversations
from eps_run import EPS, ROOT, SystemTest, metrics, run, summary
from preferences_test import pairs

try:
    import jinja2
except ImportError:
    jinja2 = None

# What makes the run small: nothing else of its file is changed.
SMALL = ["--set", "model.context=64"]
WITH_RUN = {"plan", "doctor", "verify", "train"}


class FinetuneTest(SystemTest):
    def make_model(self):
        folder = self.work.path / "model"
        folder.mkdir()
        config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "num_hidden_layers": 2, "hidden_size": 48,
                  "num_attention_heads": 6, "num_key_value_heads": 2, "intermediate_size": 100, "hidden_act": "silu",
                  "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "tie_word_embeddings": False,
                  "vocab_size": byte_level_tokenizer.write(folder), "rope_theta": 500000.0,
                  "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                                   "original_max_position_embeddings": 8192},
                  "torch_dtype": "float16", "transformers_version": "4.43.0.dev0", "pretraining_tp": 1}
        config |= {"bos_token_id": self.token("<|begin_of_text|>"), "eos_token_id": self.token("<|end_of_text|>")}
        safetensors_file.write(folder / "model.safetensors",
                               {k: v.numpy() for k, v in torch_llama.random_weights(config, seed=3).items()})
        (folder / "config.json").write_text(json.dumps(config))
        # As a base model comes: a text ends, a turn does not, and there is no chat template.
        (folder / "generation_config.json").write_text(json.dumps(
            {"bos_token_id": config["bos_token_id"], "eos_token_id": config["eos_token_id"], "temperature": 0.6}))
        (folder / "tokenizer_config.json").write_text(json.dumps(
            {"bos_token": "<|begin_of_text|>", "eos_token": "<|end_of_text|>", "model_max_length": 131072}))
        return folder

    def token(self, spelling):
        return len(byte_level_tokenizer.alphabet()) + len(byte_level_tokenizer.MERGES) + \
            byte_level_tokenizer.SPECIALS.index(spelling)

    def write(self, name, lines):
        path = self.work.path / name
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        return path

    def commands(self):
        text = (ROOT / "docs" / "finetune.md").read_text()
        return [shlex.split(line) for block in re.findall(r"```sh\n(.*?)```", text, re.S)
                for line in block.strip().splitlines()]

    def test_the_pages_commands_do_what_it_says(self):
        folder = self.make_model()
        chat, better = self.write("chat.jsonl", conversations(400)), self.write("pairs.jsonl", pairs())
        out = self.work.path / "out"
        out.mkdir()
        places = {  # a model that follows instructions is what the page's own export is
            "/models/Llama-3.1-8B-Instruct": str(out / "llama3_8b-hf"), "/models/Llama-3.1-8B": str(folder),
            "/data/chat.jsonl": str(chat), "/data/held.jsonl": str(chat), "/data/pairs.jsonl": str(better),
            "/data/held_pairs.jsonl": str(better), "cuda:0": "cpu", "22GiB": "256MiB"}
        outputs = {}
        for command in self.commands():
            self.assertEqual(command[0], "bin/eps")
            for name, place in places.items():
                command = [word.replace(name, place) for word in command]
            command = [re.sub(r"(^|=)(\.\./)?out/", rf"\g<1>{out}/", word) for word in command]
            if command[1] in WITH_RUN:
                command += SMALL
            if command[1] == "sample":
                command += ["--no-stop"]  # twelve steps may have taught it to say nothing
            if command[1] == "train":
                command += ["--steps", "12", "--quiet", "--set", "optimizer.schedule.peak=1e-2",
                            "--set", "optimizer.schedule.warmup_steps=2"]
            done = run([str(EPS), *command[1:]], cwd=ROOT, errors="replace")  # a token may be half a character
            self.assertEqual(done.returncode, 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}")
            outputs[command[1]] = done.stdout
        self.assertEqual(set(outputs), WITH_RUN | {"tokenize", "sample", "evaluate", "export", "import"})
        self.assertIn("same bits", outputs["verify"])
        self.assertTrue(outputs["sample"].strip(), "it has nothing to say")
        self.assertNotIn("Where is Basel?", outputs["sample"])  # an answer alone
        loss = summary(out / "llama3_8b")["loss"]
        self.assertLess(loss[-1], loss[0] - 1.0)
        preferred = [line["accuracy"] for line in metrics(out / "llama3_8b_dpo")]
        self.assertGreater(preferred[-1], preferred[0] + 0.5)
        exported = out / "llama3_8b-hf"
        self.assertEqual((exported / "tokenizer.json").read_bytes(), (folder / "tokenizer.json").read_bytes())
        was, now = (safetensors_file.read_raw(path / "model.safetensors") for path in (folder, exported))
        self.assertEqual({k: ("BF16", shape) for k, (_, shape, _) in was.items()},
                         {k: (dtype, shape) for k, (dtype, shape, _) in now.items()})
        self.check_chat_model(folder, exported)

    def check_chat_model(self, base, exported):
        """That other programs load it as what it is, and stop where an answer ends."""
        was, now = (json.loads((folder / "config.json").read_text()) for folder in (base, exported))
        end_of_turn = self.token("<|eot_id|>")
        self.assertEqual(now, {**was, "torch_dtype": "bfloat16", "eos_token_id": end_of_turn})
        self.assertEqual(json.loads((exported / "generation_config.json").read_text()),
                         {"bos_token_id": was["bos_token_id"], "temperature": 0.6,
                          "eos_token_id": [end_of_turn, was["eos_token_id"]]})
        self.assertEqual(json.loads((exported / "tokenizer_config.json").read_text()),
                         {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>", "model_max_length": 131072})
        self.assertIn("<|start_header_id|>user<|end_header_id|>", (exported / "chat_template.jinja").read_text())


# The names of data.chat_template, and whether they have a place for the system and for tools. That of Qwen3 is told of answers
# with thoughts by the model's own alone.
TEMPLATES = {"llama3": "both", "llama31": "both", "chatml": "both", "qwen25": "both", "plain": "both", "llama2": "system",
             "mistral": "system"}
SPECIALS = [*byte_level_tokenizer.SPECIALS, "<|im_start|>", "<|im_end|>", "<s>", "</s>"]
TALKS = [
    [("user", "Where is Basel?"), ("assistant", "By the Rhine.")],
    [("user", " a "), ("assistant", " b "), ("user", "it's \\ 'c'\n"), ("assistant", "d")],
    [("system", " Be brief. "), ("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d")],
    [("user", "a"), ("assistant", "look"), ("tool", "{\"x\": 1}"), ("tool", "two"), ("assistant", "b")],
]


@unittest.skipIf(jinja2 is None, "python3-jinja2 is not installed")
class ChatTemplateTest(SystemTest):
    """chat_template.jinja of an export renders the text of the tokens that the run was taught."""

    def taught(self, tokenizer, template, talks):
        """The spelling of each conversation's tokens."""
        data, out = self.work.path / "talks.jsonl", self.work.path / f"{template}.bin"
        data.write_text("".join(json.dumps({"messages": [{"role": r, "content": c} for r, c in talk]}) + "\n"
                                for talk in talks))
        done = run([str(EPS), "tokenize", "--tokenizer", str(tokenizer), "--in", str(data), "--out", str(out),
                    "--template", template])
        self.assertEqual(done.returncode, 0, done.stderr)
        ids = struct.unpack(f"<{out.stat().st_size // 2}H", out.read_bytes())
        index = out.with_name(out.name + ".docs").read_bytes()
        count = struct.unpack_from("<Q", index, 16)[0]
        starts = struct.unpack_from(f"<{count}Q", index, 64)
        return [self.text(tokenizer, ids[a:b]) for a, b in zip(starts, [*starts[1:], len(ids)])]

    def text(self, tokenizer, ids):
        file = json.loads((tokenizer / "tokenizer.json").read_text())
        bytes_of = {c: bytes([b]) for b, c in byte_level_tokenizer.alphabet().items()}
        spelled = {id: b"".join(bytes_of[c] for c in word) for word, id in file["model"]["vocab"].items()}
        spelled |= {token["id"]: token["content"].encode() for token in file["added_tokens"]}
        return b"".join(spelled[id] for id in ids).decode()

    def exported_template(self, tokenizer, template):
        spec = self.work.spec({"model": {"vocab": 300, "context": 128}, "steps": 1,
                               "data": {"path": "talks.jsonl", "tokenizer": None, "tokenizer_path": str(tokenizer),
                                        "chat_template": template}})
        out, folder = self.work.out(template), self.work.out(f"{template}-hf")
        self.train_ok(spec, out, "--export", folder)
        return (folder / "chat_template.jinja").read_text()

    def tokenizer(self):
        folder = self.work.path / "tokenizer"
        folder.mkdir()
        byte_level_tokenizer.write(folder, SPECIALS)
        return folder

    def test_a_run_keeps_what_auto_turned_out_to_be(self):
        tokenizer = self.tokenizer()
        self.taught(tokenizer, "auto", TALKS[:1])
        self.exported_template(tokenizer, "auto")
        self.assertEqual(json.loads((self.work.out("auto") / "source" / "conversations.json").read_text()),
                         {"chat_template": "llama3"})

    def test_each_renders_what_its_run_was_taught(self):
        tokenizer = self.tokenizer()
        environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)  # as transformers has it
        environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
        for template, places in TEMPLATES.items():
            with self.subTest(template):
                talks = [talk for talk in TALKS if places == "both" or all(role != "tool" for role, _ in talk)]
                taught = self.taught(tokenizer, template, talks)
                renderer = environment.from_string(self.exported_template(tokenizer, template))
                for talk, text in zip(talks, taught, strict=True):
                    messages = [{"role": role, "content": content} for role, content in talk]
                    self.assertEqual(renderer.render(messages=messages), text)
                    asked = renderer.render(messages=messages[:-1], add_generation_prompt=True)
                    self.assertTrue(text.startswith(asked), f"{asked!r}\n{text!r}")
