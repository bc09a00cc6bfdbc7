"""BERT in plain PyTorch, as Hugging Face's BertForMaskedLM and BertForSequenceClassification compute it. For tests."""

import math

import torch
import torch.nn.functional as F

EMBEDDINGS, LAYERS, TRANSFORM = "bert.embeddings.", "bert.encoder.layer.", "cls.predictions.transform."


def classes(config):
    """0: masked tokens are predicted."""
    return len(config["id2label"]) if config["architectures"] == ["BertForSequenceClassification"] else 0


def shapes(config):
    """Of each tensor, by its name."""
    d, ff = config["hidden_size"], config["intermediate_size"]

    def dense(name, rows=d, columns=d):
        return {name + ".weight": (rows, columns), name + ".bias": (rows,)}

    def norm(name):
        return {name + ".weight": (d,), name + ".bias": (d,)}

    result = {EMBEDDINGS + "word_embeddings.weight": (config["vocab_size"], d),
              EMBEDDINGS + "position_embeddings.weight": (config["max_position_embeddings"], d),
              EMBEDDINGS + "token_type_embeddings.weight": (config["type_vocab_size"], d), **norm(EMBEDDINGS + "LayerNorm")}
    for i in range(config["num_hidden_layers"]):
        h = f"{LAYERS}{i}."
        for name in ("self.query", "self.key", "self.value", "output.dense"):
            result.update(dense(f"{h}attention.{name}"))
        result.update({**norm(h + "attention.output.LayerNorm"), **dense(h + "intermediate.dense", ff),
                       **dense(h + "output.dense", d, ff), **norm(h + "output.LayerNorm")})
    if classes(config):
        return {**result, **dense("bert.pooler.dense"), **dense("classifier", classes(config))}
    return {**result, **dense(TRANSFORM + "dense"), **norm(TRANSFORM + "LayerNorm"),
            "cls.predictions.bias": (config["vocab_size"],)}


def random_weights(config, seed):
    """Random everything, so that no gradient is zero by chance."""
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for name, shape in shapes(config).items():
        weights[name] = torch.randn(shape, generator=generator) * 0.08
        if name.endswith("LayerNorm.weight"):
            weights[name] += 1
    return weights


def attention(q, k, v, seen):
    scores = q @ k.transpose(2, 3) / math.sqrt(q.shape[3])
    if seen is not None:
        scores = scores.masked_fill(~seen[:, None, None, :], float("-inf"))
    return F.softmax(scores, dim=-1) @ v


def norm(w, name, x, config):
    return F.layer_norm(x, x.shape[-1:], w[name + ".weight"], w[name + ".bias"], config["layer_norm_eps"])


def dense(w, name, x):
    return F.linear(x, w[name + ".weight"], w[name + ".bias"])


def block(w, i, x, seen, config):
    h = f"{LAYERS}{i}."
    B, T, d = x.shape
    heads = config["num_attention_heads"]
    q, k, v = (dense(w, f"{h}attention.self.{name}", x).view(B, T, heads, d // heads).transpose(1, 2)
               for name in ("query", "key", "value"))
    o = attention(q, k, v, seen).transpose(1, 2).reshape(B, T, d)
    x = norm(w, h + "attention.output.LayerNorm", x + dense(w, h + "attention.output.dense", o), config)
    y = dense(w, h + "output.dense", F.gelu(dense(w, h + "intermediate.dense", x)))
    return norm(w, h + "output.LayerNorm", x + y, config)


def hidden(w, tokens, config, types=None, seen=None):
    """(B, T, d) of tokens (B, T). types: (B, T), or all 0. seen: (B, T), whether a token is no padding; or all are not."""
    types = torch.zeros_like(tokens) if types is None else types
    x = (F.embedding(tokens, w[EMBEDDINGS + "word_embeddings.weight"]) +
         w[EMBEDDINGS + "position_embeddings.weight"][: tokens.shape[1]] +
         F.embedding(types, w[EMBEDDINGS + "token_type_embeddings.weight"]))
    x = norm(w, EMBEDDINGS + "LayerNorm", x, config)
    for i in range(config["num_hidden_layers"]):
        x = block(w, i, x, seen, config)
    return x


def logits(w, tokens, config, types=None, seen=None):
    """(B, T, vocab), or (B, classes)."""
    x = hidden(w, tokens, config, types, seen)
    if classes(config):
        return dense(w, "classifier", torch.tanh(dense(w, "bert.pooler.dense", x[:, 0])))
    x = norm(w, TRANSFORM + "LayerNorm", F.gelu(dense(w, TRANSFORM + "dense", x)), config)
    return F.linear(x, w[EMBEDDINGS + "word_embeddings.weight"], w["cls.predictions.bias"])
