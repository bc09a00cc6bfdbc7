"""Texts to tokenize, the same every time: the King James Bible, this tree, and made-up ones that real text has little of."""

import random
import shutil
import subprocess
import unicodedata

from eps_run import ROOT

DOCUMENT_BYTES = 4096  # about; one implementation takes quadratic time

# First and last code point of scripts and blocks. Words of each are random letters, so that few tokens fit: what is
# compared is how bytes and marks are cut, not how words are spelled.
SCRIPTS = {
    "latin": (0x41, 0x24F), "ipa": (0x250, 0x2AF), "greek": (0x370, 0x3FF), "cyrillic": (0x400, 0x52F),
    "armenian": (0x531, 0x58F), "hebrew": (0x591, 0x5F4), "arabic": (0x600, 0x6FF), "syriac": (0x700, 0x74F),
    "thaana": (0x780, 0x7B1), "nko": (0x7C0, 0x7FA), "devanagari": (0x900, 0x97F), "bengali": (0x980, 0x9FE),
    "gurmukhi": (0xA01, 0xA76), "gujarati": (0xA81, 0xAFF), "oriya": (0xB01, 0xB77), "tamil": (0xB82, 0xBFA),
    "telugu": (0xC00, 0xC7F), "kannada": (0xC80, 0xCF2), "malayalam": (0xD00, 0xD7F), "sinhala": (0xD81, 0xDF4),
    "thai": (0xE01, 0xE5B), "lao": (0xE81, 0xEDF), "tibetan": (0xF00, 0xFDA), "myanmar": (0x1000, 0x109F),
    "georgian": (0x10A0, 0x10FF), "jamo": (0x1100, 0x11FF), "ethiopic": (0x1200, 0x139F), "cherokee": (0x13A0, 0x13FD),
    "canadian": (0x1400, 0x167F), "ogham": (0x1681, 0x169C), "runic": (0x16A0, 0x16F8), "khmer": (0x1780, 0x17F9),
    "mongolian": (0x1820, 0x18AA), "latin-additional": (0x1E00, 0x1EFF), "greek-extended": (0x1F00, 0x1FFE),
    "superscripts": (0x2070, 0x209C), "currency": (0x20A0, 0x20C0), "letterlike": (0x2100, 0x218B),
    "arrows": (0x2190, 0x23FF), "enclosed": (0x2460, 0x24FF), "boxes": (0x2500, 0x27BF), "braille": (0x2800, 0x28FF),
    "glagolitic": (0x2C00, 0x2C5F), "coptic": (0x2C80, 0x2CFF), "cjk-punctuation": (0x3001, 0x303F),
    "hiragana": (0x3041, 0x309F), "katakana": (0x30A0, 0x30FF), "bopomofo": (0x3105, 0x312F),
    "cjk-compatibility": (0x3300, 0x33FF), "han-a": (0x3400, 0x4DBF), "han": (0x4E00, 0x9FFF), "yi": (0xA000, 0xA4C6),
    "vai": (0xA500, 0xA62B), "hangul": (0xAC00, 0xD7A3), "cjk-ideographs": (0xF900, 0xFAD9),
    "presentation": (0xFB00, 0xFDFB), "full-width": (0xFF01, 0xFFEE), "gothic": (0x10330, 0x1034A),
    "deseret": (0x10400, 0x1044F), "cuneiform": (0x12000, 0x12399), "hieroglyphs": (0x13000, 0x1342E),
    "music": (0x1D100, 0x1D1E8), "mathematics": (0x1D400, 0x1D7FF), "emoji": (0x1F300, 0x1FAF6),
    "han-b": (0x20000, 0x2A6DF), "tags": (0xE0020, 0xE007E),
}
SPACES = ("\t", "\n", "\v", "\f", "\r", " ", "\x85", "\u00a0", "\u1680", "\u180e", *map(chr, range(0x2000, 0x200E)),
          "\u2028", "\u2029", "\u202f", "\u205f", "\u2060", "\u3000", "\ufeff", "\r\n")
MARKS = tuple(map(chr, (*range(0x300, 0x370), *range(0x20D0, 0x20F1), 0x93C, 0x94D, 0xE48, 0x3099, 0xFE0E, 0xFE0F)))
FACES = tuple("😀😂🥹🤖👍👩🧑👨🏽🏿🏳🏴❤✈☎🎉🇩🇪🇫🇷🇺🇸") + ("👩‍💻", "👨‍👩‍👧‍👦", "🏳️‍🌈", "🏴\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f", "1️⃣", "❤️‍🔥")
ASCII_WORDS = ("I'm you'RE we'Ve they'LL it'S don't 'tis o'clock x''s 's 'ſ foo_bar snake_case CamelCase __init__ $x->y "
               "a.b.c http://example.com/?q=1&r=%20 3.14159 1,000,000 0xFF 1e-9 2024-02-30 12:34:56 #tag @name <b>bold</b> "
               "{\"k\":[1,2]} if(x==1){return;} // comment --- === ... ?! \\n \\u0041 ~~~ ``` %% &amp; |||").split()


def assigned(first, last):
    """Unassigned code points get their properties in later versions, and everybody has another version."""
    return [chr(c) for c in range(first, last + 1) if unicodedata.category(chr(c)) not in ("Cn", "Cs", "Co")]


def cut(text, size=DOCUMENT_BYTES):
    """Documents of whole lines."""
    documents, lines, length = [], [], 0
    for line in text.splitlines(keepends=True):
        lines.append(line)
        length += len(line.encode())
        if length >= size:
            documents.append("".join(lines))
            lines, length = [], 0
    return documents + ["".join(lines)] * bool(lines)


def bible():
    """Nothing where it is not installed (third_party/install.sh run)."""
    if shutil.which("bible") is None:
        return []
    text = subprocess.run(["bible", "-f", "gen1:1-rev22:21"], stdout=subprocess.PIPE, check=True).stdout
    return cut(text.decode("utf-8", "replace"))


def own_sources():
    documents = []
    for pattern in ("*.cc", "*.h", "*.py", "*.md", "*.proto", "*.cu"):
        for path in sorted(ROOT.rglob(pattern)):
            parts = path.relative_to(ROOT).parts
            if parts[0] in ("out", "bin") or parts[0].startswith("bazel-") or parts[0].startswith("."):
                continue
            documents += cut(path.read_text(encoding="utf-8", errors="replace"))
    return documents


def scripts(seed, num_bytes_each):
    """Of each script, and of all mixed within words."""
    chance = random.Random(seed)
    documents, every = [], []
    for first, last in SCRIPTS.values():
        letters = assigned(first, last)
        every += chance.sample(letters, min(24, len(letters)))
        documents += cut(words_of(chance, letters, num_bytes_each))
    return documents + cut(words_of(chance, every, num_bytes_each * 8))


def words_of(chance, letters, num_bytes):
    out, length = [], 0
    while length < num_bytes:
        word = "".join(chance.choice(letters) for _ in range(chance.randint(1, 9)))
        out.append(word + chance.choice((" ", " ", " ", " ", "  ", "\n", ". ", ", ", "1 ", "'s ")))
        length += len(out[-1].encode())
    return "".join(out)


def odds(seed, num_bytes):
    """White space, marks, digits, signs and emoji in every order."""
    chance = random.Random(seed)
    digits = [chr(c) for c in range(0x110000) if unicodedata.category(chr(c)) in ("Nd", "Nl", "No")]
    draw = (lambda: chance.choice(SPACES) * chance.choice((1, 1, 1, 2, 5)), lambda: " " * chance.randint(1, 40),
            lambda: chance.choice(MARKS), lambda: chance.choice("aeiouns") + chance.choice(MARKS),
            lambda: "".join(chance.choice(digits) for _ in range(chance.randint(1, 6))),
            lambda: str(chance.randint(0, 10 ** chance.randint(1, 12))), lambda: chance.choice(FACES),
            lambda: chance.choice(ASCII_WORDS), lambda: chance.choice(ASCII_WORDS),
            lambda: chr(chance.randint(1, 0x7F)), lambda: chance.choice("!?.,;:-_=+*/\\|<>()[]{}'\"`~@#$%^&") * chance.randint(1, 9))
    out, length = [], 0
    while length < num_bytes:
        out.append(chance.choice(draw)() + chance.choice(("", "", " ")))
        length += len(out[-1].encode())
    text = "".join(out)
    return [text[at:at + 1500] for at in range(0, len(text), 1500)]


def with_tokens(seed, tokens, num_documents):
    """Text with added tokens in it, whole and broken."""
    chance = random.Random(seed)
    documents = []
    for _ in range(num_documents):
        parts = []
        for _ in range(chance.randint(1, 40)):
            token = chance.choice(tokens)
            parts.append(chance.choice((token, token, token[:-1], " " + token + " ", token * 2, token.upper(),
                                        chance.choice(ASCII_WORDS), chance.choice(SPACES), chance.choice(FACES))))
        documents.append("".join(parts))
    return documents


def has_newer_characters(data):
    """Whether some of its characters are none in Python's Unicode, 14 as PCRE2's: what a newer one says of them differs."""
    return any(unicodedata.category(character) == "Cn" for character in data.decode("utf-8", "replace"))


def malformed(seed, documents, num_documents):
    """Bytes of some documents changed, taken out, put in or cut off. What a changed byte makes may be any character."""
    chance = random.Random(seed)
    out = []
    while len(out) < num_documents:
        text = bytearray(chance.choice(documents).encode()[:1200])
        for _ in range(chance.randint(1, 40)):
            at = chance.randrange(len(text) + 1)
            what = chance.randrange(4)
            if what == 0 and at < len(text):
                text[at] = chance.randrange(256)
            elif what == 1 and at < len(text):
                del text[at]
            elif what == 2:
                text[at:at] = bytes([chance.randrange(0x80, 0x100)])
            else:
                text[at:at] = chance.choice((b"\xc0\xaf", b"\xe0\x80\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xf0\x9f\x98",
                                             b"\xe2\x82", b"\xff\xfe", b"\xf8\x88\x80\x80\x80"))
        if not has_newer_characters(text):
            out.append(bytes(text))
    return out
