"""A run from a BERT folder of random weights, and what PyTorch makes of it."""

import numpy as np
import torch
import torch.nn.functional as F

import token_documents
import torch_bert
from torch_reference import MICRO_BATCH, MICRO_BATCHES, VNODES, TorchReference

CONTEXT, MASK_TOKEN, VOCAB, CLASSES = 32, 256, 261, 5
BERT = {"model_type": "bert", "architectures": ["BertForMaskedLM"], "num_hidden_layers": 3, "hidden_size": 60,
        "num_attention_heads": 4, "intermediate_size": 120, "max_position_embeddings": CONTEXT, "vocab_size": VOCAB,
        "type_vocab_size": 2, "hidden_act": "gelu", "layer_norm_eps": 1e-12, "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0}


class BertReference(TorchReference):
    def compared(self, name, values):
        return None if name.endswith("self.key.bias") else values  # it adds the same to all of a row's scores


class MaskedTokensReference(BertReference):
    args = ("--set", f"data.mask.token={MASK_TOKEN}")  # of eps train

    def setUp(self):
        super().setUp()
        self.start(BERT, torch_bert.random_weights(BERT, seed=3), CONTEXT)

    def batch(self, step):
        return self.masked_batch(step, VOCAB, token=MASK_TOKEN)

    def loss(self, w, tokens, labels):
        return F.cross_entropy(torch_bert.logits(w, tokens, BERT).flatten(0, 1), labels.flatten())


class ClassesReference(BertReference):
    """Texts and pairs of texts of many lengths, padded, and cut where they are longer than a sample."""

    def setUp(self):
        super().setUp()
        self.config = {**BERT, "architectures": ["BertForSequenceClassification"],
                       "id2label": {str(i): str(i) for i in range(CLASSES)}}
        self.start(self.config, torch_bert.random_weights(self.config, seed=4), CONTEXT)
        random = np.random.default_rng(5)
        self.texts, documents = [], []
        for _ in range(90):
            first, second = random.integers(1, 30), random.integers(0, 30)
            ids = random.integers(0, VOCAB, first + second)
            self.texts.append((ids[:first], ids[first:], int(random.integers(0, CLASSES))))
            documents.append((ids, np.ones(len(ids))))
        path = self.work.path / "pairs.bin"
        self.args = ("--set", f"data.path={path}", "--set", "data.tokenizer=TOKEN_IDS")
        token_documents.write(path, documents, classes=[c for _, _, c in self.texts],
                              second_parts=[len(first) for first, _, _ in self.texts])

    def batch(self, step):
        size = VNODES * MICRO_BATCHES * MICRO_BATCH
        tokens, types, seen = (np.zeros((size, CONTEXT), int) for _ in range(3))
        classes = []
        for row, place in enumerate(range(step * size, (step + 1) * size)):
            first, second, label = self.texts[place % len(self.texts)]
            while len(first) + len(second) > CONTEXT:  # the longer one, the first of equals, loses its last but one
                if len(first) >= len(second):
                    first = np.delete(first, -2)
                else:
                    second = np.delete(second, -2)
            both = np.concatenate([first, second])
            tokens[row, : len(both)] = both
            types[row, len(first): len(both)] = 1
            seen[row, : len(both)] = 1
            classes.append(label)
        return torch.from_numpy(tokens), (torch.from_numpy(types), torch.from_numpy(seen).bool(), torch.tensor(classes))

    def loss(self, w, tokens, others):
        types, seen, classes = others
        return F.cross_entropy(torch_bert.logits(w, tokens, self.config, types, seen), classes)
