"""Against PyTorch: from the same GPT-2 folder and data, fp32, every loss and every exported weight within 1e-4."""

import json
import math

import numpy as np
import torch

import safetensors_file
import torch_gpt2
from eps_run import EPS, SystemTest, latest_checkpoint, run, summary

LAYERS, D, HEADS, CONTEXT, VOCAB = 3, 64, 4, 32, 256
VNODES, MICRO_BATCHES, MICRO_BATCH = 4, 2, 2
STEPS, PEAK, FINAL, WARMUP = 20, 2e-3, 2e-4, 4
TOLERANCE = 1e-4


def learning_rate(step, decay):
    if step < WARMUP:
        return PEAK * (step + 1) / WARMUP
    progress = (step - WARMUP) / (STEPS - 1 - WARMUP)
    if decay == "COSINE":
        return FINAL + (PEAK - FINAL) * 0.5 * (1 + math.cos(math.pi * progress))
    if decay == "LINEAR":
        return PEAK + (FINAL - PEAK) * progress
    return PEAK


class TorchTest(SystemTest):
    def setUp(self):
        super().setUp()
        torch.set_num_threads(2)
        self.folder = self.work.path / "hf"
        self.folder.mkdir()
        self.weights = torch_gpt2.random_weights(LAYERS, D, CONTEXT, VOCAB, seed=3)
        safetensors_file.write(self.folder / "model.safetensors", {k: v.numpy() for k, v in self.weights.items()})
        (self.folder / "config.json").write_text(json.dumps({
            "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_layer": LAYERS, "n_embd": D, "n_head": HEADS,
            "n_positions": CONTEXT, "n_ctx": CONTEXT, "vocab_size": VOCAB, "layer_norm_epsilon": 1e-5,
            "activation_function": "gelu_new", "embd_pdrop": 0.0, "attn_pdrop": 0.0, "resid_pdrop": 0.0}))

    def batch(self, step):
        """SEQUENTIAL order: sample i is context + 1 tokens from i * context; step s takes samples s*B .. s*B+B-1."""
        text = np.frombuffer((self.work.path / "text.txt").read_bytes(), np.uint8).astype(np.int64)
        samples, size = (len(text) - 1) // CONTEXT, VNODES * MICRO_BATCHES * MICRO_BATCH
        rows = np.stack([text[i * CONTEXT: i * CONTEXT + CONTEXT + 1]
                         for i in ((step * size + j) % samples for j in range(size))])
        return torch.from_numpy(rows[:, :-1].copy()), torch.from_numpy(rows[:, 1:].copy())

    def train_torch(self, clip, decay):
        w = {k: v.clone().requires_grad_() for k, v in self.weights.items()}
        optimizer = torch_gpt2.adamw(w, PEAK, (0.9, 0.95), 1e-8, 0.1)
        losses, norms = [], []
        for step in range(STEPS):
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(step, decay)
            optimizer.zero_grad()
            loss = torch_gpt2.loss(w, *self.batch(step), LAYERS, HEADS)
            loss.backward()
            if clip:
                norms.append(torch.nn.utils.clip_grad_norm_(w.values(), clip).item())
            optimizer.step()
            losses.append(loss.item())
        return losses, norms, {k: v.detach().numpy() for k, v in w.items()}

    def compare(self, clip, decay, *args):
        spec = self.work.spec({
            "model": {"from": str(self.folder), **{k: None for k in ("family", "layers", "d_model", "heads", "context",
                                                                     "vocab", "init_seed")}},
            "data": {"order": "SEQUENTIAL", "seed": None},
            "batch": {"virtual_nodes": VNODES, "micro_batches": MICRO_BATCHES, "micro_batch": MICRO_BATCH},
            "optimizer": {"clip": {"mode": "EXACT", "norm": clip} if clip else None,
                          "schedule": {"peak": PEAK, "warmup_steps": WARMUP, "decay": decay, "final": FINAL}},
            "precision": {"wire": "FP32", "gradients": "FP32"}, "steps": STEPS})
        out = self.work.out("run")
        self.train_ok(spec, out, *args)
        exported = self.work.out("exported")
        done = run([str(EPS), "export", "--checkpoint", str(latest_checkpoint(out)), "--out", str(exported)])
        self.assertEqual(done.returncode, 0, done.stderr)

        losses, norms, weights = self.train_torch(clip, decay)
        ours = summary(out)["loss"]
        self.assertEqual(len(ours), STEPS)
        worst_loss = max(abs(a - b) / abs(b) for a, b in zip(ours, losses))
        for a, b in zip(ours, losses):  # one by one: max() may pass over a NaN
            self.assertTrue(abs(a - b) <= TOLERANCE * abs(b), f"loss: {a}, {b}\n{ours}\n{losses}")
        tensors = safetensors_file.read(exported / "model.safetensors")
        self.assertEqual(sorted(tensors), sorted(weights))
        worst = {}
        for name, expected in weights.items():
            got = tensors[name]
            if name.endswith("c_attn.bias"):  # the key part: its true gradient is zero, what moves it is rounding
                keep = np.r_[0:D, 2 * D:3 * D]
                got, expected = got[keep], expected[keep]
            worst[name] = float(np.linalg.norm(got - expected) / np.linalg.norm(expected))
            self.assertTrue(worst[name] <= TOLERANCE, f"{name}: {worst[name]}")
        if clip:
            lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
            for line, norm in zip(lines, norms):
                self.assertTrue(abs(line["gradient_norm"] - norm) <= TOLERANCE * norm, (line, norm))
            self.assertGreater(max(norms), clip, "the clip never bites")
        print(f"\n  clip {clip}, {decay}: {STEPS} steps, worst loss {worst_loss:.1e}, worst tensor "
              f"{max(worst.values()):.1e} ({max(worst, key=worst.get)})")

    def test_twenty_steps_without_clipping(self):
        self.compare(None, "CONSTANT")

    def test_twenty_steps_without_clipping_on_two_workers_under_the_smallest_plan(self):
        self.compare(None, "LINEAR", "--workers", 2, "--set", "relay.inner=RECOMPUTE")

    def test_twenty_steps_with_exact_clipping(self):
        self.compare(0.5, "COSINE")
