"""Attention in which each query sees one range of keys, and in a drafter's blocks the block itself too.

`Flex` compiles that into one kernel (FlexAttention) and skips tiles that nobody sees; `Dense` is its twin with a plain
mask.

Shapes: B rows, Q queries, K keys. Of the keys the first K − Q are context and the others the blocks' own, or, where
there are no blocks, all are context.
"""

import torch
import torch.nn.functional as F
from torch.nn.attention.flex_attention import BlockMask, flex_attention

TILE = 128


def block_of(groups, device):
    """The block of each query `[Q]`, where `groups` are pairs of a block's size and how many there are, in order."""
    sizes = torch.tensor([size for size, count in groups for _ in range(count)], device=device)
    return torch.arange(len(sizes), device=device).repeat_interleave(sizes)


class Dense:
    """`blocks` are of `block_of`."""

    def __init__(self, keys, blocks=None):
        self.keys, self.blocks, self.mask = keys, blocks, None

    def look(self, low, high):
        """Query q of row b shall see the keys from `low[b, q]` to below `high[b, q]`."""
        k = torch.arange(self.keys, device=low.device)
        seen = (k >= low[..., None]) & (k < high[..., None])
        if self.blocks is not None:
            context = self.keys - low.shape[1]
            seen[..., context:] |= self.blocks[:, None] == self.blocks
        self.mask = seen[:, None]

    def __call__(self, q, k, v):
        share = q.shape[1] // k.shape[1]
        k, v = (x.repeat_interleave(share, dim=1) for x in (k, v))
        return F.scaled_dot_product_attention(q, k, v, attn_mask=self.mask)


class Flex:
    """As `Dense`, for a fixed number of rows and queries; no block crosses the border of a tile. What it looks at lies in
    the same buffers all the time, so that what was compiled stays valid; a backward pass has to be over before the next
    `look`."""

    def __init__(self, rows, queries, keys, blocks=None, device="cuda"):
        self.queries, self.keys, self.blocks = queries, keys, blocks
        self.low, self.high = (torch.zeros(rows, queries, dtype=torch.int32, device=device) for _ in range(2))
        low, high, context = self.low, self.high, keys - queries
        # A key of the context is in no block.
        own = None if blocks is None else torch.cat([torch.full((context,), -1, device=device), blocks]).int()

        def near(b, h, q, k):
            return (k >= low[b, q]) & (k < high[b, q])

        def near_or_own(b, h, q, k):
            return near(b, h, q, k) | (own[k] == own[q + context])

        self.sees = near if blocks is None else near_or_own
        self.mask = self.tiles()

    def tiles(self):
        """The tiles of keys that each tile of queries needs."""
        tiled = lambda x: x.unflatten(1, (-1, TILE))
        first = tiled(self.low).amin(-1) // TILE
        last = (tiled(self.high).amax(-1) - 1) // TILE
        count = (last - first + 1).clamp(min=0)
        k = torch.arange(self.keys // TILE, dtype=torch.int32, device=count.device)
        index = torch.where(k < count[..., None], first[..., None] + k, 0)
        if self.blocks is not None:
            own = (self.keys - self.queries) // TILE + torch.arange(count.shape[1], device=count.device)
            index = torch.where(k == count[..., None], own[None, :, None], index)
            count = count + 1
        return BlockMask.from_kv_blocks(
            count[:, None].int(),
            index[:, None].int(),
            BLOCK_SIZE=TILE,
            mask_mod=self.sees,
            seq_lengths=(self.queries, self.keys),
        )

    def look(self, low, high):
        self.low.copy_(low)
        self.high.copy_(high)
        fresh = self.tiles()
        for name in ("kv_num_blocks", "kv_indices", "q_num_blocks", "q_indices"):
            getattr(self.mask, name).copy_(getattr(fresh, name))

    def __call__(self, q, k, v):
        return flex_attention(q, k, v, block_mask=self.mask, enable_gqa=True)
