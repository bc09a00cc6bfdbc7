"""A run from a Hugging Face folder against plain PyTorch: every loss and every exported weight, in fp32."""

import fnmatch
import json
import math
import os

import numpy as np
import torch

import layer_drop
import safetensors_file
import token_masking
import torch_gpt2
from eps_run import EPS, SystemTest, latest_checkpoint, metrics, run, summary

VNODES, MICRO_BATCHES, MICRO_BATCH = 4, 2, 2
STEPS = int(os.environ.get("EPS_REFERENCE_STEPS", 20))
PEAK, FINAL, WARMUP = 2e-3, 2e-4, 4
if STEPS < WARMUP + 2:
    raise ValueError(f"EPS_REFERENCE_STEPS: {STEPS}, must be {WARMUP + 2} or more")
TOLERANCE = 1e-4


def in_tiles():
    """Arguments of a run whose batch has the same sequences, and several tiles in each micro-batch."""
    batch = {"virtual_nodes": 2, "micro_batches": 2, "micro_batch": VNODES * MICRO_BATCHES * MICRO_BATCH // 4,
             "feed_forward_tile": 64}
    return [arg for field, value in batch.items() for arg in ("--set", f"batch.{field}={value}")]


def learning_rate(step, decay):
    if step < WARMUP:
        return PEAK * (step + 1) / WARMUP
    progress = (step - WARMUP) / (STEPS - 1 - WARMUP)
    if decay == "COSINE":
        return FINAL + (PEAK - FINAL) * 0.5 * (1 + math.cos(math.pi * progress))
    if decay == "LINEAR":
        return PEAK + (FINAL - PEAK) * progress
    return PEAK


class TorchReference(SystemTest):
    """Who derives from it calls `start` and says what the model's loss is."""

    dropped = ()  # blocks that the step leaves out, from 0

    def loss(self, w, tokens, labels):
        """Mean cross-entropy of tokens (B, T) by the weights `w`."""
        raise NotImplementedError

    def compared(self, name, values):
        """The part of a tensor that is compared, or None: one whose true gradient is zero moves by rounding alone."""
        return values

    def frozen_at_first(self, name):
        """Whether a tensor is frozen that no pattern of `freeze` matches."""
        return False

    def trained(self, out):
        """The tensors that the run in `out` has made."""
        exported = self.work.out(f"{self.folder.name}-exported")
        done = run([str(EPS), "export", "--checkpoint", str(latest_checkpoint(out)), "--out", str(exported)])
        self.assertEqual(done.returncode, 0, done.stderr)
        return safetensors_file.read(exported / "model.safetensors")

    def start(self, config, weights, context, name="hf"):
        torch.set_num_threads(1)
        self.context, self.weights = context, weights
        self.folder = self.work.path / name
        self.folder.mkdir()
        safetensors_file.write(self.folder / "model.safetensors", {k: v.numpy() for k, v in weights.items()})
        (self.folder / "config.json").write_text(json.dumps(config))

    def text(self):
        return np.frombuffer((self.work.path / "text.txt").read_bytes(), np.uint8).astype(np.int64)

    def batch(self, step):
        """SEQUENTIAL order: sample i is context + 1 tokens from i * context; step s takes samples s*B .. s*B+B-1."""
        text, context = self.text(), self.context
        samples, size = (len(text) - 1) // context, VNODES * MICRO_BATCHES * MICRO_BATCH
        rows = np.stack([text[i * context: i * context + context + 1]
                         for i in ((step * size + j) % samples for j in range(size))])
        return torch.from_numpy(rows[:, :-1].copy()), torch.from_numpy(rows[:, 1:].copy())

    def masked_batch(self, step, vocab, **rule):
        """The same of a model that predicts masked tokens: sample i is context tokens from i * context."""
        text, context = self.text(), self.context
        samples, size = len(text) // context, VNODES * MICRO_BATCHES * MICRO_BATCH
        rows = []
        for place in range(step * size, (step + 1) * size):
            first = place % samples * context
            rows.append(token_masking.mask(text[first: first + context], place, seed=0, vocab=vocab, **rule))
        return tuple(torch.from_numpy(np.stack(part)) for part in zip(*rows))

    def optimizer(self, w):
        return torch_gpt2.adamw(w, PEAK, (0.9, 0.95), 1e-8, 0.1)

    def frozen(self, freeze):
        """By name; the last pattern that matches counts, and one that begins with `!` takes back."""
        chosen = {name: self.frozen_at_first(name) for name in self.weights}
        for pattern in freeze:
            for name in fnmatch.filter(chosen, pattern.removeprefix("!")):
                chosen[name] = not pattern.startswith("!")
        return {name for name, is_frozen in chosen.items() if is_frozen}

    def train_torch(self, clip, decay, frozen=(), drop=None):
        w = {k: v.clone().requires_grad_(k not in frozen) for k, v in self.weights.items()}
        optimizer = self.optimizer(w)
        losses, norms = [], []
        for step in range(STEPS):
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(step, decay) * group.get("scale", 1)
            # A parameter without a gradient has no update, and counts none.
            optimizer.zero_grad(set_to_none=True)
            if drop:
                self.dropped = layer_drop.dropped(0, step, **drop)
            loss = self.loss(w, *self.batch(step))
            loss.backward()
            if clip:
                norms.append(torch.nn.utils.clip_grad_norm_(w.values(), clip).item())
            optimizer.step()
            losses.append(loss.item())
        return losses, norms, {k: v.detach().numpy() for k, v in w.items()}

    def spec(self, clip, decay, freeze=(), drop=None, rule=None, model=None):
        shape = ("family", "layers", "d_model", "heads", "context", "vocab", "init_seed")  # the folder says it
        return self.work.spec({
            "model": {"from": str(self.folder), "freeze": list(freeze), **dict.fromkeys(shape), **(model or {})},
            "data": {"order": "SEQUENTIAL", "seed": None},
            "batch": {"virtual_nodes": VNODES, "micro_batches": MICRO_BATCHES, "micro_batch": MICRO_BATCH},
            "optimizer": {"clip": {"mode": "EXACT", "norm": clip} if clip else None,
                          "schedule": {"peak": PEAK, "warmup_steps": WARMUP, "decay": decay, "final": FINAL},
                          **(rule or {})},
            "precision": {"wire": "FP32", "gradients": "FP32"}, "steps": STEPS,
            "depth": {"drop": {k: v for k, v in drop.items() if k != "blocks"}} if drop else None},
            name=f"{self.folder.name}.json")

    def compare(self, clip, decay, *args, freeze=(), drop=None, rule=None, model=None):
        """rule: of the RunSpec's optimizer, which `optimizer` says in PyTorch's words. model: more of its model."""
        spec = self.spec(clip, decay, freeze, drop, rule, model)
        out = self.work.out(f"{self.folder.name}-run")
        self.train_ok(spec, out, *args)
        for log in (out / "logs").glob("gpu_worker-*.log"):
            self.assertNotIn("memory_not_pinned", log.read_text())  # a device that pins nothing says nothing
        tensors, frozen = self.trained(out), self.frozen(freeze)

        losses, norms, weights = self.train_torch(clip, decay, frozen, drop)
        ours = summary(out)["loss"]
        self.assertEqual(len(ours), STEPS)
        worst_loss = max(abs(a - b) / abs(b) for a, b in zip(ours, losses))
        for a, b in zip(ours, losses):  # one by one: max() may pass over a NaN
            self.assertTrue(abs(a - b) <= TOLERANCE * abs(b), f"loss: {a}, {b}\n{ours}\n{losses}")
        self.assertEqual(sorted(tensors), sorted(weights))
        worst = {}
        for name, expected in weights.items():
            if name in frozen:
                self.assertEqual(tensors[name].tobytes(), expected.tobytes(), f"{name} is frozen, and has changed")
                continue
            got, expected = self.compared(name, tensors[name]), self.compared(name, expected)
            if expected is None:
                continue
            worst[name] = float(np.linalg.norm(got - expected) / np.linalg.norm(expected))
            self.assertTrue(worst[name] <= TOLERANCE, f"{name}: {worst[name]}")
        if clip:
            for line, norm in zip(metrics(out), norms):
                self.assertTrue(abs(line["gradient_norm"] - norm) <= TOLERANCE * norm, (line, norm))
            self.assertGreater(max(norms), clip, "the clip never bites")
        print(f"\n  {self.folder.name}, clip {clip}, {decay}: {STEPS} steps, worst loss {worst_loss:.1e}, worst tensor "
              f"{max(worst.values()):.1e} ({max(worst, key=worst.get)})")
