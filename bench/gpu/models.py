"""The models that bench/gpu/run trains, and arithmetic about them: operations, bytes, and the least time of a step.

Nothing here runs anything. Bytes are those of bf16 weights, gradients and boundaries, with one virtual node.
"""

import dataclasses
import math

WIRE_BYTES = 2


@dataclasses.dataclass(frozen=True)
class Model:
    name: str
    layers: int
    d: int
    heads: int
    context: int
    vocab: int = 50257

    @property
    def block_weights(self):
        """Of a block's four products."""
        return 12 * self.d * self.d

    @property
    def block_parameters(self):
        return self.block_weights + 13 * self.d  # biases of 9 d, two norms of 2 d each

    @property
    def parameters(self):
        return self.layers * self.block_parameters + (self.vocab + self.context + 2) * self.d

    def spec(self):
        """As a RunSpec's `model`."""
        return {"family": "GPT2", "layers": self.layers, "d_model": self.d, "heads": self.heads,
                "context": self.context, "vocab": self.vocab, "init_seed": 1}


@dataclasses.dataclass(frozen=True)
class Batch:
    """Of a step."""
    micro_batches: int
    micro_batch: int  # sequences

    def tokens(self, model):
        return self.micro_batches * self.micro_batch * model.context


BERT_LARGE = Model("BERT-Large's shape, 0.35 B", 24, 1024, 16, 512)
GPT_1B = Model("GPT of 1.3 B", 24, 2048, 16, 1024)
GPT_7B = Model("GPT of 7 B", 32, 4096, 32, 2048)


def tiny(model):
    """Of the same kind, in milliseconds a step on a processor."""
    return dataclasses.replace(model, name=f"tiny, in place of {model.name}", layers=3, d=64, heads=4, context=32,
                               vocab=257)


def model_operations(model, tokens):
    """Of a step that recomputes nothing: 6 for each weight of a product and token (the head's table counts, the
    embedding's look-up does not), and attention as causal: half of 12 * layers * context * d for each token."""
    products = 6 * (model.layers * model.block_weights + model.vocab * model.d)
    return tokens * (products + 6 * model.layers * model.context * model.d)


def executed_operations(model, tokens, recomputed):
    """With the forward of a share `recomputed` of all (block, micro-batch)s run again."""
    forward = tokens * model.layers * (2 * model.block_weights + 2 * model.context * model.d)
    return model_operations(model, tokens) + recomputed * forward


def pulled_bytes(model, depth_first=0, weight_slots=2):
    """Each layer on the way there; on the way back the blocks that are not depth first, but for those that are still in
    a slot: in all but one, which has the head."""
    back = max(0, model.layers - depth_first - (weight_slots - 1))
    blocks = (model.layers + back) * model.block_parameters
    embedding, head = (model.vocab + model.context) * model.d, (model.vocab + 2) * model.d
    return WIRE_BYTES * (blocks + embedding + head)


def pushed_bytes(model):
    """Each use of each blob; the token table has two."""
    return WIRE_BYTES * (model.parameters + model.vocab * model.d)


def boundary_bytes(model, tokens):
    """(in, out) of boundaries and their gradients that live on the host: on the way there each goes out and comes in;
    on the way back a layer takes its input and a gradient, and gives a gradient."""
    one = WIRE_BYTES * tokens * model.d * model.layers
    return 3 * one, 2 * one


def update_bytes(model):
    """Read and written by AdamW with one gradient: 2 + 2 + 8 + 2 read, 2 + 2 + 8 written a parameter."""
    return 26 * model.parameters


@dataclasses.dataclass(frozen=True)
class Ceilings:
    """What this machine was measured to reach; None where it was not measured."""
    flops: float = None  # bf16 products, of the fastest shape that was tried
    in_bytes: float = None  # per second from registered memory, in large pieces, while the other way is busy too
    out_bytes: float = None
    in_alone_bytes: float = None  # while it is not
    out_alone_bytes: float = None
    parameters_updated: float = None  # a second, by all cores
    dram_bytes: float = None  # a second, read and written by all cores

    @staticmethod
    def of(links, update):
        """From the last lines of gpu_ceilings and update_bench; either may be {}."""
        rows = [row for row in links.get("copies", []) if row["memory"] == "registered"]
        best = max(rows, key=lambda row: row["piece_bytes"], default={})
        giga = lambda key: best[key] * 1e9 if key in best else None  # noqa: E731
        peak = links.get("peak_bf16_tflops")
        return Ceilings(
            flops=peak * 1e12 if peak else None, in_bytes=giga("both_in_gb_per_second"),
            out_bytes=giga("both_out_gb_per_second"), in_alone_bytes=giga("in_gb_per_second"),
            out_alone_bytes=giga("out_gb_per_second"),
            parameters_updated=update["parameters"] / update["update_seconds"] if update else None,
            dram_bytes=28 * update["parameters"] / update["floor_seconds"] if update else None)


def floor_seconds(model, batch, recomputed, ceilings, pulled, host_boundaries=1.0, swapped_bytes=0):
    """The time of a step by what bounds it, were everything else hidden: {compute, in, out, update, host}; None where
    the ceiling is not known. The step's floor is the largest. `pulled`: bytes; `host_boundaries`: the share of boundaries
    on the host; `swapped_bytes`: of inner activations, which go out and come in once."""
    tokens = batch.tokens(model)
    stash_in, stash_out = (host_boundaries * num_bytes + swapped_bytes for num_bytes in boundary_bytes(model, tokens))
    # A push is written to the worker's inbox, and read there by the update (counted with it). The head's of the token table
    # waits for the embedding's: it is copied into the daemon first, which reads and writes it once more.
    waiting = WIRE_BYTES * model.vocab * model.d
    host = pulled + pushed_bytes(model) + 2 * waiting + stash_in + stash_out + update_bytes(model)
    amounts = {"compute": (executed_operations(model, tokens, recomputed), ceilings.flops),
               "in": (pulled + stash_in, ceilings.in_bytes),
               "out": (pushed_bytes(model) + stash_out, ceilings.out_bytes),
               "update": (model.parameters, ceilings.parameters_updated),
               "host": (host, ceilings.dram_bytes)}
    return {name: amount / rate if rate else None for name, (amount, rate) in amounts.items()}


def largest_that_fits(fits, most):
    """The largest n in 1..most with fits(n), which is true up to some n and false beyond; 0 if none."""
    low, high = 0, most
    while low < high:
        middle = math.ceil((low + high) / 2)
        if fits(middle):
            low = middle
        else:
            high = middle - 1
    return low
