"""Against PyTorch: from the same GPT-2 folder and data, fp32, every loss and every exported weight within 1e-4."""

import numpy as np
import torch

import torch_gpt2
from torch_lamb import Lamb
from torch_reference import PEAK, TorchReference

LAYERS, D, HEADS, CONTEXT, VOCAB = 3, 64, 4, 32, 256


class TorchTest(TorchReference):
    def setUp(self):
        super().setUp()
        self.start({
            "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_layer": LAYERS, "n_embd": D, "n_head": HEADS,
            "n_positions": CONTEXT, "n_ctx": CONTEXT, "vocab_size": VOCAB, "layer_norm_epsilon": 1e-5,
            "activation_function": "gelu_new", "embd_pdrop": 0.0, "attn_pdrop": 0.0, "resid_pdrop": 0.0},
            torch_gpt2.random_weights(LAYERS, D, CONTEXT, VOCAB, seed=3), CONTEXT)

    def loss(self, w, tokens, labels):
        def block(w, i, x, heads):
            return x if i in self.dropped else torch_gpt2.block(w, i, x, heads)
        return torch_gpt2.loss(w, tokens, labels, LAYERS, HEADS, block)

    def compared(self, name, values):
        # The bias of the keys.
        return values[np.r_[0:D, 2 * D:3 * D]] if name.endswith("c_attn.bias") else values

    def test_twenty_steps_without_clipping(self):
        self.compare(None, "CONSTANT")

    def test_twenty_steps_without_clipping_on_two_workers_under_the_smallest_plan(self):
        self.compare(None, "LINEAR", "--workers", 2, "--set", "relay.inner=RECOMPUTE")

    def test_twenty_steps_with_exact_clipping(self):
        self.compare(0.5, "COSINE")

    def test_twenty_steps_with_frozen_tensors_and_exact_clipping(self):
        self.compare(0.3, "COSINE", freeze=("transformer.w*", "transformer.h.0.*", "*.1.attn.*", "*.2.ln_1.weight"))

    def test_twenty_steps_that_drop_layers_and_exact_clipping(self):
        self.compare(0.5, "COSINE", "--workers", 2, drop={"blocks": LAYERS, "share": 0.4})

    def test_twenty_steps_that_drop_later_layers_more_often(self):
        self.compare(None, "LINEAR", drop={"blocks": LAYERS, "share": 0.8, "rule": "LINEAR"})

    def lamb(self, **options):
        def optimizer(w):
            self.made = Lamb([{"params": [p for p in w.values() if p.dim() >= 2], "weight_decay": 0.1},
                              {"params": [p for p in w.values() if p.dim() < 2]}], PEAK, (0.9, 0.95), 1e-6, **options)
            return self.made
        self.optimizer = optimizer
        return {"adamw": None, "lamb": {"beta1": 0.9, "beta2": 0.95, "eps": 1e-6, "weight_decay": 0.1, **options}}

    def test_twenty_steps_with_lamb(self):
        self.compare(None, "COSINE", "--workers", 2, rule=self.lamb())
        self.assertGreater(max(self.made.ratios), 2 * min(self.made.ratios), "one ratio would do for all")

    def test_twenty_steps_with_lamb_bound_ratios_and_exact_clipping(self):
        bound = 0.07
        self.compare(0.5, "LINEAR", rule=self.lamb(max_trust_ratio=bound))
        reached = sum(ratio == bound for ratio in self.made.ratios)
        self.assertTrue(0 < reached < len(self.made.ratios), f"{reached} of {len(self.made.ratios)} ratios are the bound")

    def test_twenty_steps_with_parameter_groups(self):
        def optimizer(w):
            def group(name, p):
                decay, scale = 0.1 if p.dim() >= 2 else 0.0, 1.0
                if name.startswith("transformer.h."):
                    scale = 0.5
                if name.startswith("transformer.h.2.") and not name.endswith(".bias"):
                    decay, scale = 0.3, 1.0  # the last group counts whole
                if name == "transformer.wte.weight":
                    decay, scale = 0.0, 2.0
                return {"params": [p], "weight_decay": decay, "scale": scale}
            return torch.optim.AdamW([group(name, p) for name, p in w.items()], lr=PEAK, betas=(0.9, 0.95), eps=1e-8)
        self.optimizer = optimizer
        self.compare(0.5, "COSINE", "--workers", 2, rule={"groups": [
            {"tensors": ["transformer.h.*"], "learning_rate_scale": 0.5},
            {"tensors": ["transformer.h.2.*", "!*.bias"], "weight_decay": 0.3},
            {"tensors": ["*.wte.*"], "learning_rate_scale": 2, "weight_decay": 0}]})
