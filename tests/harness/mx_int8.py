"""MXINT8 of the OCP Microscaling Formats specification, by its text: blocks of 32 along what lies in a row, whose power of two
is the largest one in it. With numpy, so that tests do not check our code against itself."""

import numpy as np

BLOCK = 32


def rounded(array):
    """The values of an fp32 array once it was quantized. Its size need not be a multiple of a block's."""
    flat = array.astype(np.float64).reshape(-1)
    padded = np.zeros(-(-flat.size // BLOCK) * BLOCK)
    padded[:flat.size] = flat
    blocks = padded.reshape(-1, BLOCK)
    largest = np.abs(blocks).max(axis=1, keepdims=True)
    unit = np.exp2(np.floor(np.log2(np.where(largest > 0, largest, 1))) - 6)  # an element's lowest bit: 1/64
    codes = np.clip(np.rint(blocks / unit), -127, 127)
    return (codes * unit).reshape(-1)[:flat.size].astype(np.float32).reshape(array.shape)
