"""Token for token what other implementations give, with the tokenizers of well-known models, over several MB of text:
every fourth page of the Bible and of this tree, 64 scripts, emoji, marks, odd white space, added tokens, and bytes that
are not UTF-8.

Those bytes are U+FFFD before either of the others sees them, put there by WHATWG's decoder; ours is given the bytes.
`native` is Hugging Face's own implementation, `js` is their other one. Where these two part from each other, or from
today's Unicode, is left out of the text, and stands below with its reason."""

import functools
import subprocess
import unittest

import corpus
import npm_packages
import records
from eps_run import SANITIZER, SystemTest

# native has the classes of combining marks of Unicode 9; these two came or changed later. ICU and JavaScript agree.
NEWER_MARKS = "\u0c3c\u0eba"
# BERT's normalizer in native asks tables of Unicode 8 what is a mark, a sign or a format. These came or changed later.
NEWER_SIGNS = "".join(map(chr, (0x61D, 0x9FD, 0x9FE, 0xA76, *range(0xAFA, 0xB00), 0xB55, 0xC04, 0xC3C, 0xC77, 0xC84, 0xD00,
                                0xD3B, 0xD3C, 0xD81, 0xEBA, 0x166D, 0x1885, 0x1886)))
# The same of what native's StripAccents takes for a mark, in the blocks that are looked at one by one.
NEWER_ACCENTS = "".join(map(chr, (0x7FD, *range(0x898, 0x8A0), *range(0x8CA, 0x8D4), 0x9FE, *range(0xAFA, 0xB00), 0xB55, 0xC04,
                                  0xC3C, 0xD00, 0xD3B, 0xD3C, 0xD81, 0xEBA, 0x1715, 0x180F, *range(0x1ABF, 0x1ACF), 0x1CF2,
                                  0x1CF3, 0x1CF7, *range(0x1DF6, 0x1DFB), 0xA82C, 0xA8FF)))
# Of two-byte characters all but Han and Hangul, of which one is like another.
LOOKED_AT = ((0, 0x33FF), (0xA000, 0xABFF), (0xF900, 0xFFFF))
# What js takes for white space is what JavaScript does, with U+FEFF and without U+0085.
SPACES_OF_JAVASCRIPT = "\x85\ufeff"


class Text:
    def __init__(self):
        self.bible, self.sources = corpus.bible()[::4], corpus.own_sources()[::4]  # one page is much like another
        self.made_up = corpus.scripts(seed=1, num_bytes_each=12_000) + corpus.odds(seed=2, num_bytes=600_000)

    def documents(self, tokens):
        broken = corpus.malformed(3, self.made_up + self.sources[:200], 800)
        return self.bible + self.sources + self.made_up + corpus.with_tokens(4, tokens, 200) + broken


made_text = functools.cache(Text)  # once for all cases of a process


def without(documents, characters):
    """Of documents with changed bytes only those that have no other characters than the rest: a changed byte makes any."""
    if not characters:
        return documents
    table = str.maketrans("", "", characters)
    texts = [document.translate(table) for document in documents if isinstance(document, str)]
    known = set().union(*texts, "\ufffd")
    return texts + [document for document in documents
                    if isinstance(document, bytes) and known.issuperset(document.decode("utf-8", "replace"))]


@unittest.skipIf(SANITIZER, "it builds a program of its own")
class NpmTest(SystemTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.why_not = npm_packages.install()
        cls.text = None if cls.why_not else made_text()

    def setUp(self):
        super().setUp()
        if self.why_not:  # case by case, so that each is counted
            self.skipTest(self.why_not)

    def run_both(self, implementation, tokenizer, mode, source, ours, theirs):
        for command, folder in (
                ([records.tool(), str(tokenizer), mode, str(source), str(ours)], None),
                (["node", str(npm_packages.HERE / "reference.mjs"), implementation, str(tokenizer), mode, str(source),
                  str(theirs)], npm_packages.FOLDER)):
            done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            self.assertEqual(done.returncode, 0, f"{' '.join(command)}\n{done.stdout[-2000:]}")

    def compare(self, implementation, tokenizer, leave_out="", decodes=True):
        documents = without(self.text.documents(npm_packages.added_tokens(tokenizer)), leave_out)
        paths = [self.work.out(name) for name in ("documents", "ours", "theirs", "our-text", "their-text")]
        records.write_documents(paths[0], documents)
        self.run_both(implementation, tokenizer, "encode", *paths[:3])
        ours, theirs = records.read(paths[1], 4), records.read(paths[2], 4)
        for i, (document, a, b) in enumerate(zip(documents, ours, theirs, strict=True)):
            if a != b:
                at = next((k for k, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
                self.fail(f"document {i} {document[:60]!r}: token {at} of {len(a)} is {a[at:at + 5]}, theirs {b[at:at + 5]}")
        print(f"\n  {implementation}, {tokenizer.parent.parent.name}/{tokenizer.name}: {sum(map(len, ours)):,} tokens of "
              f"{sum(len(records.as_bytes(d)) for d in documents):,} bytes are the same")
        if decodes:
            self.compare_decoded(implementation, tokenizer, paths)

    def compare_each(self, tokenizer, form, leave_out=""):
        """One document for each character: `form` with it in place of `?`."""
        characters = [c for block in LOOKED_AT for c in corpus.assigned(*block) if c not in leave_out]
        paths = [self.work.out(name) for name in ("documents", "ours", "theirs")]
        records.write_documents(paths[0], [form.replace("?", c) for c in characters])
        self.run_both("native", tokenizer, "encode", *paths)
        ours, theirs = records.read(paths[1], 4), records.read(paths[2], 4)
        self.assertEqual([f"U+{ord(c):04X}" for c, a, b in zip(characters, ours, theirs, strict=True) if a != b], [])

    def compare_pieces(self, tokenizer):
        """Some texts, of which each piece is one token."""
        documents = ["", "1234567", "12 fooBarBaz1000000", "bbb", "aab baaa", "aB", *self.text.made_up[:300]]
        paths = [self.work.out(name) for name in ("documents", "ours", "theirs")]
        records.write_documents(paths[0], documents)
        self.run_both("native", tokenizer, "encode", *paths)
        ours, theirs = records.read(paths[1], 4), records.read(paths[2], 4)
        self.assertEqual([d for d, a, b in zip(documents, ours, theirs, strict=True) if a != b], [])

    def compare_decoded(self, implementation, tokenizer, paths):
        """Ours gives bytes, theirs text: what is not UTF-8 is U+FFFD in theirs."""
        self.run_both(implementation, tokenizer, "decode", paths[1], *paths[3:])
        ours, theirs = ([text.decode("utf-8", "replace") for text in records.read(path)] for path in paths[3:])
        different = [i for i, (a, b) in enumerate(zip(ours, theirs, strict=True)) if a != b]
        self.assertEqual(different, [])

    def test_gpt2(self):
        self.compare("native", npm_packages.gpt2())

    def test_gpt2_js(self):
        self.compare("js", npm_packages.gpt2(), leave_out=SPACES_OF_JAVASCRIPT)

    def test_llama3(self):
        self.compare("native", npm_packages.carried("llama3"))

    def test_llama3_js(self):
        self.compare("js", npm_packages.carried("llama3"))

    def test_qwen3(self):
        self.compare("native", npm_packages.carried("qwen3"), leave_out=NEWER_MARKS)

    def test_qwen3_js(self):
        self.compare("js", npm_packages.carried("qwen3"))

    def test_llama2(self):
        self.compare("native", npm_packages.carried("llama2"))

    def test_gemma3(self):
        self.compare("native", npm_packages.carried("gemma3"))

    def test_characters_of_words(self):
        """Letters in circles, Roman numerals and joiners are of words for one notation, and not for another."""
        split = {"type": "Split", "pattern": {"Regex": r"\w+"}, "behavior": "Isolated", "invert": False}
        self.compare_each(npm_packages.words("whitespace", {"type": "Whitespace"}), "a?a")
        self.compare_each(npm_packages.words("split", split), "a?a")
        self.compare_each(npm_packages.plain_bytes("single-word", None, ["tok"]), "?tok tok?")

    def test_matches_of_nothing(self):
        """Digits by threes from the right, words by their capitals, and a pattern that is nearly always empty."""
        for i, regex in enumerate((r"(?=(?:\d{3})+(?!\d))", r"(?<=\p{Ll})(?=\p{Lu})", r"a*")):
            for behavior in ("Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"):
                split = {"type": "Split", "pattern": {"Regex": regex}, "behavior": behavior, "invert": False}
                with self.subTest(regex=regex, behavior=behavior):
                    self.compare_pieces(npm_packages.words(f"empty-{i}-{behavior}", split))

    def test_accents(self):
        strip = {"type": "Sequence", "normalizers": [{"type": "NFD"}, {"type": "StripAccents"}]}
        self.compare_each(npm_packages.plain_bytes("accents", strip, []), "a?", leave_out=NEWER_ACCENTS)

    def test_wordpiece(self):
        self.compare("native", npm_packages.wordpiece(self.text.bible + self.text.sources), leave_out=NEWER_SIGNS)


if __name__ == "__main__":
    unittest.main()
