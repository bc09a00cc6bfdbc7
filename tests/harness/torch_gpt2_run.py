"""A run from a GPT-2 folder of random weights, and what PyTorch makes of it."""

import numpy as np

import torch_gpt2
from torch_reference import TorchReference

LAYERS, D, HEADS, CONTEXT, VOCAB = 3, 64, 4, 32, 256


class Gpt2Reference(TorchReference):
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
