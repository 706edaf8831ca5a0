"""The target: a decoder of Llama's kind (Llama, Mistral, SmolLM2, Qwen2, Qwen3) that transformers loads, run here
over packed rows with taps, or one token a row over a memory of keys and values.

Shapes: B rows of N tokens, H hidden size, K tapped layers, V vocabulary, L positions of memory.
"""

from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from transformers import AutoModelForCausalLM, AutoTokenizer

from kernels import head_logits, rotate


class Layer(NamedTuple):
    attention_norm: torch.Tensor
    qkv: torch.Tensor
    bias: torch.Tensor | None
    q_norm: torch.Tensor | None
    k_norm: torch.Tensor | None
    out: torch.Tensor
    mlp_norm: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor


def _layer(block):
    a, m = block.self_attn, block.mlp
    three = (a.q_proj, a.k_proj, a.v_proj)
    bias = torch.cat([p.bias for p in three]) if a.q_proj.bias is not None else None
    norms = [getattr(a, name).weight if hasattr(a, name) else None for name in ("q_norm", "k_norm")]
    return Layer(
        attention_norm=block.input_layernorm.weight,
        qkv=torch.cat([p.weight for p in three]),
        bias=bias,
        q_norm=norms[0],
        k_norm=norms[1],
        out=a.o_proj.weight,
        mlp_norm=block.post_attention_layernorm.weight,
        gate_up=torch.cat([m.gate_proj.weight, m.up_proj.weight]),
        down=m.down_proj.weight,
    )


class Target:
    """Weights of a transformers model and what is done with them. Nothing here has gradients."""

    def __init__(self, model, device, dtype):
        c = model.config
        rope = c.rope_parameters
        if rope["rope_type"] != "default":
            raise ValueError(f"RoPE of type {rope['rope_type']} is not known here")
        self.hidden, self.heads, self.kv_heads = c.hidden_size, c.num_attention_heads, c.num_key_value_heads
        self.ffn, self.vocab, self.eps = c.intermediate_size, c.vocab_size, c.rms_norm_eps
        self.width = getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads
        self.theta, self.context = rope["rope_theta"], c.max_position_embeddings
        self.device, self.dtype = torch.device(device), dtype
        model = model.to(device=device, dtype=dtype).requires_grad_(False)
        self.embedding = model.get_input_embeddings().weight.detach()
        self.head = model.get_output_embeddings().weight.detach()
        self.norm = model.model.norm.weight.detach()
        self.layers = [_layer(block) for block in model.model.layers]

    def angles(self, positions):
        return angles(positions, self.width, self.theta)

    def embed(self, tokens):
        return F.embedding(tokens, self.embedding)

    def heads_of(self, x, layer):
        """Queries, keys and values of rows, before RoPE, `[…, heads + 2 · kv_heads, width]`."""
        normed = F.rms_norm(x, x.shape[-1:], layer.attention_norm, self.eps)
        qkv = F.linear(normed, layer.qkv, layer.bias).unflatten(-1, (-1, self.width))
        if layer.q_norm is None:
            return qkv
        q, k, v = qkv.split([self.heads, self.kv_heads, self.kv_heads], dim=-2)
        norm = lambda heads, weight: F.rms_norm(heads, heads.shape[-1:], weight, self.eps)
        return torch.cat([norm(q, layer.q_norm), norm(k, layer.k_norm), v], dim=-2)

    def finish(self, x, seen, layer):
        """The rest of a layer, behind attention."""
        x = x + F.linear(seen, layer.out)
        normed = F.rms_norm(x, x.shape[-1:], layer.mlp_norm, self.eps)
        gate, up = F.linear(normed, layer.gate_up).chunk(2, dim=-1)
        return x + F.linear(F.silu(gate) * up, layer.down)

    def packed_layer(self, x, layer, cos, sin, attention):
        qkv = self.heads_of(x, layer)
        turned = rotate(qkv[..., : self.heads + self.kv_heads, :], cos[:, :, None], sin[:, :, None])
        q, k = turned.split([self.heads, self.kv_heads], dim=-2)
        seen = attention(*(heads.transpose(1, 2) for heads in (q, k, qkv[..., -self.kv_heads :, :])))
        return self.finish(x, seen.transpose(1, 2).flatten(2), layer)

    @torch.no_grad()
    def packed(self, tokens, positions, attention, taps, run_layer=None):
        """Normed outputs `[B, N, H]` and the outputs of layers `taps` side by side, `[B, N, K · H]`."""
        run_layer = run_layer or self.packed_layer
        x, kept = self.embed(tokens), {}
        cos, sin = self.angles(positions)
        for i, layer in enumerate(self.layers):
            x = run_layer(x, layer, cos, sin, attention)
            if i in taps:
                kept[i] = x
        return F.rms_norm(x, x.shape[-1:], self.norm, self.eps), torch.cat([kept[i] for i in taps], dim=-1)


def angles(positions, width, theta):
    half = width // 2
    frequencies = theta ** -(torch.arange(half, device=positions.device, dtype=torch.float32) / half)
    turned = positions[..., None].float() * frequencies
    return turned.cos(), turned.sin()


class Decoder:
    """Many rows that decode in step, each at its own place."""

    def __init__(self, target, rows, length, ops):
        self.target, self.ops = target, ops
        shape = (len(target.layers), rows, target.kv_heads, length, target.width)
        self.keys, self.values = (torch.zeros(shape, dtype=target.dtype, device=target.device) for _ in range(2))
        self.cos, self.sin = target.angles(torch.arange(length, device=target.device))

    @torch.no_grad()
    def step(self, tokens, lengths):
        """Logits `[R, V]` in f32 behind `tokens` `[R]`, which stand at places `lengths` `[R]`."""
        t, ops = self.target, self.ops
        x = t.embed(tokens)
        for layer, keys, values in zip(t.layers, self.keys, self.values):
            qkv = t.heads_of(x, layer)
            q = ops.rotate_and_store(qkv, t.heads, keys, values, lengths, self.cos, self.sin)
            x = t.finish(x, ops.attend(q, keys, values, lengths).flatten(1), layer)
        return head_logits(F.rms_norm(x, x.shape[-1:], t.norm, t.eps), t.head)


class Chat:
    """A tokenizer and what its chat template puts around turns."""

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer
        # The text between two turns begins with the token that ends one.
        self.end = self.between("user")[0]

    def ids(self, text):
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]

    def render(self, messages):
        return self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)

    def prompt(self, text):
        return self.ids(self.render([{"role": "user", "content": text}]))

    def opening(self, system):
        """What stands before the first user turn, as text; `system` None is the template's own."""
        said = [] if system is None else [{"role": "system", "content": system}]
        return self.render([*said, {"role": "user", "content": "\0"}]).split("\0")[0]

    def between(self, role):
        """Ids between the end of a turn of `role` and the beginning of the next one."""
        turns = ("user", "assistant", "user") if role == "assistant" else ("user",)
        text = self.render([{"role": turn, "content": f"\0{i}\0"} for i, turn in enumerate(turns)])
        parts = text.split("\0")
        return self.ids(parts[4] if role == "assistant" else parts[-1])


def load(path, device, dtype=torch.bfloat16):
    """A folder of Hugging Face's layout or a GGUF file: the target and its chat."""
    path = Path(path)
    where = {"pretrained_model_name_or_path": path}
    if path.suffix == ".gguf":
        where = {"pretrained_model_name_or_path": path.parent, "gguf_file": path.name}
    model = AutoModelForCausalLM.from_pretrained(**where, dtype=dtype)
    return Target(model, device, dtype), Chat(AutoTokenizer.from_pretrained(**where))
