"""The few operations that PyTorch does slowly here, in Triton, each beside a twin in plain PyTorch.

`choose` compares the two on random inputs and returns the Triton ones (`Fused`) when they agree on a GPU, else the
twins (`Plain`).

Shapes: R rows (conversations), L positions of memory, H heads, G key-value heads, D their width, V vocabulary.
"""

import torch
import torch.nn.functional as F

try:
    import triton
    import triton.language as tl
except ImportError:  # a machine without a GPU
    triton = None


class Plain:
    """The twins."""

    @staticmethod
    def rotate_and_store(qkv, heads, keys, values, lengths, cos, sin):
        """Turns the queries and keys of `qkv` `[R, H + 2G, D]` by the angles of `lengths`, puts keys and values at these
        places of the memory `[R, G, L, D]`; returns the queries `[R, H, D]`."""
        kv_heads = keys.shape[1]
        turned = rotate(qkv[:, : heads + kv_heads], cos[lengths][:, None], sin[lengths][:, None])
        rows = torch.arange(len(qkv), device=qkv.device)
        keys[rows, :, lengths] = turned[:, heads:]
        values[rows, :, lengths] = qkv[:, heads + kv_heads :]
        return turned[:, :heads].contiguous()

    @staticmethod
    def attend(q, keys, values, lengths):
        """One query a row over the first `lengths + 1` places of its memory; `[R, H, D]`."""
        rows, heads, width = q.shape
        group = heads // keys.shape[1]
        q = q.view(rows, -1, group, width).float()
        scores = torch.einsum("rgsd,rgld->rgsl", q, keys.float()) * width**-0.5
        beyond = torch.arange(keys.shape[2], device=q.device) > lengths[:, None]
        weights = scores.masked_fill(beyond[:, None, None], float("-inf")).softmax(-1)
        seen = torch.einsum("rgsl,rgld->rgsd", weights, values.float())
        return seen.reshape(rows, heads, width).to(keys.dtype)

    @staticmethod
    def pick(logits, temperatures, step):
        """A token of each row by the Gumbel-max rule; the likeliest where the temperature is 0."""
        uniform = torch.rand_like(logits).clamp(1e-9, 1 - 1e-7)
        noise = -torch.log(-torch.log(uniform)) * temperatures[:, None]
        return (logits + noise).argmax(-1)

    @staticmethod
    def log_sum(logits, sharpness):
        """Log of the sum of exponentials of `sharpness` times each row."""
        return torch.logsumexp(logits.float() * sharpness, -1)

    @staticmethod
    def divergence(target, at, log_target, drafted, log_drafted, weights, sharpness):
        """KL of each row of `drafted` `[n, V]` from row `at` of `target`, and the gradient of the weighted sum by
        `drafted`, as bf16. `log_…` are their `log_sum`."""
        log_p = target[at] * sharpness - log_target[at][:, None]
        log_q = drafted * sharpness - log_drafted[:, None]
        p = log_p.exp()
        gradient = (log_q.exp() - p) * (weights * sharpness)[:, None]
        return (p * (log_p - log_q)).sum(-1), gradient.bfloat16()


def rotate(x, cos, sin):
    """RoPE of pairs (i, i + D / 2)."""
    a, b = x.float().chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1).to(x.dtype)


if triton is not None:

    @triton.jit
    def _rotate_and_store(
        qkv,
        q,
        keys,
        values,
        lengths,
        cos,
        sin,
        L,
        H: tl.constexpr,
        G: tl.constexpr,
        D: tl.constexpr,
        PAD: tl.constexpr,
    ):
        row = tl.program_id(0).to(tl.int64)
        at = tl.load(lengths + row)
        head = tl.arange(0, PAD)[:, None]
        i = tl.arange(0, D // 2)[None, :]
        there = head < H + 2 * G
        start = qkv + (row * (H + 2 * G) + head) * D + i
        a = tl.load(start, mask=there, other=0.0).to(tl.float32)
        b = tl.load(start + D // 2, mask=there, other=0.0).to(tl.float32)
        c = tl.load(cos + at * (D // 2) + i)
        s = tl.load(sin + at * (D // 2) + i)
        turns = head < H + G
        x = tl.where(turns, a * c - b * s, a)
        y = tl.where(turns, b * c + a * s, b)
        to_q = q + (row * H + head) * D + i
        tl.store(to_q, x, mask=head < H)
        tl.store(to_q + D // 2, y, mask=head < H)
        to_k = keys + ((row * G + head - H) * L + at) * D + i
        is_key = (head >= H) & turns
        tl.store(to_k, x, mask=is_key)
        tl.store(to_k + D // 2, y, mask=is_key)
        to_v = values + ((row * G + head - H - G) * L + at) * D + i
        is_value = (head >= H + G) & there
        tl.store(to_v, x, mask=is_value)
        tl.store(to_v + D // 2, y, mask=is_value)

    @triton.jit
    def _attend(
        q,
        keys,
        values,
        lengths,
        out,
        scale,
        L,
        H: tl.constexpr,
        G: tl.constexpr,
        D: tl.constexpr,
        TILE: tl.constexpr,
        PAD: tl.constexpr,
    ):
        row = tl.program_id(0).to(tl.int64)
        kv_head = tl.program_id(1)
        length = tl.load(lengths + row) + 1
        share: tl.constexpr = H // G
        g = tl.arange(0, PAD)[:, None]
        d = tl.arange(0, D)[None, :]
        at = (row * H + kv_head * share + g) * D + d
        query = tl.load(q + at, mask=g < share, other=0.0)
        base = (row * G + kv_head) * L * D
        most = tl.full([PAD], -1e30, tl.float32)
        total = tl.zeros([PAD], tl.float32)
        seen = tl.zeros([PAD, D], tl.float32)
        for first in range(0, length, TILE):
            t = first + tl.arange(0, TILE)
            there = (t < length)[:, None]
            k = tl.load(keys + base + t[:, None] * D + d, mask=there, other=0.0)
            v = tl.load(values + base + t[:, None] * D + d, mask=there, other=0.0)
            scores = tl.dot(query, tl.trans(k)) * scale
            scores = tl.where((t < length)[None, :], scores, -1e30)
            higher = tl.maximum(most, tl.max(scores, 1))
            weights = tl.exp2(scores - higher[:, None])
            fade = tl.exp2(most - higher)
            total = total * fade + tl.sum(weights, 1)
            seen = seen * fade[:, None] + tl.dot(weights.to(v.dtype), v)
            most = higher
        tl.store(out + at, seen / total[:, None], mask=g < share)

    @triton.jit
    def _gumbel(uniform):
        return -tl.log(-tl.log(uniform * 0.9999997 + 1e-8))

    @triton.jit
    def _pick(logits, temperatures, step, out, V: tl.constexpr, TILE: tl.constexpr):
        row = tl.program_id(0).to(tl.int64)
        temperature = tl.load(temperatures + row)
        seed = tl.load(step)
        lane = tl.arange(0, TILE)
        best = tl.full([TILE], -1e30, tl.float32)
        chosen = tl.zeros([TILE], tl.int32)
        for first in range(0, V, 4 * TILE):
            u0, u1, u2, u3 = tl.rand4x(seed, row.to(tl.int32) * (V // 4 + TILE) + first // 4 + lane)
            for part in tl.static_range(4):
                u = u0 if part == 0 else (u1 if part == 1 else (u2 if part == 2 else u3))
                token = first + part * TILE + lane
                x = tl.load(logits + row * V + token, mask=token < V, other=-1e30)
                x += temperature * _gumbel(u)
                chosen = tl.where(x > best, token, chosen)
                best = tl.maximum(x, best)
        # The smallest of equals, as argmax has it.
        top = tl.max(best, 0)
        tl.store(out + row, tl.min(tl.where(best == top, chosen, V), 0))

    @triton.jit
    def _log_sum(logits, out, sharpness, V: tl.constexpr, TILE: tl.constexpr):
        row = tl.program_id(0).to(tl.int64)
        lane = tl.arange(0, TILE)
        most = tl.full([TILE], -1e30, tl.float32)
        total = tl.zeros([TILE], tl.float32)
        for first in range(0, V, TILE):
            at = first + lane
            x = tl.load(logits + row * V + at, mask=at < V, other=-1e30).to(tl.float32) * sharpness
            higher = tl.maximum(most, x)
            total = total * tl.exp(most - higher) + tl.exp(x - higher)
            most = higher
        top = tl.max(most, 0)
        tl.store(out + row, top + tl.log(tl.sum(total * tl.exp(most - top), 0)))

    @triton.jit
    def _divergence(
        target,
        index,
        log_target,
        drafted,
        log_drafted,
        weights,
        loss,
        gradient,
        sharpness,
        V: tl.constexpr,
        TILE: tl.constexpr,
    ):
        row = tl.program_id(0).to(tl.int64)
        at = tl.load(index + row).to(tl.int64)
        from_target = tl.load(log_target + at)
        from_drafted = tl.load(log_drafted + row)
        weight = tl.load(weights + row) * sharpness
        lane = tl.arange(0, TILE)
        sum_ = tl.zeros([TILE], tl.float32)
        for first in range(0, V, TILE):
            v = first + lane
            t = tl.load(target + at * V + v, mask=v < V, other=-1e30).to(tl.float32)
            d = tl.load(drafted + row * V + v, mask=v < V, other=-1e30).to(tl.float32)
            log_p = t * sharpness - from_target
            log_q = d * sharpness - from_drafted
            p = tl.exp(log_p)
            sum_ += tl.where(v < V, p * (log_p - log_q), 0.0)
            tl.store(gradient + row * V + v, (tl.exp(log_q) - p) * weight, mask=v < V)
        tl.store(loss + row, tl.sum(sum_, 0))


class Fused:
    """The Triton ones; arguments as in `Plain`."""

    @staticmethod
    def rotate_and_store(qkv, heads, keys, values, lengths, cos, sin):
        rows, of_all, width = qkv.shape
        q = torch.empty(rows, heads, width, dtype=qkv.dtype, device=qkv.device)
        _rotate_and_store[(rows,)](
            qkv,
            q,
            keys,
            values,
            lengths,
            cos,
            sin,
            keys.shape[2],
            H=heads,
            G=keys.shape[1],
            D=width,
            PAD=triton.next_power_of_2(of_all),
        )
        return q

    @staticmethod
    def attend(q, keys, values, lengths):
        (rows, heads, width), kv_heads = q.shape, keys.shape[1]
        out = torch.empty_like(q)
        scale = width**-0.5 * 1.4426950408889634
        _attend[(rows, kv_heads)](
            q,
            keys,
            values,
            lengths,
            out,
            scale,
            keys.shape[2],
            H=heads,
            G=kv_heads,
            D=width,
            TILE=64,
            PAD=max(16, triton.next_power_of_2(heads // kv_heads)),
            num_warps=4,
            num_stages=3,
        )
        return out

    @staticmethod
    def pick(logits, temperatures, step):
        rows, vocab = logits.shape
        out = torch.empty(rows, dtype=torch.int32, device=logits.device)
        _pick[(rows,)](logits, temperatures, step, out, V=vocab, TILE=512, num_warps=4)
        return out.long()

    @staticmethod
    def log_sum(logits, sharpness):
        rows, vocab = logits.shape
        out = torch.empty(rows, dtype=torch.float32, device=logits.device)
        _log_sum[(rows,)](logits, out, sharpness, V=vocab, TILE=2048, num_warps=8)
        return out

    @staticmethod
    def divergence(target, at, log_target, drafted, log_drafted, weights, sharpness):
        rows, vocab = drafted.shape
        loss = torch.empty(rows, dtype=torch.float32, device=drafted.device)
        gradient = torch.empty(rows, vocab, dtype=torch.bfloat16, device=drafted.device)
        _divergence[(rows,)](
            target,
            at,
            log_target,
            drafted,
            log_drafted,
            weights,
            loss,
            gradient,
            sharpness,
            V=vocab,
            TILE=2048,
            num_warps=8,
        )
        return loss, gradient


def head_logits(hidden, head):
    """`hidden` `[n, width]` times the head `[V, width]`, summed and kept in f32."""
    if hidden.is_cuda and hidden.dtype == torch.bfloat16:
        return torch.mm(hidden, head.T, out_dtype=torch.float32)
    return F.linear(hidden.float(), head.float())


def _same(a, b, tolerance):
    difference = (a.float() - b.float()).norm() / b.float().norm()
    if not difference < tolerance:
        raise ValueError(f"differs by {difference:.2e}")


def check(device, heads=9, kv_heads=3, width=64, vocab=49152, dtype=torch.bfloat16):
    """Raises where a kernel and its twin differ."""
    make = lambda *shape: torch.randn(shape, device=device)
    rows, length = 32, 200
    lengths = torch.randint(0, length, (rows,), device=device)
    angles = torch.arange(length, device=device)[:, None] * 10000.0 ** -(
        torch.arange(width // 2, device=device) / width
    )
    qkv = make(rows, heads + 2 * kv_heads, width).to(dtype)
    memory = [make(rows, kv_heads, length, width).to(dtype) for _ in range(2)]
    results = []
    for ops in (Plain, Fused):
        keys, values = (m.clone() for m in memory)
        q = ops.rotate_and_store(qkv, heads, keys, values, lengths, angles.cos(), angles.sin())
        results.append((q, keys, values, ops.attend(q, keys, values, lengths)))
    for plain, fused in zip(*results):
        _same(fused, plain, 1e-2)
    target, drafted = 3 * make(40, vocab), 3 * make(rows, vocab)
    cold = torch.zeros(rows, device=device)
    step = torch.ones((), dtype=torch.int32, device=device)
    if not torch.equal(Fused.pick(drafted, cold, step), drafted.argmax(-1)):
        raise ValueError("the likeliest tokens differ")
    few = torch.full((4096, vocab), -30.0, device=device)
    few[:, :2] = torch.tensor([0.0, 1.0], device=device)
    share = (Fused.pick(few, torch.full((4096,), 0.7, device=device), step) == 1).float().mean()
    if not abs(share - 1 / (1 + 2.718281828 ** (-1 / 0.7))) < 0.03:
        raise ValueError(f"tokens are drawn with the wrong chance, {share}")
    at, weights = torch.randint(0, 40, (rows,), device=device), torch.rand(rows, device=device)
    results = []
    for ops in (Plain, Fused):
        sums = ops.log_sum(target, 1.4), ops.log_sum(drafted, 1.4)
        results.append((*sums, *ops.divergence(target, at, sums[0], drafted, sums[1], weights, 1.4)))
    for plain, fused in zip(*results):
        _same(fused, plain, 1e-2)


def choose(device, say=print):
    if triton is None or torch.device(device).type != "cuda":
        return Plain
    try:
        check(device)
        return Fused
    except Exception as problem:  # whatever a compiler or a driver raises: the twins are always right
        say(f"no Triton kernels: {problem}")
        return Plain
