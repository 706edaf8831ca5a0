"""Trains a DFlash drafter on what `generate.py` wrote, to have the target's distribution.

    torchrun --standalone --nproc-per-node GPUS train.py --target MODEL --data DATA --out DRAFTER [--drafter DRAFTER]
        [--seconds 500]

Each step takes rows of packed conversations, runs the target over them, draws anchors among the answers' tokens and
lets the drafter fill the blocks behind them, which are of several sizes: a drafter is best at the sizes it has seen. The loss of a mask is the divergence (KL) of the drafter's distribution
from the target's at the same place, both at temperature 0.7. The rates fall to 0 as the time runs out. One process a
GPU; the one of rank r reads the files `…-r.npy`. At the end the ids that make most of the answers are listed in the
drafter's config: Slipstream then proposes no others (FR-Spec, Zhao et al. 2025).
"""

import argparse
import math
import os
import time
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

from drafter import Drafter, fresh_config
from generate import ANSWER, FIRST
from kernels import choose, head_logits
from muon import Muon
from sight import Dense, Flex, block_of
from target import load


class Batch:
    """Rows `[B, N]` of ids, where the conversation of each token begins, and which tokens are in answers."""

    def __init__(self, tokens, kinds):
        self.tokens = tokens.long()
        self.places = torch.arange(tokens.shape[1], device=tokens.device).expand_as(self.tokens)
        self.starts = torch.where(kinds >= FIRST, self.places, 0).cummax(dim=1).values
        self.answers = kinds == ANSWER


class Rows:
    """The data of one process, in a new order every time round."""

    def __init__(self, folder, rank, batch, device):
        self.tokens = torch.from_numpy(np.load(folder / f"tokens-{rank}.npy")).to(device)
        self.kinds = torch.from_numpy(np.load(folder / f"kinds-{rank}.npy")).to(device)
        self.batch, self.order, self.rounds = batch, torch.empty(0, dtype=torch.long, device=device), 0

    def next(self):
        if len(self.order) < self.batch:
            self.order = torch.randperm(len(self.tokens), device=self.tokens.device)
            self.rounds += 1
        now, self.order = self.order[: self.batch], self.order[self.batch :]
        return Batch(self.tokens[now], self.kinds[now])


class Trainer:
    """What a step computes. `o` are the program's options."""

    def __init__(self, target, drafter, ops, o):
        self.target, self.drafter, self.ops, self.o = target, drafter, ops, o
        device, keys = target.device, o.row_length
        blocks = block_of(o.blocks, device)
        self.plain = Dense(keys), Dense(keys + len(blocks), blocks), None, None
        self.used = self.plain
        if device.type == "cuda":
            compiled = lambda function: torch.compile(function, dynamic=False)
            self.used = (
                Flex(o.batch, keys, keys, device=device),
                Flex(o.batch, len(blocks), keys + len(blocks), blocks, device),
                compiled(target.packed_layer),
                compiled(drafter.layer),
            )

    def look(self, batch):
        """The target's outputs, taps, logits `[B · N, V]` and their log sums."""
        sight, _, run, _ = self.used
        sight.look(batch.starts, batch.places + 1)
        hidden, taps = self.target.packed(batch.tokens, batch.places - batch.starts, sight, self.drafter.taps, run)
        logits = head_logits(hidden.flatten(0, 1), self.target.head)
        return taps, logits, self.ops.log_sum(logits, self.o.sharpness)

    def draft(self, batch, taps, groups):
        _, sight, _, run = self.used
        return self.drafter.draft(self.target, batch.tokens, taps, batch.starts, groups, sight, run)

    def anchors(self, batch, logits, log_sums):
        """Groups of blocks: pairs of a size and the places `[B, A]` of anchors in order. They are drawn among the tokens
        of answers that another one follows, and sooner where the token surprised: an anchor of the loop is a token that
        could not be drafted."""
        chance = chances(logits, log_sums, batch.tokens.roll(-1, 1).flatten(), self.o.sharpness).view_as(batch.tokens)
        weight = self.o.plain_anchors + 1 - chance.roll(1, 1)
        follows = batch.answers.roll(-1, 1) & (batch.places < batch.tokens.shape[1] - 1)
        weight = torch.where(batch.answers & follows, weight, 0.0)
        drawn = weight.log() - torch.empty_like(weight).exponential_().log()
        return self.grouped(drawn.topk(sum(count for _, count in self.o.blocks), dim=1).indices)

    def grouped(self, anchors):
        """Anchors `[B, A]` shared out to the groups by chance."""
        anchors = anchors[:, torch.randperm(anchors.shape[1], device=anchors.device)]
        parts = anchors.split([count for _, count in self.o.blocks], dim=1)
        return [(size, part.sort(dim=1).values) for (size, _), part in zip(self.o.blocks, parts)]

    def labels(self, batch, size, anchors):
        """Of every mask `[B · A, w − 1]` of a group: the row of the target's logits that it is to match, the token that
        stands there, and whether it is in the anchor's answer."""
        rows, length = batch.tokens.shape
        places = anchors[..., None] + torch.arange(1, size, device=anchors.device)
        inside = places < length
        places = places.clamp(max=length - 1)
        look_up = lambda x: x.gather(1, places.flatten(1)).view_as(places)
        ours = look_up(batch.starts) == batch.starts.gather(1, anchors)[..., None]
        counts = batch.answers.gather(1, anchors)[..., None] & inside & ours & look_up(batch.answers)
        of_row = length * torch.arange(rows, device=anchors.device)[:, None, None]
        labels = of_row + places - 1, look_up(batch.tokens), counts.cumprod(-1)
        return [label.flatten(0, 1) for label in labels]

    def loss(self, batch, groups, outputs, logits, log_sums):
        """The weighted divergence, its gradients by `outputs`, and for each group the mean chance of each mask and all
        before it."""
        o = self.o
        labels = [self.labels(batch, size, anchors) for size, anchors in groups]
        places = [torch.exp(-torch.arange(size - 1, device=logits.device) / o.fade) for size, _ in groups]
        scale = 1 / sum((counts * place).sum() for (_, _, counts), place in zip(labels, places))
        total, gradients, chances_of = 0.0, [], []
        for (at, wanted, counts), place, output in zip(labels, places, outputs):
            flat = output.detach().flatten(0, 1)
            gradient, alive_sum = torch.empty_like(flat), 0.0
            blocks = max(1, o.chunk // flat.shape[1])
            for first in range(0, len(flat), blocks):
                part = slice(first, first + blocks)
                drafted = head_logits(flat[part].flatten(0, 1), self.target.head)
                log_drafted = self.ops.log_sum(drafted, o.sharpness)
                chance = chances(drafted, log_drafted, wanted[part].flatten(), o.sharpness).view_as(wanted[part])
                alive = (chance * counts[part]).cumprod(-1)
                # What follows a draft that is refused counts for little.
                before = torch.cat([torch.ones_like(alive[:, :1]), alive[:, :-1]], dim=-1)
                plain = scale * place * counts[part]
                weight = plain * (o.floor + (1 - o.floor) * before)
                each, by_logits = self.ops.divergence(
                    logits, at[part].flatten(), log_sums, drafted, log_drafted, weight.flatten(), o.sharpness
                )
                gradient[part] = (by_logits.to(self.target.dtype) @ self.target.head).view_as(flat[part])
                total += (each * plain.flatten()).sum()
                alive_sum += alive.sum(0)
            gradients.append(gradient.view_as(output))
            chances_of.append(alive_sum / counts[:, 0].sum())
        return total, gradients, chances_of

    def gradients(self, batch):
        """Adds the drafter's gradients of a batch; the loss, and the chances."""
        taps, logits, log_sums = self.look(batch)
        groups = self.anchors(batch, logits, log_sums)
        outputs = self.draft(batch, taps, groups)
        with torch.no_grad():
            loss, gradients, alive = self.loss(batch, groups, outputs, logits, log_sums)
        torch.autograd.backward(outputs, gradients)
        return loss, alive

    def made_up(self):
        """A batch of random ids, to compile and to compare with."""
        o, device = self.o, self.target.device
        tokens = torch.randint(0, self.target.vocab, (o.batch, o.row_length), device=device)
        kinds = torch.where(torch.rand(tokens.shape, device=device) < 0.005, FIRST, ANSWER)
        kinds[:, 0] = FIRST
        return Batch(tokens, kinds)

    def check(self, say):
        """Compiles, and falls back to plain PyTorch where that fails or comes to something else."""
        if self.used is self.plain:
            return
        batch, results = self.made_up(), []
        chosen = self.used
        count = sum(count for _, count in self.o.blocks)
        groups = self.grouped(torch.randint(1, self.o.row_length, (self.o.batch, count), device=self.target.device))
        try:
            for passes in (self.plain, chosen):
                self.used = passes
                taps, logits, _ = self.look(batch)
                outputs = torch.cat([output.flatten(1, 2) for output in self.draft(batch, taps, groups)], dim=1)
                direction = torch.linspace(-1, 1, outputs.shape[-1], device=outputs.device, dtype=outputs.dtype)
                outputs.backward(direction.expand_as(outputs) / outputs.numel())
                grads = [master.grad.clone() for master in self.drafter.masters.values()]
                results.append([taps, logits[:4096], outputs.detach(), *grads])
                self.zero()
            worst = max(float((a.float() - b.float()).norm() / a.float().norm()) for a, b in zip(*results))
            say(f"compiled and plain passes differ by {worst:.1e}")
            self.used = chosen if worst < 0.1 else self.plain
        except Exception as problem:  # whatever a compiler raises: the plain pass is right in any case
            say(f"no compiled passes: {str(problem)[:2000]}")
            self.used = self.plain
            self.zero()

    def zero(self):
        for master in self.drafter.masters.values():
            master.grad = None


def chances(logits, log_sums, tokens, sharpness):
    """What each row gives its token."""
    picked = logits.gather(1, tokens[:, None])[:, 0]
    return (picked * sharpness - log_sums).exp()


class Clock:
    """How much of the time is over, the same for all processes and a few steps late, so that nobody waits for it."""

    def __init__(self, seconds, device):
        self.start, self.seconds, self.device, self.waiting = time.time(), seconds, device, []

    def now(self):
        return torch.tensor([(time.time() - self.start) / self.seconds], device=self.device)

    def tell(self, shared):
        ready = torch.cuda.Event() if shared.is_cuda else None
        self.waiting.append((shared.to("cpu", non_blocking=True), ready))
        if ready:
            ready.record()

    def over(self):
        if len(self.waiting) < 3:
            return 0.0
        shared, ready = self.waiting.pop(0)
        if ready:
            ready.synchronize()
        return float(shared)


def reduce_and_clip(masters, clock, most=1.0):
    """Means of the gradients over all processes, with a norm of at most `most`."""
    flat = torch.cat([master.grad.flatten() for master in masters] + [clock.now()])
    if dist.is_initialized():
        dist.all_reduce(flat)
        flat /= dist.get_world_size()
    clock.tell(flat[-1])
    flat = flat[:-1] * (most / flat[:-1].norm().clamp(min=most))
    parts = flat.split([master.numel() for master in masters])
    for master, part in zip(masters, parts):
        master.grad = part.view_as(master)


def rate_at(over, o):
    """The share of the highest rate when so much of the time is over."""
    return max(0.0, min(over / o.warmup, (1 - over) / (1 - o.warmup)))


def run(trainer, rows, o, say):
    masters = list(trainer.drafter.masters.values())
    muon = Muon([m for m in masters if m.dim() == 3])
    adam = torch.optim.AdamW([m for m in masters if m.dim() == 2], betas=(0.9, 0.95), weight_decay=0.0)
    clock, steps, over = Clock(o.seconds, trainer.target.device), 0, 0.0
    said, kept, sums, rank = clock.start, clock.start, [], int(os.environ.get("RANK", 0))
    while over < 1 and steps != o.steps:
        loss, alive = trainer.gradients(rows.next())
        sums.append(torch.cat([loss.view(1), alive[0], torch.stack([group.sum() for group in alive])]))
        reduce_and_clip(masters, clock)
        rate = rate_at(over, o)
        muon.step(o.rate * rate)
        adam.param_groups[0]["lr"] = o.norm_rate * rate
        adam.step()
        trainer.zero()
        steps, over, now = steps + 1, clock.over(), time.time()
        if now - said > o.every:
            mean = torch.stack(sums).mean(0).tolist()
            said, sums = now, []
            taus = ", ".join(f"{size}: {1 + tau:.3f}" for (size, _), tau in zip(o.blocks, mean[-len(o.blocks) :]))
            say(
                f"{now - clock.start:.0f} s, step {steps}, {steps / (now - clock.start):.2f} steps/s, round {rows.rounds}, "
                f"rate {rate:.2f}, loss {mean[0]:.4f}, chances {' '.join(f'{c:.3f}' for c in mean[1:5])}, tau about {taus}"
            )
        if now - kept > o.keep and rank == 0:
            kept = now
            trainer.drafter.save(o.out / "running")
    say(f"{steps} steps in {time.time() - clock.start:.0f} s, {rows.rounds} rounds over {len(rows.tokens)} rows")


def frequent(ids, cover):
    """The fewest ids that make a share `cover` of `ids`, ascending; of ids as frequent as each other the lower first."""
    counts = torch.bincount(ids)
    order = counts.argsort(descending=True, stable=True)
    made = counts[order].cumsum(0)
    return sorted(order[: int((made < math.ceil(cover * len(ids))).sum()) + 1].tolist())


def list_ids(config, rows, cover, say):
    """Lists in the config which ids are to be proposed, in place of what it may have listed before."""
    config = config["dflash_config"]
    config.pop("proposed_ids", None)
    if cover < 1:
        config["proposed_ids"] = frequent(rows.tokens[rows.kinds == ANSWER].long(), cover)
        say(f"{len(config['proposed_ids'])} ids make {cover:.1%} of the answers' tokens")


def block_counts(text):
    return [tuple(map(int, group.split(":"))) for group in text.split(",")]


def options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--drafter", help="one to go on from; a new one without")
    parser.add_argument("--mask-id", type=int, default=0, help="of a new drafter: an id that texts do not have")
    parser.add_argument("--layers", type=int, default=5, help="of a new drafter")
    parser.add_argument("--seconds", type=float, default=500)
    parser.add_argument("--steps", type=int, default=-1, help="at most so many")
    parser.add_argument("--batch", type=int, default=8, help="rows a step and GPU")
    parser.add_argument("--row-length", type=int, default=2048)
    parser.add_argument(
        "--blocks", type=block_counts, default="16:144,8:160,4:128", help="sizes, and how many in a row"
    )
    parser.add_argument("--rate", type=float, default=1.5e-3, help="of matrices (Muon); 3e-3 suits a new drafter")
    parser.add_argument("--norm-rate", type=float, default=5e-4, help="of norms (AdamW)")
    parser.add_argument("--warmup", type=float, default=0.03, help="share of the time")
    parser.add_argument("--temperature", type=float, default=0.7, help="of both distributions in the loss")
    parser.add_argument("--fade", type=float, default=5.0, help="mask k weighs exp(-(k - 1) / fade)")
    parser.add_argument("--floor", type=float, default=0.3, help="what a mask behind a refused draft still weighs")
    parser.add_argument("--plain-anchors", type=float, default=0.3, help="weight of an anchor that was no surprise")
    parser.add_argument(
        "--cover", type=float, default=0.98, help="share of the answers' tokens that listed ids make; 1 lists none"
    )
    parser.add_argument("--chunk", type=int, default=4096, help="masks whose logits are there at a time")
    parser.add_argument("--every", type=float, default=15, help="seconds between lines")
    parser.add_argument("--keep", type=float, default=60, help="seconds between checkpoints")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    o = parser.parse_args()
    o.sharpness = 1 / o.temperature
    return o


def main():
    o = options()
    rank = int(os.environ.get("RANK", 0))
    say = lambda text: print(f"train {rank}: {text}", flush=True) if rank == 0 else None
    if int(os.environ.get("WORLD_SIZE", 1)) > 1:
        dist.init_process_group("nccl" if o.device == "cuda" else "gloo")
    if o.device == "cuda":
        o.device = f"cuda:{os.environ.get('LOCAL_RANK', 0)}"
        torch.cuda.set_device(o.device)
    torch.manual_seed(rank)
    dtype = torch.bfloat16 if o.device != "cpu" else torch.float32
    target, _ = load(o.target, o.device, dtype)
    if o.drafter:
        drafter = Drafter.load(o.drafter, o.device, dtype)
    else:
        drafter = Drafter.fresh(fresh_config(target, o.layers, mask_id=o.mask_id), o.device, dtype)
    if max(size for size, _ in o.blocks) != drafter.block:
        raise ValueError(f"the largest block has to be of {drafter.block}, as the drafter's config says")
    drafter.config["dflash_config"]["block_sizes"] = sorted(size for size, _ in o.blocks)
    trainer = Trainer(target, drafter, choose(o.device, say), o)
    trainer.check(say)
    trainer.gradients(trainer.made_up())
    trainer.zero()
    say("ready")
    while not (o.data / f"tokens-{rank}.npy").exists():  # may still be being written
        time.sleep(0.5)
    rows = Rows(o.data, rank, o.batch, o.device)
    run(trainer, rows, o, say)
    if rank == 0:
        list_ids(drafter.config, rows, o.cover, say)
        drafter.save(o.out)
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
