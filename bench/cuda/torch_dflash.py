"""A DFlash drafter in PyTorch over keys and values in slots of a fixed number, so that a CUDA graph can hold what it
does. After the paper (arXiv 2602.06036) and the layout of published checkpoints; `fixtures/dflash_reference.py` is
the same to be read.

Shapes: w rows of a block, H hidden size, K tapped layers, L slots.
"""

import json
import os
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from safetensors.torch import load_file


class Slots:
    """Keys and values of every layer, by position: what a transformers cache is to its models."""

    def __init__(self, layers, heads, length, width, like):
        make = lambda: torch.zeros(1, heads, length, width, dtype=like.dtype, device=like.device)
        self.keys, self.values = ([make() for _ in range(layers)] for _ in range(2))
        self.indices = torch.arange(length, device=like.device)
        # The positions of the rows that come next.
        self.at = None

    @classmethod
    def of(cls, config, length, like):
        """For a target of transformers."""
        width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        return cls(config.num_hidden_layers, config.num_key_value_heads, length, width, like)

    @classmethod
    def of_drafter(cls, config, length, like):
        return cls(config.layers, config.kv_heads, length, config.width, like)

    def update(self, keys, values, layer, *_, **__):
        """Puts rows `[1, heads, rows, width]` at their positions; everything that there is."""
        self.keys[layer].index_copy_(2, self.at, keys)
        self.values[layer].index_copy_(2, self.at, values)
        return self.keys[layer], self.values[layer]

    def get_seq_length(self, *_):
        return 0


@dataclass
class DrafterConfig:
    """What a drafter's `config.json` says."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    width: int
    ffn: int
    eps: float
    theta: float
    block: int
    mask_id: int
    taps: list

    @classmethod
    def like(cls, target, layers=5, block=16):
        """A drafter as large as published ones for a target of transformers: taps evenly from layer 1 on."""
        last = target.num_hidden_layers - 3
        taps = [round(1 + i * (last - 1) / (layers - 1)) for i in range(layers)]
        return cls(
            layers=layers,
            hidden=target.hidden_size,
            heads=target.num_attention_heads,
            kv_heads=target.num_key_value_heads,
            width=target.head_dim,
            ffn=target.intermediate_size,
            eps=target.rms_norm_eps,
            theta=1e6,
            block=block,
            mask_id=0,
            taps=taps,
        )

    @classmethod
    def read(cls, folder):
        with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
            raw = json.load(file)
        kinds = set(raw.get("layer_types", ["full_attention"]))
        if kinds != {"full_attention"}:
            raise ValueError(f"{folder}: layers of {kinds} are not known here")
        return cls(
            layers=raw["num_hidden_layers"],
            hidden=raw["hidden_size"],
            heads=raw["num_attention_heads"],
            kv_heads=raw["num_key_value_heads"],
            width=raw["head_dim"],
            ffn=raw["intermediate_size"],
            eps=raw["rms_norm_eps"],
            theta=raw["rope_theta"],
            block=raw["block_size"],
            mask_id=raw["dflash_config"]["mask_token_id"],
            taps=raw["dflash_config"]["target_layer_ids"],
        )

    def shapes(self):
        """Every tensor by its published name."""
        q, kv = self.heads * self.width, self.kv_heads * self.width
        shapes = {
            "fc": (self.hidden, len(self.taps) * self.hidden),
            "hidden_norm": (self.hidden,),
            "norm": (self.hidden,),
        }
        for layer in range(self.layers):
            of = f"layers.{layer}."
            shapes |= {
                of + "input_layernorm": (self.hidden,),
                of + "post_attention_layernorm": (self.hidden,),
                of + "self_attn.q_proj": (q, self.hidden),
                of + "self_attn.k_proj": (kv, self.hidden),
                of + "self_attn.v_proj": (kv, self.hidden),
                of + "self_attn.o_proj": (self.hidden, q),
                of + "self_attn.q_norm": (self.width,),
                of + "self_attn.k_norm": (self.width,),
                of + "mlp.gate_proj": (self.ffn, self.hidden),
                of + "mlp.up_proj": (self.ffn, self.hidden),
                of + "mlp.down_proj": (self.hidden, self.ffn),
            }
        return shapes


class Drafter:
    """The drafter. Embedding and head are the target's."""

    def __init__(self, config, tensors):
        self.config, self.tensors, self.slots = config, tensors, None
        half = config.width // 2
        device = tensors["fc"].device
        self.frequencies = config.theta ** -(torch.arange(half, device=device) / half)

    @classmethod
    def random(cls, config, like):
        make = lambda shape: (
            torch.randn(shape, device=like.device, dtype=like.dtype) * 0.02
            if len(shape) > 1
            else torch.ones(shape, device=like.device, dtype=like.dtype)
        )
        return cls(config, {name: make(shape) for name, shape in config.shapes().items()})

    @classmethod
    def load(cls, folder, like):
        config = DrafterConfig.read(folder)
        stored = load_file(os.path.join(folder, "model.safetensors"))
        names = config.shapes()
        tensors = {name: stored[name + ".weight"].to(like.device, like.dtype) for name in names}
        return cls(config, tensors)

    def norm(self, x, name):
        return F.rms_norm(x, x.shape[-1:], self.tensors[name], self.config.eps)

    def heads(self, x, name, count):
        """Rows `[rows, H]` through a projection, as heads `[1, count, rows, width]`."""
        return F.linear(x, self.tensors[name]).view(1, len(x), count, -1).transpose(1, 2)

    def angles(self, positions):
        angles = positions[:, None].float() * self.frequencies
        return angles.cos(), angles.sin()

    def rotated(self, x, angles):
        """Heads turned by their positions, pairs (i, i + width / 2)."""
        a, b = x.float().chunk(2, dim=-1)
        cos, sin = angles
        return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1).to(x.dtype)

    def keys_and_values(self, layer, x, angles):
        of, count = f"layers.{layer}.self_attn.", self.config.kv_heads
        keys = self.norm(self.heads(x, of + "k_proj", count), of + "k_norm")
        return self.rotated(keys, angles), self.heads(x, of + "v_proj", count)

    def absorb(self, taps, positions):
        """Makes keys and values of rows of taps `[rows, K·H]`."""
        features = self.norm(F.linear(taps, self.tensors["fc"]), "hidden_norm")
        angles, self.slots.at = self.angles(positions), positions
        for layer in range(self.config.layers):
            self.slots.update(*self.keys_and_values(layer, features, angles), layer)

    def draft(self, x, positions, length):
        """Normed outputs `[w, H]` of the embedded block `x` behind `length` known tokens (a tensor)."""
        angles = self.angles(positions)
        known = (self.slots.indices < length).expand(len(x), -1)
        # Every row of a block sees all of it.
        mask = torch.cat([known, torch.ones_like(known[:, : len(x)])], dim=-1)
        for layer in range(self.config.layers):
            x = self.layer(layer, x, angles, mask)
        return self.norm(x, "norm")

    def layer(self, layer, x, angles, mask):
        of, c = f"layers.{layer}.", self.config
        normed = self.norm(x, of + "input_layernorm")
        q = self.norm(self.heads(normed, of + "self_attn.q_proj", c.heads), of + "self_attn.q_norm")
        own = self.keys_and_values(layer, normed, angles)
        known = self.slots.keys[layer], self.slots.values[layer]
        share = c.heads // c.kv_heads
        k, v = (
            torch.cat(pair, dim=2).repeat_interleave(share, dim=1) for pair in zip(known, own)
        )
        seen = F.scaled_dot_product_attention(self.rotated(q, angles), k, v, attn_mask=mask)
        seen = seen.transpose(1, 2).reshape(len(x), -1)
        x = x + F.linear(seen, self.tensors[of + "self_attn.o_proj"])
        normed = self.norm(x, of + "post_attention_layernorm")
        gate = F.silu(F.linear(normed, self.tensors[of + "mlp.gate_proj"]))
        gated = gate * F.linear(normed, self.tensors[of + "mlp.up_proj"])
        return x + F.linear(gated, self.tensors[of + "mlp.down_proj"])
