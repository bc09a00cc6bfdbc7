"""Reads and writes safetensors with numpy, so that tests do not check our reader against our writer."""

import json
import struct

import numpy as np
from eps_run import weight_files

DTYPES = {"F32": np.float32, "F16": np.float16, "I64": np.int64, "I32": np.int32}


def write(path, tensors):
    header, offset = {}, 0
    for name, array in tensors.items():
        dtype = next(key for key, value in DTYPES.items() if array.dtype == value)
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [offset, offset + array.nbytes]}
        offset += array.nbytes
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)))
        file.write(text)
        for array in tensors.values():
            file.write(np.ascontiguousarray(array).tobytes())


def read_raw(path):
    """(dtype, shape, bytes) of each tensor, whatever the dtype, of a file or of a model's folder."""
    if path.is_dir():
        return {name: tensor for file in weight_files(path) for name, tensor in read_raw(file).items()}
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + length])
    header.pop("__metadata__", None)
    begin = 8 + length
    return {name: (entry["dtype"], entry["shape"], data[begin + entry["data_offsets"][0]:begin + entry["data_offsets"][1]])
            for name, entry in header.items()}


def read(path):
    """An array of each tensor, of a file or of a model's folder."""
    if path.is_dir():
        return {name: array for file in weight_files(path) for name, array in read(file).items()}
    with open(path, "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
        data = file.read()
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        tensors[name] = np.frombuffer(data[begin:end], DTYPES[entry["dtype"]]).reshape(entry["shape"]).copy()
    return tensors
