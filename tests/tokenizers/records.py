"""Files of documents or ids, as tokenize.cc says, and the program that reads and writes them."""

import struct
import subprocess

from eps_run import ROOT

_tool = []


def tool():
    """The path of our side, built when it is first asked for."""
    if not _tool:
        target = "//tests/tokenizers:tokenize"
        subprocess.run(["bazel", "build", "-c", "opt", "--show_progress_rate_limit=20", target], cwd=ROOT, check=True,
                       stdout=subprocess.DEVNULL)
        folder = subprocess.run(["bazel", "info", "-c", "opt", "bazel-bin"], cwd=ROOT, check=True, stdout=subprocess.PIPE,
                                stderr=subprocess.DEVNULL, text=True).stdout.strip()
        _tool.append(f"{folder}/tests/tokenizers/tokenize")
    return _tool[0]


def as_bytes(document):
    return document if isinstance(document, bytes) else document.encode()


def write_documents(path, documents):
    path.write_bytes(b"".join(struct.pack("<I", len(text)) + text for text in map(as_bytes, documents)))


def read(path, width=1):
    """Of each record its bytes, or with a width of 4 its ids."""
    data, at, out = path.read_bytes(), 0, []
    while at < len(data):
        count, = struct.unpack_from("<I", data, at)
        at += 4
        out.append(data[at:at + count] if width == 1 else struct.unpack_from(f"<{count}i", data, at))
        at += count * width
    return out
