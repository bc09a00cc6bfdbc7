"""Event files for TensorBoard: every step that a run committed, through a stop and a resume."""

import json
import struct

from eps_run import SystemTest


def varint(data, at):
    value = shift = 0
    while True:
        value |= (data[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if data[at - 1] < 0x80:
            return value, at


def fields(data):
    """Those of a message of protobuf: number, and value as it lies there."""
    at, found = 0, []
    while at < len(data):
        key, at = varint(data, at)
        if key & 7 == 0:
            value, at = varint(data, at)
        else:
            length = {1: 8, 5: 4}.get(key & 7)
            if length is None:
                length, at = varint(data, at)
            value, at = data[at:at + length], at + length
        found.append((key >> 3, value))
    return found


def records(path):
    data, at = path.read_bytes(), 0
    while at < len(data):
        length, = struct.unpack_from("<Q", data, at)
        yield data[at + 12:at + 12 + length]
        at += length + 16


def scalars(path):
    """Step, tag and value of each scalar of an event file, and the steps from which on it voids those of older files."""
    found, starts = [], []
    for record in records(path):
        event = dict(fields(record))
        if 7 in event:
            starts.append(event.get(2, 0))
        for _, value in fields(event.get(5, b"")):
            value = dict(fields(value))
            found.append((event.get(2, 0), value[1].decode(), struct.unpack("<f", value.get(2, bytes(4)))[0]))
    return found, starts


class TensorboardTest(SystemTest):
    def test_each_sitting_leaves_its_steps_and_evaluations(self):
        spec = self.work.spec({"evaluation": {"held_out": 0.1, "every_steps": 5}}, name="drawn.json")
        out = self.work.out("run")
        committed = 7
        self.begin(spec, out, committed, "--tensorboard")
        self.train_ok(spec, out, "--tensorboard", "--resume")
        files = sorted((out / "tensorboard").iterdir())
        self.assertEqual(len(files), 2)
        self.assertTrue(all(path.stat().st_mode & 0o777 == 0o600 for path in files))
        (first, first_starts), (second, second_starts) = (scalars(path) for path in files)
        self.assertEqual((first_starts, second_starts), ([0], [committed]))
        for name, prefix, file in (("loss", "train/loss", "metrics.jsonl"),
                                   ("learning_rate", "train/learning_rate", "metrics.jsonl"),
                                   ("accuracy", "evaluation/accuracy", "evaluations.jsonl")):
            drawn = [(step, value) for step, tag, value in first if tag == prefix and step < committed]
            drawn += [(step, value) for step, tag, value in second if tag == prefix]
            lines = [json.loads(line) for line in (out / file).read_text().splitlines()]
            kept = [(line["step"], struct.unpack("<f", struct.pack("<f", line[name]))[0]) for line in lines]
            self.assertEqual(drawn, kept, prefix)

    def test_a_run_that_is_not_asked_has_none(self):
        out = self.work.out("run")
        self.train_ok(self.work.spec(), out, "--steps", 2)
        self.assertFalse((out / "tensorboard").exists())
