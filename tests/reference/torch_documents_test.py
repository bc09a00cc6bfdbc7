"""Against PyTorch: documents in a sample give the loss and the gradient of each document run alone."""

import numpy as np
import torch

import token_documents
import torch_gpt2
import torch_llama
from torch_reference import MICRO_BATCH, MICRO_BATCHES, VNODES, TorchReference

CONTEXT, VOCAB, HEADS, LAYERS = 40, 131, 4, 2
GPT2 = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_layer": LAYERS, "n_embd": 36, "n_head": HEADS,
        "n_positions": CONTEXT, "n_ctx": CONTEXT, "vocab_size": VOCAB, "layer_norm_epsilon": 1e-5,
        "activation_function": "gelu_new", "embd_pdrop": 0.0, "attn_pdrop": 0.0, "resid_pdrop": 0.0}
LLAMA = {"model_type": "llama", "num_hidden_layers": LAYERS, "hidden_size": 42, "num_attention_heads": 6, "head_dim": 10,
         "num_key_value_heads": 2, "intermediate_size": 50, "max_position_embeddings": CONTEXT, "vocab_size": VOCAB,
         "rms_norm_eps": 1e-6, "tie_word_embeddings": False, "hidden_act": "silu", "sliding_window": None}


class TorchDocumentsTest(TorchReference):
    def make_documents(self, num_documents=150, longest=70):
        """Of 1 to `longest` tokens, of which the first third is not counted: as the prompts of conversations."""
        random = np.random.default_rng(11)
        self.documents = []
        for _ in range(num_documents):
            ids = random.integers(0, VOCAB, random.integers(1, longest + 1))
            self.documents.append((ids, np.arange(len(ids)) >= len(ids) // 3))
        self.path = self.work.path / "documents.bin"

    def batch(self, step):
        size = VNODES * MICRO_BATCHES * MICRO_BATCH
        pieces = []
        for place in range(step * size, (step + 1) * size):
            for document, first, rows in self.samples[place % len(self.samples)]:
                ids, counted = (x[first: first + rows + 1] for x in self.documents[document])
                labels = np.where(counted[1:], ids[1:], -100)
                pieces.append((torch.from_numpy(ids[None, :-1].copy()), torch.from_numpy(labels[None])))
        return pieces, sum(int((labels != -100).sum()) for _, labels in pieces)

    def loss(self, w, pieces, counted):
        losses = [self.model_loss(w, tokens, labels) * (labels != -100).sum()
                  for tokens, labels in pieces if (labels != -100).any()]
        return sum(losses) / counted

    def compared(self, name, values):
        if not name.endswith("c_attn.bias"):
            return values
        d = GPT2["n_embd"]
        return values[np.r_[0:d, 2 * d:3 * d]]  # without the bias of the keys

    def matches(self, name, config, weights, mode, may_be_cut, *args):
        self.make_documents()
        token_documents.write(self.path, self.documents, may_be_cut)
        rows = [len(ids) - 1 for ids, _ in self.documents]
        self.samples = token_documents.pack(rows, CONTEXT, may_be_cut, packs=mode == "PACKED")
        self.start(config, weights, CONTEXT, name)
        self.compare(None, "CONSTANT", "--set", f"data.path={self.path}", "--set", "data.tokenizer=TOKEN_IDS", "--set",
                     f"data.documents={mode}", *args)

    def gpt2(self, name, mode, may_be_cut, *args):
        self.model_loss = lambda w, tokens, labels: torch_gpt2.loss(w, tokens, labels, LAYERS, HEADS)
        self.matches(name, GPT2, torch_gpt2.random_weights(LAYERS, GPT2["n_embd"], CONTEXT, VOCAB, seed=5), mode,
                     may_be_cut, *args)

    def llama(self, name, changes, mode, may_be_cut, *args):
        config = {**LLAMA, **changes}
        self.model_loss = lambda w, tokens, labels: torch_llama.loss(w, tokens, labels, config)
        self.matches(name, config, torch_llama.random_weights(config, seed=5), mode, may_be_cut, *args)

    def test_packed_documents_with_learned_positions(self):
        self.gpt2("gpt2-packed", "PACKED", True)

    def test_packed_documents_on_two_workers_that_recompute_under_the_smallest_plan(self):
        self.gpt2("gpt2-two", "PACKED", True, "--workers", 2, "--set", "relay.inner=RECOMPUTE")

    def test_padded_documents_with_learned_positions(self):
        self.gpt2("gpt2-padded", "PADDED", False)

    def test_packed_documents_with_rotary_positions(self):
        self.llama("llama-packed", {}, "PACKED", False)

    def test_packed_documents_with_a_window(self):
        self.llama("mistral-packed", {"model_type": "mistral", "sliding_window": 9}, "PACKED", True)
