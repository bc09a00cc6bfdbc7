"""Which blocks a step leaves out, written without this project's code (common/model/layer_drop.h)."""

from token_masking import LONG, WORD, mix64, philox


def uniform(seed, step, layer):
    """In [0, 1), of layer `layer`: the first block is 1."""
    h = mix64(mix64(seed) ^ step)
    h = mix64(h ^ (WORD << 32 | layer))  # of no vnode: -1
    r = philox(mix64(h) & LONG, (0, 0, 0, 0))
    return ((r[0] << 32 | r[1]) >> 11) / 2 ** 53


def dropped(seed, step, blocks, share, rule="UNIFORM"):
    """Blocks from 0, of a model in which all train."""
    shares = [share if rule == "UNIFORM" else share * (i + 1) / blocks for i in range(blocks)]
    numbers = [uniform(seed, step, i + 1) for i in range(blocks)]
    result = [i for i in range(blocks) if numbers[i] < shares[i]]
    if len(result) == blocks:
        result.remove(max(range(blocks), key=lambda i: numbers[i] / shares[i]))
    return result
