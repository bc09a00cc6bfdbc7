"""Token for token what SentencePiece's own library gives, with models that its own trainer makes here, over scripts,
emoji, marks, odd white space, and bytes that are not UTF-8."""

import functools
import importlib.util
import shutil
import subprocess
import unittest

import corpus
import records
from eps_run import SANITIZER, SystemTest

MODELS = {
    "unigram": ("--model_type=unigram", "--vocab_size=3000"),
    "unigram-bytes": ("--model_type=unigram", "--vocab_size=3000", "--byte_fallback", "--user_defined_symbols=<user>,the"),
    "unigram-plain": ("--model_type=unigram", "--vocab_size=3000", "--normalization_rule_name=identity",
                      "--remove_extra_whitespaces=false", "--add_dummy_prefix=false", "--split_by_whitespace=false"),
    "bpe": ("--model_type=bpe", "--vocab_size=3000"),
    "bpe-bytes": ("--model_type=bpe", "--vocab_size=3000", "--byte_fallback", "--normalization_rule_name=identity",
                  "--remove_extra_whitespaces=false", "--split_digits", "--user_defined_symbols=<user>,the"),
    "bpe-suffix": ("--model_type=bpe", "--vocab_size=3000", "--treat_whitespace_as_suffix", "--control_symbols=<sys>",
                   "--normalization_rule_name=nmt_nfkc_cf"),
    "bpe-over-spaces": ("--model_type=bpe", "--vocab_size=3000", "--split_by_whitespace=false"),
}


@functools.cache
def made_texts():
    """What models are trained on, and what they are tried on: once for all cases of a process."""
    sources = corpus.own_sources()
    made_up = corpus.scripts(seed=5, num_bytes_each=8_000) + corpus.odds(seed=6, num_bytes=300_000)
    tokens = corpus.with_tokens(8, ["<s>", "</s>", "<unk>", "<user>", "the", "<sys>", "\u2581"], 100)
    training = "\n".join(sources[::6] + made_up[::12]).replace("\0", "")
    return training, (corpus.bible()[::4] + sources[::3] + made_up + tokens +
                      corpus.malformed(7, made_up + sources[:100], 500))


@unittest.skipIf(SANITIZER, "it builds a program of its own")
@unittest.skipIf(shutil.which("spm_train") is None, "spm_train is not installed")
@unittest.skipIf(importlib.util.find_spec("sentencepiece") is None, "python3-sentencepiece is not installed")
class SentencePieceTest(SystemTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.training, cls.documents = made_texts()

    def train(self, name):
        text, prefix = self.work.out("training.txt"), self.work.out(name)
        text.write_text(self.training, encoding="utf-8")
        subprocess.run(["spm_train", f"--input={text}", f"--model_prefix={prefix}", "--minloglevel=2", "--num_threads=2",
                        "--character_coverage=0.98", "--hard_vocab_limit=false", *MODELS[name]], check=True,
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return prefix.with_name(name + ".model")

    def ours(self, model, mode, source, name, width):
        out = self.work.out(name)
        done = subprocess.run([records.tool(), str(model), mode, str(source), str(out)], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True)
        self.assertEqual(done.returncode, 0, done.stdout)
        return records.read(out, width)

    def compare(self, name):
        from sentencepiece import SentencePieceProcessor  # not there where this is skipped

        model = self.train(name)
        processor = SentencePieceProcessor(model_file=str(model))
        source = self.work.out("documents")
        records.write_documents(source, self.documents)
        ours = self.ours(model, "encode-as-text", source, "ids", 4)
        for i, (document, ids) in enumerate(zip(self.documents, ours, strict=True)):
            theirs = tuple(processor.encode(records.as_bytes(document)))
            self.assertEqual(ids, theirs, f"document {i} {document[:60]!r}")
        # Decoded: ours gives bytes, theirs U+FFFD for each that is not UTF-8.
        texts = self.ours(model, "decode", self.work.out("ids"), "text", 1)
        for i, (ids, text) in enumerate(zip(ours, texts, strict=True)):
            if b"\xef\xbf\xbd" not in text and is_utf8(text):
                self.assertEqual(text.decode(), processor.decode(list(ids)), f"document {i}")
        print(f"\n  {name}: {sum(map(len, ours)):,} tokens of {sum(len(records.as_bytes(d)) for d in self.documents):,} "
              "bytes are the same")


def is_utf8(text):
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


for _name in MODELS:
    setattr(SentencePieceTest, "test_" + _name.replace("-", "_"), lambda self, name=_name: self.compare(name))

if __name__ == "__main__":
    unittest.main()
