"""The formats of precision.frozen by their own texts, with numpy, so that tests do not check our code against itself: the
values of an fp32 array once it was quantized. Its size need not be a multiple of a block's."""

import numpy as np

# QLoRA, appendix E.
NF4 = np.array([-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
                -0.18477343022833334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
                0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023,
                1.0], np.float32)


def blocks_of(array, size):
    flat = array.reshape(-1)
    padded = np.zeros(-(-flat.size // size) * size, flat.dtype)
    padded[:flat.size] = flat
    return padded.reshape(-1, size)


def unblocked(blocks, array):
    return blocks.reshape(-1)[:array.size].astype(np.float32).reshape(array.shape)


def mx_int8(array):
    """OCP Microscaling Formats: blocks of 32 along what lies in a row, whose power of two is the largest one in it."""
    blocks = blocks_of(array.astype(np.float64), 32)
    largest = np.abs(blocks).max(axis=1, keepdims=True)
    unit = np.exp2(np.floor(np.log2(np.where(largest > 0, largest, 1))) - 6)  # an element's lowest bit: 1/64
    return unblocked(np.clip(np.rint(blocks / unit), -127, 127) * unit, array)


def to_bf16(values):
    """To nearest, ties to even."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16 << 16).astype(np.uint32).view(np.float32)


def nf4(array):
    """4-bit NormalFloat: blocks of 64, each with its largest value as its scale, a bf16 that is not larger; values in bf16."""
    blocks = blocks_of(array.astype(np.float32), 64)
    scale = (np.abs(blocks).max(axis=1, keepdims=True).view(np.uint32) >> 16 << 16).view(np.float32)
    parts = blocks / np.where(scale > 0, scale, np.float32(1))
    middles = (NF4[1:] + NF4[:-1]) / np.float32(2)
    nearest = np.searchsorted(middles, parts)  # as many as are below
    return unblocked(to_bf16(NF4[nearest] * scale), array)


ROUNDED = {"MXINT8": mx_int8, "NF4": nf4}
