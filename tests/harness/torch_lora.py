"""Adapters of low rank (LoRA, Hu et al., arXiv:2106.09685) beside the blocks' products, in plain PyTorch. For tests."""

import json
import math
import re

import torch

import safetensors_file
from eps_run import latest_checkpoint

A, B = ".lora_A.weight", ".lora_B.weight"


def is_adapter(name):
    return name.endswith((A, B))


def modules(weights, targets):
    """Of the blocks' products that `targets` name by their last parts, or of all, but for experts and their routers.
    `weights` are those without adapters."""
    blocks = [name.removesuffix(".weight") for name, value in weights.items()
              if value.dim() == 2 and re.search(r"\.(h|layers?)\.\d", name)
              and not re.search(r"\.experts\.|\.gate\.", name)]
    return [module for module in blocks if not targets or any(f".{module}".endswith(f".{t}") for t in targets)]


def is_in_out(module):
    """As GPT-2 has its weights."""
    return module.startswith("transformer.h.")


def random_adapters(weights, rank, targets=(), seed=6):
    """Neither A nor B is zero, so that no gradient is; together they count about as much as the weights beside them."""
    generator = torch.Generator().manual_seed(seed)
    result = {}
    for module in modules(weights, targets):
        shape = weights[module + ".weight"].shape
        columns, rows = shape if is_in_out(module) else reversed(shape)
        result[module + A] = torch.randn((rank, columns), generator=generator) * 0.2
        result[module + B] = torch.randn((rows, rank), generator=generator) * 0.05
    return result


def merged(w, rank, alpha, rank_stabilized=False, targets=()):
    """The weights of a model without adapters that computes the same, W + scale B A."""
    scale = alpha / (math.sqrt(rank) if rank_stabilized else rank)
    result = {name: value for name, value in w.items() if not is_adapter(name)}
    for name in (name for name in w if name.endswith(A)):
        module = name.removesuffix(A)
        change = scale * (w[module + B] @ w[name])
        result[module + ".weight"] = w[module + ".weight"] + (change.t() if is_in_out(module) else change)
    return result


def write_peft(folder, adapters, rank, alpha, rank_stabilized=False, targets=(), **members):
    """A folder as PEFT has it, of random_adapters'; `members` are more of its config."""
    folder.mkdir()
    safetensors_file.write(folder / "adapter_model.safetensors",
                           {f"base_model.model.{name}": value.numpy() for name, value in adapters.items()})
    (folder / "adapter_config.json").write_text(json.dumps({
        "peft_type": "LORA", "r": rank, "lora_alpha": alpha, "use_rslora": rank_stabilized, "bias": "none",
        "lora_dropout": 0.0, "target_modules": list(targets) or "all-linear", "modules_to_save": None, **members}))


class WithAdapters:
    """Goes before a TorchReference: what that one begins from has adapters from `adapt` on."""

    def adapt(self, name, **lora):
        config = json.loads((self.folder / "config.json").read_text())
        adapters = random_adapters(self.weights, lora["rank"], lora.get("targets", ()))
        self.lora = lora
        self.start({**config, "eps_lora": lora}, {**self.weights, **adapters}, self.context, name)

    def adapt_from_peft(self, name, **lora):
        """The same, where the adapters come out of another program's folder."""
        adapters = random_adapters(self.weights, lora["rank"], lora.get("targets", ()))
        self.lora, peft = lora, self.work.path / f"{name}-peft"
        write_peft(peft, adapters, **lora)
        base, self.folder = self.folder, self.work.path / name
        self.eps("import", "--from", base, "--adapter", peft, "--out", self.folder)
        self.weights = {**self.weights, **adapters}

    def loss(self, w, tokens, labels):
        return super().loss(merged(w, **self.lora), tokens, labels)

    def frozen_at_first(self, name):
        return not is_adapter(name) and not name.startswith("classifier.")

    def trained(self, out):
        """Not an export, in which adapters are no more."""
        return safetensors_file.read(latest_checkpoint(out))
