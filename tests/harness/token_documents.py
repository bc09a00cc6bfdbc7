"""Token files with an index of their documents, written without this project's code (docs/formats.md)."""

import struct

import numpy as np


def write(path, documents, may_be_cut=False, classes=None, second_parts=None):
    """documents: a list of (ids, counted), arrays of as many tokens: ids, and whether each is counted as a label.
    classes, second_parts: of each document, or None."""
    ids = np.concatenate([d for d, _ in documents])
    counted = np.concatenate([c for _, c in documents]).astype(bool)
    path.write_bytes(ids.astype("<u2").tobytes())

    def section(data):
        return data + bytes(-len(data) % 8)

    firsts = np.cumsum([0] + [len(d) for d, _ in documents]).astype("<u8")
    of_documents = [np.array(part, "<i4").tobytes() for part in (classes, second_parts) if part is not None]
    flags = (1 if may_be_cut else 0) + 2 + (0 if classes is None else 4) + (0 if second_parts is None else 8)
    header = struct.pack("<4sHBBQQQ32s", b"EPSD", 1, 2, flags, len(ids), len(documents), 0, bytes(32))
    path.with_name(path.name + ".docs").write_bytes(
        header + section(firsts.tobytes()) + section(np.packbits(counted, bitorder="little").tobytes()) +
        b"".join(map(section, of_documents)))


def pack(rows, context, may_be_cut, packs=True, most_open=64):
    """Samples as lists of (document, first row, rows): each piece where the least room is left over."""
    samples, room, still_open = [], [], []
    for document, count in enumerate(rows):
        for first in range(0, count, context):
            size = min(context, count - first)
            fitting = [s for s in still_open if room[s] >= size] if packs else []
            if fitting:
                at = min(fitting, key=lambda s: room[s])
            else:
                if len(still_open) == most_open:
                    still_open.remove(min(still_open, key=lambda s: room[s]))
                at = len(samples)
                samples.append([])
                room.append(context)
                still_open.append(at)
            samples[at].append((document, first, size))
            room[at] -= size
            if room[at] == 0:
                still_open.remove(at)
            if not may_be_cut:
                break
    return samples
