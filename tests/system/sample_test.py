"""`eps sample`: a chat is asked in the form that it was taught in, and an answer ends where its turn does."""

import json
import struct

import byte_level_tokenizer
from eps_run import EPS, SystemTest, run

ANSWERS = {"Where is Basel?": "By the Rhine.", "And Bern?": "By the Aare."}


class SampleTest(SystemTest):
    def chat_spec(self, vocab, data, name):
        return self.work.spec({"model": {"family": "LLAMA", "layers": 2, "d_model": 48, "heads": 4, "d_ff": 96,
                                         "context": 64, "vocab": vocab},
                               "data": data, "precision": {"wire": "FP32"}, "steps": 80,
                               "optimizer": {"schedule": {"peak": 5e-3, "warmup_steps": 5}, "clip": None}}, name=name)

    def write_chat(self, answers):
        lines = [{"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]}
                 for question, answer in answers.items()]
        (self.work.path / "chat.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines * 8))

    def train_a_chat(self):
        """A model that knows these answers by heart."""
        vocab = byte_level_tokenizer.write(self.work.path)
        self.write_chat(ANSWERS)
        spec = self.chat_spec(vocab, {"path": "chat.jsonl", "tokenizer": "MODEL", "tokenizer_path": ".",
                                      "documents": "PADDED"}, "chat.json")
        self.train_ok(spec, self.work.out("out"))
        return self.work.out("out")

    def sample(self, out, *args):
        done = run([str(EPS), "sample", "--checkpoint", str(out), "--temperature", "0", "--tokens", "30", *map(str, args)])
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def test_a_chat_is_asked_as_it_was_taught_and_an_answer_ends(self):
        out = self.train_a_chat()
        for question, answer in ANSWERS.items():
            self.assertEqual(self.sample(out, "--chat", "--prompt", question), answer + "\n")
        self.assertTrue(self.sample(out, "--chat", "--no-stop", "--prompt", "Where is Basel?")
                        .startswith("By the Rhine.<|eot_id|>"))
        messages = self.work.path / "messages.json"
        messages.write_text(json.dumps([{"role": "user", "content": "And Bern?"}]))
        self.assertEqual(self.sample(out, "--messages", messages), "By the Aare.\n")
        folder = self.work.out("exported")
        done = run([str(EPS), "export", "--checkpoint", str(out), "--out", str(folder)])
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.sample(folder, "--messages", messages), "By the Aare.\n")
        # A template by name is taken in place of the run's, and a text as it is: no form, and the prompt comes first.
        self.assertNotEqual(self.sample(out, "--chat", "--template", "plain", "--prompt", "And Bern?"), "By the Aare.\n")
        self.assertTrue(self.sample(out, "--prompt", "And Bern?").startswith("And Bern?"))

    def test_an_answer_that_no_token_ends_ends_at_a_blank_line(self):
        self.write_chat(ANSWERS)
        spec = self.chat_spec(256, {"path": "chat.jsonl", "tokenizer": "BYTES", "documents": "PADDED"}, "bytes.json")
        self.train_ok(spec, self.work.out("bytes"), "--steps", "160")
        for question, answer in ANSWERS.items():
            self.assertEqual(self.sample(self.work.out("bytes"), "--chat", "--prompt", question), answer + "\n")
        going_on = self.sample(self.work.out("bytes"), "--chat", "--no-stop", "--prompt", "And Bern?")
        self.assertTrue(going_on.startswith("By the Aare.\n\n") and len(going_on) > 20, going_on)

    def test_a_model_that_has_diverged_is_no_bad_input(self):
        out, folder = self.work.out("out"), self.work.out("exported")
        self.train_ok(self.work.spec({"steps": 2}), out)
        done = run([str(EPS), "export", "--checkpoint", str(out), "--out", str(folder)])
        self.assertEqual(done.returncode, 0, done.stderr)
        file = folder / "model.safetensors"
        content = bytearray(file.read_bytes())
        content[-4096:] = struct.pack("<f", 3e38) * 1024  # what they are multiplied with is not finite
        file.write_bytes(content)
        sample = run([str(EPS), "sample", "--checkpoint", str(folder), "--tokens", "3"])
        self.refused(sample, 1, "logit", "NaN")

    def test_of_a_mixture_the_chat_is_asked_in_its_own_form_and_with_its_thoughts(self):
        vocab = byte_level_tokenizer.write(self.work.path, ["<|im_start|>", "<|im_end|>", "<|endoftext|>"])
        self.write_chat({"Basel?": "<think>\nR.\n</think>\n\nRhine."})
        (self.work.path / "text.jsonl").write_text(json.dumps({"text": "A text."}) + "\n")
        source = {"tokenizer": "MODEL", "tokenizer_path": ".", "documents": "PADDED"}
        data = {"path": None, "tokenizer": None, "order": "SHUFFLED",
                "sources": [{**source, "path": "text.jsonl"},
                            {**source, "path": "chat.jsonl", "weight": 9, "chat_template": "qwen3"}]}
        out = self.work.out("mixture")
        self.train_ok(self.chat_spec(vocab, data, "mixture.json"), out)
        self.assertEqual(self.sample(out, "--chat", "--prompt", "Basel?"), "<think>\nR.\n</think>\n\nRhine.\n")
        self.assertNotIn("<think>\nR.", self.sample(out, "--chat", "--no-thoughts", "--prompt", "Basel?"))

    def test_of_a_chat_that_is_too_long_it_says_how_much_is_left_out(self):
        out = self.work.out("plain")
        self.train_ok(self.work.spec({"steps": 1}), out)
        sample = [str(EPS), "sample", "--checkpoint", str(out), "--tokens", "1", "--chat", "--template", "plain"]
        done = run([*sample, "--prompt", "q" * 100], errors="replace")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stderr, r"eps: warning: the chat has 1\d\d tokens, the model's context 32: the first \d+ are left")
        done = run([*sample, "--prompt", "q"], errors="replace")
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_what_is_no_chat_is_refused(self):
        out = self.work.out("plain")
        self.train_ok(self.work.spec({"steps": 1}), out)
        sample = [str(EPS), "sample", "--checkpoint", str(out)]
        self.refused(run([*sample, "--system", "s"]), 2, "--system", "--chat")
        self.refused(run([*sample, "--template", "plain"]), 2, "--template", "--chat")
        self.refused(run([*sample, "--no-thoughts"]), 2, "--no-thoughts", "--chat")
        self.refused(run([*sample, "--chat", "--prompt", "q", "--template", "unknown"]), 2, "unknown")
        self.refused(run([*sample, "--in", "texts.txt"]), 2, "--in", "no classifier")
        for seed in ("-7", str(2 ** 64), "1.5"):
            self.refused(done := run([*sample, "--seed", seed]), 2, "--seed", "no whole number from 0 to 2^64 - 1")
            self.assertLess(len(done.stderr), 300)
        messages = self.work.path / "messages.json"
        messages.write_text('[{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]')
        self.refused(run([*sample, "--messages", str(messages)]), 2, "messages.json: the last message is the assistant's")
        messages.write_text("[]")
        self.refused(run([*sample, "--messages", str(messages)]), 2, "messages.json: ")
        messages.write_text('[{"role": "user"}]')
        self.refused(run([*sample, "--messages", str(messages)]), 2, "messages.json", "content")
