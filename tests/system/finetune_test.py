"""docs/finetune.md: its commands, in its order, on a small model of the same family."""

import json
import re
import shlex

import byte_level_tokenizer
import safetensors_file
import torch_llama
from data_test import conversations
from eps_run import EPS, ROOT, SystemTest, run, summary

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
                                   "original_max_position_embeddings": 8192}}
        safetensors_file.write(folder / "model.safetensors",
                               {k: v.numpy() for k, v in torch_llama.random_weights(config, seed=3).items()})
        (folder / "config.json").write_text(json.dumps(config))
        return folder

    def commands(self):
        text = (ROOT / "docs" / "finetune.md").read_text()
        return [shlex.split(line) for block in re.findall(r"```sh\n(.*?)```", text, re.S)
                for line in block.strip().splitlines()]

    def test_the_pages_commands_do_what_it_says(self):
        folder = self.make_model()
        chat = self.work.path / "chat.jsonl"
        chat.write_text("".join(json.dumps(line) + "\n" for line in conversations(400)))
        (self.work.path / "out").mkdir()
        places = {"/models/Llama-3.1-8B": str(folder), "/data/chat.jsonl": str(chat), "cuda:0": "cpu", "22GiB": "256MiB"}
        outputs = {}
        for command in self.commands():
            self.assertEqual(command[0], "bin/eps")
            for name, place in places.items():
                command = [word.replace(name, place) for word in command]
            command = [str(self.work.path / word) if word.startswith("out/") else word for word in command]
            if command[1] in WITH_RUN:
                command += SMALL
            if command[1] == "train":
                command += ["--steps", "12", "--quiet", "--set", "optimizer.schedule.peak=1e-2",
                            "--set", "optimizer.schedule.warmup_steps=2"]
            done = run([str(EPS), *command[1:]], cwd=ROOT, errors="replace")  # a token may be half a character
            self.assertEqual(done.returncode, 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}")
            outputs[command[1]] = done.stdout
        self.assertEqual(set(outputs), WITH_RUN | {"tokenize", "export", "sample"})
        self.assertIn("same bits", outputs["verify"])
        self.assertTrue(outputs["sample"].startswith("Where is Basel?"), outputs["sample"])
        loss = summary(self.work.path / "out" / "llama3_8b")["loss"]
        self.assertLess(loss[-1], loss[0] - 1.0)
        exported = self.work.path / "out" / "llama3_8b-hf"
        self.assertEqual((exported / "tokenizer.json").read_bytes(), (folder / "tokenizer.json").read_bytes())
        was, now = (safetensors_file.read_raw(path / "model.safetensors") for path in (folder, exported))
        self.assertEqual({k: ("BF16", shape) for k, (_, shape, _) in was.items()},
                         {k: (dtype, shape) for k, (dtype, shape, _) in now.items()})
