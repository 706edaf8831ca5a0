"""Measures drafters: the acceptance length τ, by an exact replay of the loop on held-out prompts.

    python evaluate.py --target MODEL --prompts PROMPTS.jsonl --drafters DIR [DIR …] [--temperatures 0 0.7] [--out FILE]

The target answers every prompt once. A draft depends on the tokens before it alone, so all drafts that the loop could
ask for are made at once, one block behind every token, and the loop is then a walk over them. At temperatures above 0
target and drafter choose with the same noise, as Slipstream does. τ is given for proposals from the whole vocabulary
and from what Slipstream keeps them to: the ids that the drafter lists, or else the lower half.
"""

import argparse
import json
import time
from pathlib import Path

import torch

from drafter import Drafter
from kernels import choose, head_logits
from sight import Dense, block_of
from target import Decoder, load


def gumbel(prompts, length, vocab, temperature, device):
    """Noise `[prompts, length, vocab]` for each answer's places, the same every time; none at temperature 0."""
    if temperature == 0:
        return None
    noise = torch.empty(len(prompts), length, vocab, device=device)
    for row, prompt in zip(noise, prompts):
        draw = torch.Generator(device).manual_seed(prompt)
        row.exponential_(generator=draw).clamp_(min=1e-20).log_().neg_().mul_(temperature)
    return noise


@torch.no_grad()
def answers(target, ops, prompts, limit, end, noise):
    """The target's answers, an end included."""
    longest = max(map(len, prompts))
    rows, device = len(prompts), target.device
    given = torch.zeros(rows, longest, dtype=torch.long, device=device)
    lengths = torch.tensor([len(prompt) for prompt in prompts], device=device)
    for row, prompt in zip(given, prompts):
        row[: len(prompt)] = torch.tensor(prompt, device=device)
    decoder = Decoder(target, rows, longest + limit, ops)
    token, written, every = given[:, 0], [], torch.arange(rows, device=device)
    for at in range(longest + limit - 1):
        logits = decoder.step(token, torch.full_like(lengths, at))
        place = at + 1 - lengths
        if noise is not None:
            logits += noise[every, place.clamp(0, limit - 1)]
        token = torch.where(place < 0, given[:, min(at + 1, longest - 1)], logits.argmax(-1))
        written.append(token)
    written = torch.stack(written, dim=1).tolist()
    out = []
    for row, prompt in zip(written, prompts):
        answer = row[len(prompt) - 1 :][:limit]
        out.append(answer[: answer.index(end) + 1] if end in answer else answer)
    return out


def vocabs_of(drafter, vocab, device):
    """The ids that proposals come from, by name: all, and those that Slipstream keeps them to."""
    listed = drafter.config["dflash_config"].get("proposed_ids")
    ids = torch.arange(vocab, device=device)
    if listed is None:
        return {"whole vocabulary": ids, "lower half": ids[: (vocab + 1) // 2]}
    return {"whole vocabulary": ids, "listed ids": ids[listed]}


@torch.no_grad()
def runs(target, drafter, block, prompts, texts, noise, vocabs):
    """How many drafts in a row are right behind each token of each answer, in blocks of `block`, for proposals from
    the ids of each of `vocabs`: a list of `[token]` a prompt."""
    device = target.device
    count = max(map(len, texts))
    length = max(len(p) + len(t) for p, t in zip(prompts, texts)) + block
    tokens = torch.zeros(len(prompts), length, dtype=torch.long, device=device)
    for row, prompt, text in zip(tokens, prompts, texts):
        row[: len(prompt) + len(text)] = torch.tensor(prompt + text, device=device)
    starts = torch.zeros_like(tokens)
    places = torch.arange(length, device=device).expand_as(tokens)
    sight = Dense(length)
    sight.look(starts, places + 1)
    _, taps = target.packed(tokens, places, sight, drafter.taps)
    first = torch.tensor([len(prompt) for prompt in prompts], device=device)
    behind = torch.arange(count, device=device)
    anchors = (first[:, None] + behind).clamp(max=length - block)
    sight = Dense(length + count * block, block_of([(block, count)], device))
    (outputs,) = drafter.draft(target, tokens, taps, starts, [(block, anchors)], sight)
    found = []
    steps = torch.arange(1, block, device=device)
    for i, text in enumerate(texts):
        n = len(text)
        logits = head_logits(outputs[i, :n].flatten(0, 1), target.head)
        place = (behind[:n, None] + steps).flatten()
        if noise is not None:
            logits += noise[i, place.clamp(max=noise.shape[1] - 1)]
        wanted = tokens[i, (first[i] + place).clamp(max=length - 1)]
        proposals = [ids[logits[:, ids].argmax(-1)] for ids in vocabs]
        right = [((proposal == wanted) & (place < n)).view(n, -1) for proposal in proposals]
        found.append([r.long().cumprod(-1).sum(-1).tolist() for r in right])
    return found


def walk(run, width):
    """Passes of a loop that verifies blocks of `width`, over an answer of which its first token is known."""
    at, passes = 0, 0
    while at < len(run) - 1:
        at += min(run[at], width - 1) + 1
        passes += 1
    return passes


def tally(topics, found, widths):
    """τ by width over all prompts, and by topic."""
    chosen = {"all": range(len(topics))} | {
        t: [i for i, u in enumerate(topics) if u == t] for t in dict.fromkeys(topics)
    }
    table = {}
    for name, which in chosen.items():
        tokens = sum(len(found[i]) - 1 for i in which)
        table[name] = {str(w): round(tokens / max(1, sum(walk(found[i], w) for i in which)), 3) for w in widths}
    return table


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", required=True)
    parser.add_argument("--prompts", type=Path, required=True, help="JSON lines with topic and prompt")
    parser.add_argument("--drafters", nargs="+", required=True)
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.0, 0.7])
    parser.add_argument("--widths", type=int, nargs="+", default=[2, 3, 4, 5, 6, 8, 16])
    parser.add_argument("--blocks", type=int, nargs="+", default=[16, 8, 4], help="rows of a draft")
    parser.add_argument("--limit", type=int, default=256, help="most tokens of an answer")
    parser.add_argument("--count", type=int, default=-1, help="prompts, evenly from the file; all without")
    parser.add_argument("--batch", type=int, default=60)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    o = parser.parse_args()
    dtype = torch.bfloat16 if o.device == "cuda" else torch.float32
    target, chat = load(o.target, o.device, dtype)
    ops = choose(o.device)
    drafters = {path: Drafter.load(path, o.device, dtype) for path in o.drafters}
    entries = [json.loads(line) for line in o.prompts.read_text().splitlines()]
    entries = entries[:: len(entries) // o.count] if o.count > 0 else entries
    prompts = [chat.prompt(entry["prompt"]) for entry in entries]
    vocabs = {path: vocabs_of(drafter, target.vocab, target.device) for path, drafter in drafters.items()}
    kinds = [(path, block) for block in o.blocks for path in drafters]
    results, start = {}, time.time()
    for temperature in o.temperatures:
        found = {kind: [] for kind in kinds}
        for first in range(0, len(prompts), o.batch):
            part = prompts[first : first + o.batch]
            seeds = range(first, first + len(part))
            noise = gumbel(seeds, o.limit, target.vocab, temperature, target.device)
            texts = answers(target, ops, part, o.limit, chat.end, noise)
            for path, block in kinds:
                for few in range(0, len(part), 10):
                    some = slice(few, few + 10)
                    heard = None if noise is None else noise[some]
                    found[path, block] += runs(
                        target, drafters[path], block, part[some], texts[some], heard, vocabs[path].values()
                    )
        topics = [entry.get("topic", "all") for entry in entries]
        for path, block in kinds:
            for i, vocab in enumerate(vocabs[path]):
                table = tally(topics, [f[i] for f in found[path, block]], [w for w in o.widths if w <= block])
                name = f"{path}, block {block}, T {temperature:g}, {vocab}"
                results[name] = table
                print(f"{name} ({time.time() - start:.0f} s)")
                for topic, row in table.items():
                    print(f"  {topic:10}", "  ".join(f"{w}: {tau:.3f}" for w, tau in row.items()), flush=True)
    if o.out:
        o.out.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
