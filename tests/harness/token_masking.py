"""Which tokens of a sample are masked, written without this project's code (common/samples/token_masking.h)."""

import numpy as np

WORD, LONG = 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF


def mix64(x):
    x = (x + 0x9E3779B97F4A7C15) & LONG
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & LONG
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & LONG
    return x ^ (x >> 31)


def philox(key, counter):
    """Philox4x32-10."""
    k0, k1 = key & WORD, key >> 32
    c = list(counter)
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(p1 >> 32) ^ c[1] ^ k0, p1 & WORD, (p0 >> 32) ^ c[3] ^ k1, p0 & WORD]
        k0, k1 = (k0 + 0x9E3779B9) & WORD, (k1 + 0xBB67AE85) & WORD
    return c


def mask(tokens, place, seed, vocab, token, share=0.15, never=()):
    """Tokens as the model sees them, and labels; `place` is of the sample in the run's sequence of samples."""
    key = mix64(mix64(seed) ^ 0x6D61736B)
    seen, labels = np.array(tokens), np.full(len(tokens), -100)
    for i, original in enumerate(tokens):
        r = philox(key, (place & WORD, place >> 32, i, 0))
        if r[0] >= share * 2 ** 32 or original in never:
            continue
        labels[i] = original
        if r[1] < 0.8 * 2 ** 32:
            seen[i] = token
        elif r[1] < 0.9 * 2 ** 32:
            seen[i] = (r[2] * vocab) >> 32
    return seen, labels
