"""The Llama family in plain PyTorch, as Hugging Face's Llama, Mistral, Mixtral, Qwen2 and Qwen3 compute it, the last with
experts too. For tests."""

import math

import torch
import torch.nn.functional as F


def head_dim(config):
    return config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]


def expert_names(config):
    """Of the router, and of an expert's modules: gate, up and down."""
    if config["model_type"] == "mixtral":
        return "block_sparse_moe.gate", "block_sparse_moe.experts.{}.", ("w1", "w3", "w2")
    return "mlp.gate", "mlp.experts.{}.", ("gate_proj", "up_proj", "down_proj")


def num_experts(config):
    return config.get("num_local_experts") or config.get("num_experts") or 0


def mlp_shapes(h, config):
    d = config["hidden_size"]
    if not num_experts(config):
        ff = config["intermediate_size"]
        return {h + "mlp.gate_proj.weight": (ff, d), h + "mlp.up_proj.weight": (ff, d), h + "mlp.down_proj.weight": (d, ff)}
    router, expert, (gate, up, down) = expert_names(config)
    ff = config.get("moe_intermediate_size") or config["intermediate_size"]
    result = {h + router + ".weight": (num_experts(config), d)}
    for e in range(num_experts(config)):
        prefix = h + expert.format(e)
        result.update({f"{prefix}{gate}.weight": (ff, d), f"{prefix}{up}.weight": (ff, d), f"{prefix}{down}.weight": (d, ff)})
    return result


def shapes(config):
    """Of each tensor, by its name."""
    d, vocab, size = config["hidden_size"], config["vocab_size"], head_dim(config)
    q, kv = config["num_attention_heads"] * size, config["num_key_value_heads"] * size
    has_qkv_bias = config["model_type"] == "qwen2" or config.get("attention_bias")
    result = {"model.embed_tokens.weight": (vocab, d), "model.norm.weight": (d,)}
    if not config.get("tie_word_embeddings"):
        result["lm_head.weight"] = (vocab, d)
    for i in range(config["num_hidden_layers"]):
        h = f"model.layers.{i}."
        result.update({h + "input_layernorm.weight": (d,), h + "post_attention_layernorm.weight": (d,),
                       h + "self_attn.o_proj.weight": (d, q), **mlp_shapes(h, config)})
        for name, width in (("q", q), ("k", kv), ("v", kv)):
            result[h + f"self_attn.{name}_proj.weight"] = (width, d)
            if has_qkv_bias:
                result[h + f"self_attn.{name}_proj.bias"] = (width,)
        if config.get("attention_bias"):
            result[h + "self_attn.o_proj.bias"] = (d,)
        if config["model_type"] in ("qwen3", "qwen3_moe"):
            result.update({h + "self_attn.q_norm.weight": (size,), h + "self_attn.k_norm.weight": (size,)})
    return result


def random_weights(config, seed):
    """Random everything, so that no gradient is zero by chance."""
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for name, shape in shapes(config).items():
        weights[name] = torch.randn(shape, generator=generator) * 0.08
        if "norm" in name:
            weights[name] += 1
    return weights


def theta(config):
    """Of transformers' defaults Mixtral's is its own."""
    return config.get("rope_theta", 1e6 if config["model_type"] == "mixtral" else 10000.0)


def yarn_frequencies(inverse, size, config):
    """Peng et al., arXiv:2309.00071: from those of fast pairs to a `factor` of those of slow ones by a ramp over the pairs."""
    scaling, base = config["rope_scaling"], theta(config)
    positions = scaling.get("original_max_position_embeddings") or config["max_position_embeddings"]

    def pair(turns):
        return size * math.log(positions / (turns * 2 * math.pi)) / (2 * math.log(base))

    low = max(math.floor(pair(scaling.get("beta_fast", 32))), 0)
    high = min(math.ceil(pair(scaling.get("beta_slow", 1))), size - 1)
    slow = ((torch.arange(size // 2, dtype=torch.float64) - low) / max(high - low, 0.001)).clamp(0, 1)
    return inverse * (1 - slow) + inverse / scaling["factor"] * slow


def length(config):
    """What queries and keys are multiplied by, by the way of their angles."""
    scaling = config.get("rope_scaling")
    if not scaling or scaling["rope_type"] != "yarn":
        return 1.0
    return scaling.get("attention_factor") or 0.1 * math.log(scaling["factor"]) + 1


def frequencies(config):
    """Of each pair of a head, in fp64."""
    size = head_dim(config)
    inverse = theta(config) ** (-torch.arange(0, size, 2, dtype=torch.float64) / size)
    scaling = config.get("rope_scaling")
    if not scaling or scaling["rope_type"] == "default":
        return inverse
    if scaling["rope_type"] == "linear":
        return inverse / scaling["factor"]
    if scaling["rope_type"] == "yarn":
        return yarn_frequencies(inverse, size, config)
    old, low, high = (scaling[k] for k in ("original_max_position_embeddings", "low_freq_factor", "high_freq_factor"))
    wavelength = 2 * math.pi / inverse
    smooth = (old / wavelength - low) / (high - low)
    between = (1 - smooth) * inverse / scaling["factor"] + smooth * inverse
    result = torch.where(wavelength > old / low, inverse / scaling["factor"], inverse)
    return torch.where((wavelength <= old / low) & (wavelength >= old / high), between, result)


def rotate(x, config):
    """x (B, heads, T, head_dim) by the angles of its positions."""
    angles = torch.arange(x.shape[2], dtype=torch.float64)[:, None] * frequencies(config)
    cos, sin = (length(config) * torch.cat((t, t), -1).to(x.dtype) for t in (angles.cos(), angles.sin()))
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin


def rms_norm(x, weight, eps):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def attention(q, k, v, window):
    T, groups = q.shape[2], q.shape[1] // k.shape[1]
    k, v = (t.repeat_interleave(groups, 1) for t in (k, v))
    scores = q @ k.transpose(2, 3) / math.sqrt(q.shape[3])
    distance = torch.arange(T)[:, None] - torch.arange(T)
    seen = (distance >= 0) & (distance < (window or T))
    return F.softmax(scores.masked_fill(~seen, float("-inf")), dim=-1) @ v


def experts(w, h, y, config, routed):
    """Rows y (B, T, d) through those that they are routed to; (probabilities, chosen) is added to the list `routed`."""
    router, expert, (gate, up, down) = expert_names(config)
    rows = y.flatten(0, 1)
    probabilities = F.softmax(F.linear(rows, w[h + router + ".weight"]), -1)
    weights, chosen = probabilities.topk(config["num_experts_per_tok"], -1)
    routed.append((probabilities, chosen))
    if config["model_type"] == "mixtral" or config.get("norm_topk_prob"):
        weights = weights / weights.sum(-1, keepdim=True)
    result = torch.zeros_like(rows)
    for e in range(num_experts(config)):
        prefix = h + expert.format(e)
        token, place = torch.where(chosen == e)
        x = rows[token]
        x = F.silu(F.linear(x, w[f"{prefix}{gate}.weight"])) * F.linear(x, w[f"{prefix}{up}.weight"])
        result = result.index_add(0, token, F.linear(x, w[f"{prefix}{down}.weight"]) * weights[token, place, None])
    return result.view_as(y)


def imbalance(routed, rows):
    """Switch Transformers' (arXiv:2101.03961) eq. 4 to 6 without alpha, over parts of so many rows, their mean; summed over
    layers."""
    total = 0
    for probabilities, chosen in routed:
        num = probabilities.shape[1]
        parts = [num * (F.one_hot(c, num).double().mean((0, 1)) * p.mean(0)).sum()
                 for p, c in zip(probabilities.split(rows), chosen.split(rows))]
        total = total + sum(parts) / len(parts)
    return total


def block(w, i, x, config, routed):
    h, eps, size = f"model.layers.{i}.", config["rms_norm_eps"], head_dim(config)
    B, T, _ = x.shape

    def linear(y, name):
        return F.linear(y, w[h + name + ".weight"], w.get(h + name + ".bias"))

    def heads(y, norm=None):
        y = y.view(B, T, -1, size)
        if h + f"self_attn.{norm}.weight" in w:
            y = rms_norm(y, w[h + f"self_attn.{norm}.weight"], eps)
        return y.transpose(1, 2)

    y = rms_norm(x, w[h + "input_layernorm.weight"], eps)
    q, k = (rotate(heads(linear(y, f"self_attn.{n}_proj"), f"{n}_norm"), config) for n in "qk")
    o = attention(q, k, heads(linear(y, "self_attn.v_proj")), config.get("sliding_window"))
    x = x + linear(o.transpose(1, 2).reshape(B, T, -1), "self_attn.o_proj")
    y = rms_norm(x, w[h + "post_attention_layernorm.weight"], eps)
    if num_experts(config):
        return x + experts(w, h, y, config, routed)
    return x + linear(F.silu(linear(y, "mlp.gate_proj")) * linear(y, "mlp.up_proj"), "mlp.down_proj")


def logits(w, tokens, config, routed=None):
    """(B, T, vocab). routed: a list, which gets what `experts` gives it of each layer."""
    routed = [] if routed is None else routed
    x = F.embedding(tokens, w["model.embed_tokens.weight"])
    for i in range(config["num_hidden_layers"]):
        x = block(w, i, x, config, routed)
    x = rms_norm(x, w["model.norm.weight"], config["rms_norm_eps"])
    return F.linear(x, w.get("lm_head.weight", w["model.embed_tokens.weight"]))


def loss(w, tokens, labels, config):
    """Mean cross-entropy in nats of tokens (B, T) against labels (B, T)."""
    result = logits(w, tokens, config)
    return F.cross_entropy(result.view(-1, result.shape[-1]), labels.reshape(-1))
