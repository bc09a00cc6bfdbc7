"""GPT-2 in plain PyTorch, as Hugging Face's GPT2LMHeadModel computes it. The reference for tests and benchmarks."""

import math
from typing import Callable, NamedTuple

import torch
import torch.nn.functional as F


def names(layers):
    """Tensor names, as Hugging Face has them."""
    result = ["transformer.wte.weight", "transformer.wpe.weight"]
    for i in range(layers):
        h = f"transformer.h.{i}."
        result += [h + "ln_1.weight", h + "ln_1.bias", h + "attn.c_attn.weight", h + "attn.c_attn.bias",
                   h + "attn.c_proj.weight", h + "attn.c_proj.bias", h + "ln_2.weight", h + "ln_2.bias",
                   h + "mlp.c_fc.weight", h + "mlp.c_fc.bias", h + "mlp.c_proj.weight", h + "mlp.c_proj.bias"]
    return result + ["transformer.ln_f.weight", "transformer.ln_f.bias"]


def shape(name, d, context, vocab):
    if name.endswith("wte.weight"):
        return (vocab, d)
    if name.endswith("wpe.weight"):
        return (context, d)
    for key, value in {"c_attn.weight": (d, 3 * d), "c_attn.bias": (3 * d,), "attn.c_proj.weight": (d, d),
                       "c_fc.weight": (d, 4 * d), "c_fc.bias": (4 * d,), "mlp.c_proj.weight": (4 * d, d)}.items():
        if name.endswith(key):
            return value
    return (d,)


def random_weights(layers, d, context, vocab, seed):
    """Random everything, biases and norms too, so that no gradient is zero by chance."""
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for name in names(layers):
        value = torch.randn(shape(name, d, context, vocab), generator=generator) * 0.05
        if name.endswith(("ln_1.weight", "ln_2.weight", "ln_f.weight")):
            value += 1
        weights[name] = value
    return weights


def attention(q, k, v):
    """Causal, of q, k, v (B, heads, T, d / heads)."""
    T = q.shape[2]
    scores = q @ k.transpose(2, 3) / math.sqrt(q.shape[3])
    causal = torch.ones(T, T, dtype=torch.bool, device=q.device).tril()
    return F.softmax(scores.masked_fill(~causal, float("-inf")), dim=-1) @ v


def gelu(y):
    return 0.5 * y * (1 + torch.tanh(math.sqrt(2 / math.pi) * (y + 0.044715 * y ** 3)))


class Ops(NamedTuple):
    """What may be computed by a faster way than written out."""
    attention: Callable = attention
    gelu: Callable = gelu


def block(w, i, x, heads, ops=Ops()):
    """Block `i` of x (B, T, d)."""
    h = f"transformer.h.{i}."
    B, T, d = x.shape

    def linear(y, name):
        return torch.addmm(w[h + name + ".bias"], y.reshape(-1, y.shape[-1]), w[h + name + ".weight"]).view(B, T, -1)

    y = F.layer_norm(x, (d,), w[h + "ln_1.weight"], w[h + "ln_1.bias"], 1e-5)
    q, k, v = linear(y, "attn.c_attn").split(d, 2)
    q, k, v = (t.view(B, T, heads, d // heads).transpose(1, 2) for t in (q, k, v))
    y = ops.attention(q, k, v).transpose(1, 2).reshape(B, T, d)
    x = x + linear(y, "attn.c_proj")
    y = F.layer_norm(x, (d,), w[h + "ln_2.weight"], w[h + "ln_2.bias"], 1e-5)
    y = linear(y, "mlp.c_fc")
    return x + linear(ops.gelu(y), "mlp.c_proj")


def hidden(w, tokens, layers, heads, run_block=block):
    """What enters the head, (B, T, d), of tokens (B, T)."""
    x = F.embedding(tokens, w["transformer.wte.weight"]) + w["transformer.wpe.weight"][: tokens.shape[1]]
    for i in range(layers):
        x = run_block(w, i, x, heads)
    d = x.shape[-1]
    return F.layer_norm(x, (d,), w["transformer.ln_f.weight"], w["transformer.ln_f.bias"], 1e-5)


def logits(w, tokens, layers, heads, run_block=block):
    """(B, T, vocab)."""
    return hidden(w, tokens, layers, heads, run_block) @ w["transformer.wte.weight"].t()


def loss(w, tokens, labels, layers, heads, run_block=block):
    """Mean cross-entropy in nats of tokens (B, T) against labels (B, T)."""
    result = logits(w, tokens, layers, heads, run_block)
    return F.cross_entropy(result.view(-1, result.shape[-1]), labels.reshape(-1))


def adamw(w, lr, betas, eps, weight_decay, **options):
    """AdamW with decay for tensors of two or more dimensions; `options` are torch.optim.AdamW's."""
    return torch.optim.AdamW(
        [{"params": [p for p in w.values() if p.dim() >= 2], "weight_decay": weight_decay},
         {"params": [p for p in w.values() if p.dim() < 2], "weight_decay": 0.0}], lr=lr, betas=betas, eps=eps, **options)
