"""Token for token what models' own chat templates give, rendered by Hugging Face's Jinja and encoded by Hugging Face's
tokenizer; ours by the name that `auto` finds for them. Templates are those that the tokenizers' packages carry, or, where none
does, the same forms written down in testdata/. Where the two are meant to differ is left out of the conversations, and stands
below with its reason."""

import itertools
import json
import shutil
import subprocess
import unittest

import npm_packages
import records
from eps_run import SANITIZER, SystemTest

TESTDATA = npm_packages.HERE / "testdata"

# What is said: white space at both ends, which tokenizers join with the markup beside it, scripts, code, nothing.
SAID = ("hi", "\nleads", "\n\n\nmore lines\n", "  two spaces", "\ttab\t", "ends\n\n", " both \n ", "naïve café — 你好 🙂👩‍💻",
        "def f(x):\n    return x  # ok\n", "\r\nwindows\r\n", "I'm 12345.678 % sure?", "[1, 2]", "<b>bold</b>", "a\n\n\n\nb", "。", ":", "",
        "\u00a0\u2003wide spaces\u3000\u2028")
# @huggingface/jinja's strip takes no argument: where a template strips newlines alone, there are no spaces beside them.
SAID_TO_QWEN3 = tuple(text for text in SAID if text.strip("\n") == text.strip())


def turn(role, content):
    return {"role": role, "content": content}


def conversations(said, system=True, tools=False, ends=("assistant", "user")):
    """One, two and three exchanges, with everything that is said once in each place, and with a system's words or none."""
    made = []
    for i, text in enumerate(said):
        others = [said[(i + k) % len(said)] for k in range(1, 6)]
        for first, end in itertools.product(([], [turn("system", text)]) if system else ([],), ends):
            for exchanges in (1, 2, 3):
                turns = [turn(("user", "assistant")[k % 2], ([text] + others)[k]) for k in range(2 * exchanges)]
                made.append(first + turns[:len(turns) - (end == "user")])
        if tools:
            made += [[turn("user", "q"), turn("assistant", "call"), turn("tool", text), turn("assistant", "a")],
                     [turn("user", "q"), turn("assistant", "call"), turn("tool", text), turn("tool", 'x "y"\n'),
                      turn("assistant", others[0]), turn("user", "r"), turn("assistant", "b")]]
    return made


def thoughts():
    made = []
    for answer in ("<think>\nhm\n</think>\n\nyes", "<think>\n\n</think>\n\nyes", "hm</think>yes", "<think>a\n\nb</think>\nyes"):
        made += [[turn("user", "q"), turn("assistant", answer)],
                 [turn("user", "q"), turn("assistant", answer), turn("user", "r"), turn("assistant", answer)],
                 [turn("user", "q"), turn("assistant", answer), turn("tool", "t"), turn("assistant", "end")],
                 [turn("assistant", answer)]]
    return made


@unittest.skipIf(SANITIZER, "it builds a program of its own")
class ChatTest(SystemTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.why_not = npm_packages.install()

    def setUp(self):
        super().setUp()
        if self.why_not:
            self.skipTest(self.why_not)

    def model(self, tokenizer, template, bos="", eos=""):
        """A folder as a model has it."""
        folder = self.work.out("model")
        folder.mkdir()
        shutil.copy(tokenizer, folder / "tokenizer.json")
        written = TESTDATA / f"{template}.jinja"
        text = written.read_text() if written.exists() else npm_packages.carried_template(template)
        config = {"bos_token": bos, "eos_token": eos, "chat_template": text}
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
        return folder

    def run_one(self, command, folder=None):
        done = subprocess.run(list(map(str, command)), cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.assertEqual(done.returncode, 0, f"{command}\n{done.stdout[-2000:]}")
        return done.stdout.strip()

    def compare(self, name, folder, chats):
        source, ours, theirs = (self.work.out(file) for file in ("chats", "ours", "theirs"))
        records.write_documents(source, [json.dumps({"messages": chat}) for chat in chats])
        self.assertEqual(self.run_one([records.tool(), folder, "chat", source, ours]), name)
        self.run_one(["node", npm_packages.HERE / "chat_reference.mjs", folder, source, theirs], npm_packages.FOLDER)
        ours, theirs = records.read(ours, 4), records.read(theirs, 4)
        for chat, a, b in zip(chats, ours, theirs, strict=True):
            if a != b:
                at = next((k for k, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
                self.fail(f"{chat}: token {at} of {len(a)} is {a[at:at + 8]}, theirs {b[at:at + 8]}")
        print(f"\n  {name}: {sum(map(len, ours)):,} tokens of {len(chats)} conversations are the same")

    def test_llama3(self):
        # Its own has no place for tools.
        folder = self.model(npm_packages.carried("llama3"), "llama3", "<|begin_of_text|>", "<|eot_id|>")
        self.compare("llama3", folder, conversations(SAID))

    def test_llama31(self):
        folder = self.model(npm_packages.carried("llama3"), "llama31", "<|begin_of_text|>", "<|eot_id|>")
        self.compare("llama31", folder, conversations(SAID, tools=True))

    def test_chatml(self):
        # Its own gives tools a role of their own.
        folder = self.model(npm_packages.carried("qwen3"), "chatml", "", "<|im_end|>")
        self.compare("chatml", folder, conversations(SAID))

    def test_qwen25(self):
        folder = self.model(npm_packages.carried("qwen3"), "qwen25", "", "<|im_end|>")
        self.compare("qwen25", folder, conversations(SAID, tools=True))

    def test_qwen3(self):
        folder = self.model(npm_packages.carried("qwen3"), "qwen3", "", "<|im_end|>")
        self.compare("qwen3", folder, conversations(SAID_TO_QWEN3, tools=True) + thoughts())

    def test_mistral_v1(self):
        folder = self.model(npm_packages.mistral_v1(), "mistral-v1", "<s>", "</s>")
        self.compare("mistral", folder, conversations(SAID))

    def test_mistral_nemo(self):
        # Its own leaves the system's words out of a conversation that ends with an answer.
        folder = self.model(npm_packages.carried("mistral_nemo"), "mistral_nemo", "<s>", "</s>")
        self.compare("mistral", folder, conversations(SAID, ends=("user",)) + conversations(SAID, system=False))

    def test_llama2(self):
        # Empty words of the system: for @huggingface/jinja, though not for Python's, "" is equal to false.
        folder = self.model(npm_packages.carried("llama2"), "llama2", "<s>", "</s>")
        chats = [chat for chat in conversations(SAID) if chat[0] != turn("system", "")]
        self.compare("llama2", folder, chats)

    def test_another_template_is_refused(self):
        folder = self.model(npm_packages.carried("llama2"), "zephyr", "<s>", "</s>")
        source = self.work.out("chats")
        records.write_documents(source, [json.dumps({"messages": [turn("user", "hi")]})])
        done = subprocess.run([records.tool(), str(folder), "chat", str(source), str(self.work.out("ours"))],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.assertEqual(done.returncode, 1)
        self.assertIn("is none that is known here; say which it is to be, llama3", done.stdout)


if __name__ == "__main__":
    unittest.main()
