"""A DFlash drafter to be trained: the layout of published checkpoints, and a forward pass over many blocks at once.

Shapes: B rows of N tokens, A blocks of w tokens, R tokens in all blocks of a row, H hidden size, K tapped layers.
"""

import json
import re
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

from kernels import rotate
from target import angles


def fresh_config(target, layers=5, block=16, mask_id=0):
    """What a `config.json` says of a drafter like published ones, taps evenly from layer 1 to the third last."""
    last = len(target.layers) - 3
    taps = [round(1 + i * (last - 1) / (layers - 1)) for i in range(layers)]
    return {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "dtype": "bfloat16",
        "num_hidden_layers": layers,
        "layer_types": ["full_attention"] * layers,
        "sliding_window": None,
        "use_sliding_window": False,
        "hidden_size": target.hidden,
        "intermediate_size": target.ffn,
        "num_attention_heads": target.heads,
        "num_key_value_heads": target.kv_heads,
        "head_dim": target.width,
        "hidden_act": "silu",
        "attention_bias": False,
        "rms_norm_eps": 1e-6,
        "rope_theta": target.theta,
        "rope_scaling": None,
        "max_position_embeddings": target.context,
        "vocab_size": target.vocab,
        "tie_word_embeddings": False,
        "num_target_layers": len(target.layers),
        "block_size": block,
        "dflash_config": {"mask_token_id": mask_id, "target_layer_ids": taps},
    }


def shapes(config):
    """Every tensor by its published name, without `.weight`."""
    hidden, ffn, width = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    q, kv = config["num_attention_heads"] * width, config["num_key_value_heads"] * width
    taps = config["dflash_config"]["target_layer_ids"]
    found = {"fc": (hidden, len(taps) * hidden), "hidden_norm": (hidden,), "norm": (hidden,)}
    for layer in range(config["num_hidden_layers"]):
        own = {
            "input_layernorm": (hidden,),
            "post_attention_layernorm": (hidden,),
            "self_attn.q_proj": (q, hidden),
            "self_attn.k_proj": (kv, hidden),
            "self_attn.v_proj": (kv, hidden),
            "self_attn.o_proj": (hidden, q),
            "self_attn.q_norm": (width,),
            "self_attn.k_norm": (width,),
            "mlp.gate_proj": (ffn, hidden),
            "mlp.up_proj": (ffn, hidden),
            "mlp.down_proj": (hidden, ffn),
        }
        found |= {f"layers.{layer}.{name}": shape for name, shape in own.items()}
    return found


def as_json(config):
    """The text of a `config.json`, each list of numbers on one line."""
    text = json.dumps(config, indent=2)
    return re.sub(r"\[\n([\d\s,.eE+-]+)\]", lambda found: f"[{' '.join(found[1].split())}]", text)


class Drafter:
    """Master weights in f32, those of one shape in one tensor. Embedding and head are the target's."""

    def __init__(self, config, tensors, device, dtype):
        c = self.config = config
        if set(c.get("layer_types", ["full_attention"])) != {"full_attention"}:
            raise ValueError("layers with a sliding window are not known here")
        self.block, self.width, self.eps = c["block_size"], c["head_dim"], c["rms_norm_eps"]
        self.heads, self.kv_heads = c["num_attention_heads"], c["num_key_value_heads"]
        self.taps, self.mask_id = c["dflash_config"]["target_layer_ids"], c["dflash_config"]["mask_token_id"]
        self.theta, self.layers, self.dtype = c["rope_theta"], c["num_hidden_layers"], dtype
        self.names, self.masters = {}, {}
        for name, shape in shapes(config).items():
            self.names.setdefault(shape, []).append(name)
        for shape, names in self.names.items():
            stacked = torch.stack([tensors[name].to(device, torch.float32) for name in names])
            self.masters[shape] = stacked.requires_grad_()

    @classmethod
    def load(cls, folder, device, dtype):
        folder = Path(folder)
        stored = load_file(folder / "model.safetensors")
        tensors = {name.removesuffix(".weight"): tensor for name, tensor in stored.items()}
        return cls(json.loads((folder / "config.json").read_text()), tensors, device, dtype)

    @classmethod
    def fresh(cls, config, device, dtype):
        """Random weights, the same ones every time."""
        draw = torch.Generator().manual_seed(0)
        make = lambda s: torch.randn(s, generator=draw) * 0.02 if len(s) > 1 else torch.ones(s)
        return cls(config, {name: make(shape) for name, shape in shapes(config).items()}, device, dtype)

    def save(self, folder):
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        tensors = {}
        for shape, names in self.names.items():
            for name, tensor in zip(names, self.masters[shape].detach().bfloat16().cpu()):
                tensors[name + ".weight"] = tensor.clone()
        save_file(tensors, folder / "part", metadata={"format": "pt"})
        (folder / "part").rename(folder / "model.safetensors")
        (folder / "config.json").write_text(as_json(self.config))

    def weights(self):
        """Name to the tensor that the forward pass uses."""
        pairs = ((names, self.masters[shape].to(self.dtype).unbind(0)) for shape, names in self.names.items())
        return {name: tensor for names, tensors in pairs for name, tensor in zip(names, tensors)}

    def layer_weights(self, weights, layer):
        start = f"layers.{layer}."
        return {name.removeprefix(start): w for name, w in weights.items() if name.startswith(start)}

    def norm(self, x, weight):
        return F.rms_norm(x, x.shape[-1:], weight, self.eps)

    def split(self, x, weight, norm=None):
        """Rows through a projection, as heads."""
        heads = F.linear(x, weight).unflatten(-1, (-1, self.width))
        return heads if norm is None else self.norm(heads, norm)

    def layer(self, x, features, w, at_blocks, at_tokens, attention):
        """`x` `[B, R, H]` over `features` `[B, N, H]` and itself; `at_…` are the angles of both."""
        normed = self.norm(x, w["input_layernorm"])
        k_norm, k_proj, v_proj = w["self_attn.k_norm"], w["self_attn.k_proj"], w["self_attn.v_proj"]
        turn = lambda heads, at: rotate(heads, at[0][:, :, None], at[1][:, :, None])
        q = turn(self.split(normed, w["self_attn.q_proj"], w["self_attn.q_norm"]), at_blocks)
        own = turn(self.split(normed, k_proj, k_norm), at_blocks)
        known = turn(self.split(features, k_proj, k_norm), at_tokens)
        k = torch.cat([known, own], dim=1)
        v = torch.cat([self.split(features, v_proj), self.split(normed, v_proj)], dim=1)
        seen = attention(*(heads.transpose(1, 2) for heads in (q, k, v)))
        x = x + F.linear(seen.transpose(1, 2).flatten(2), w["self_attn.o_proj"])
        normed = self.norm(x, w["post_attention_layernorm"])
        gated = F.silu(F.linear(normed, w["mlp.gate_proj"])) * F.linear(normed, w["mlp.up_proj"])
        return x + F.linear(gated, w["mlp.down_proj"])

    def draft(self, target, tokens, taps, starts, groups, attention, run_layer=None):
        """Normed outputs `[B, A, w − 1, H]` of the masks of each group of blocks, in a list.

        `groups` are pairs of a size w and places of anchors `[B, A]`. `starts` `[B, N]` tells where the conversation of
        each token begins; positions count from there. `attention` is told what a block sees: the features of its
        conversation strictly before its anchor, and itself both ways."""
        run_layer = run_layer or self.layer
        w = self.weights()
        each = lambda make: torch.cat([make(size, anchors) for size, anchors in groups], dim=1)
        anchors = each(lambda size, anchors: anchors.repeat_interleave(size, dim=1))
        offsets = each(lambda size, anchors: torch.arange(size, device=anchors.device).repeat(anchors.shape))
        of_anchor = starts.gather(1, anchors)
        attention.look(of_anchor, anchors)
        at_blocks = angles(anchors - of_anchor + offsets, self.width, self.theta)
        places = torch.arange(tokens.shape[1], device=tokens.device)
        at_tokens = angles(places - starts, self.width, self.theta)
        ids = torch.where(offsets == 0, tokens.gather(1, anchors), self.mask_id)
        # It asks for a gradient, as the later layers' inputs do, so that one compiled layer does for all.
        x = target.embed(ids).requires_grad_(torch.is_grad_enabled())
        features = self.norm(F.linear(taps, w["fc"]), w["hidden_norm"])
        for layer in range(self.layers):
            x = run_layer(x, features, self.layer_weights(w, layer), at_blocks, at_tokens, attention)
        parts = self.norm(x, w["norm"]).split([size * anchors.shape[1] for size, anchors in groups], dim=1)
        return [part.unflatten(1, (-1, size))[:, :, 1:] for part, (size, _) in zip(parts, groups)]
