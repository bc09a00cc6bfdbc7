"""Against PyTorch: from the same GPT-2 folder and data, fp32, every loss and every exported weight within 1e-4."""

import numpy as np

import torch_gpt2
from torch_reference import TorchReference

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
