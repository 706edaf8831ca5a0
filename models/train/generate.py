"""Lets a target write conversations, both sides, and packs them into rows to train a drafter on.

    python generate.py --target MODEL --out DATA [--seconds 200] [--rows 4096] [--heldout PROMPTS.jsonl]

Thousands of rows decode in step. Each begins a conversation with the first words of a question, which the target
finishes at temperature 0.8 to 1 and then answers: half of the conversations greedily, the others at 0.7 or 1. Where a
conversation ends, its row begins the next. On a GPU the whole step is one CUDA graph. One process a GPU: run several
with CUDA_VISIBLE_DEVICES and different --seed.
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np
import torch

from kernels import choose
from openings import openings
from target import Decoder, load

# What a token is, and a flag on the first one of a conversation.
GIVEN, QUESTION, ANSWER, FIRST = 0, 1, 2, 128

# Of an answer's temperatures: how often each is used.
ANSWERS = {0.0: 0.5, 0.7: 0.38, 1.0: 0.12}
SECOND_TURN = 0.3
LONGEST_QUESTION, LONGEST_ANSWER = 160, 512

# A text is cut when it has repeated itself, at a distance of `PERIODS` tokens at most, for so long.
PERIODS, REPEATED = 64, 32


class Scripts:
    """Texts that are given, not chosen: openings, and what stands between turns; one table of ids."""

    def __init__(self, chat, count, seed, device):
        texts = [chat.ids(chat.opening(system) + words) for system, words in openings(count, seed)]
        texts += [chat.between("user")[1:], chat.between("assistant")[1:]]
        ends = np.cumsum([len(ids) for ids in texts])
        tensor = lambda x: torch.tensor(x, dtype=torch.long, device=device)
        self.table = tensor([id for ids in texts for id in ids])
        self.ends = tensor(ends)
        self.starts = self.ends - tensor([len(ids) for ids in texts])
        self.openings, self.to_answer, self.to_question = count, count, count + 1


class Writer:
    """The state of all rows, and the step that takes them one token further. Nothing in a step waits for the host."""

    def __init__(self, decoder, scripts, end, rows, length, steps):
        d = decoder.target.device
        make = lambda value, kind=torch.long: torch.full((rows,), value, dtype=kind, device=d)
        self.decoder, self.scripts, self.end, self.length = decoder, scripts, end, length
        self.token, self.kind, self.at = make(0), make(0), make(0)
        self.next, self.stop = make(0), make(0)
        self.answering, self.turns, self.turn_length = make(False, torch.bool), make(0), make(0)
        self.cool, self.warm = make(0.0, torch.float32), make(0.0, torch.float32)
        self.done = make(False, torch.bool)
        self.recent = torch.full((rows, PERIODS), -1, device=d)
        self.repeated = torch.zeros((rows, PERIODS), dtype=torch.long, device=d)
        self.too_long = torch.arange(1, PERIODS + 1, device=d).mul(2).clamp(min=REPEATED)
        self.choices = torch.tensor(list(ANSWERS), device=d)
        self.bounds = torch.tensor(list(ANSWERS.values()), device=d).cumsum(0)[:-1].float()
        self.log = torch.zeros((steps, rows), dtype=torch.int32, device=d)
        self.log_kind = torch.zeros((steps, rows), dtype=torch.uint8, device=d)
        self.row = torch.zeros(1, dtype=torch.long, device=d)
        self.count = torch.zeros((), dtype=torch.int32, device=d)
        self.begin(torch.ones_like(self.done))

    def set(self, name, where, value):
        """In place, so that a CUDA graph sees it."""
        held = getattr(self, name)
        held.copy_(torch.where(where if held.dim() == 1 else where[:, None], value, held))

    def begin(self, where):
        """New conversations in the rows `where`."""
        s, rows, d = self.scripts, len(where), where.device
        which = torch.randint(0, s.openings, (rows,), device=d)
        first = s.starts[which]
        self.set("token", where, s.table[first])
        self.set("kind", where, torch.full_like(first, GIVEN | FIRST))
        self.set("next", where, first + 1)
        self.set("stop", where, s.ends[which])
        self.set("at", where, 0)
        self.set("turns", where, 1 + (torch.rand(rows, device=d) < SECOND_TURN).long())
        self.set("turn_length", where, 0)
        self.set("cool", where, self.choices[torch.bucketize(torch.rand(rows, device=d), self.bounds)])
        self.set("warm", where, 0.8 + 0.2 * torch.rand(rows, device=d))
        self.set("recent", where, -1)
        self.set("repeated", where, 0)
        self.answering &= ~where
        self.done &= ~where

    def note(self):
        self.log.index_copy_(0, self.row, self.token[None].int())
        self.log_kind.index_copy_(0, self.row, self.kind[None].to(torch.uint8))
        self.row += 1
        self.count += 1

    def script(self, where, which):
        s = self.scripts
        self.set("next", where, s.starts[which])
        self.set("stop", where, s.ends[which])

    def repeats(self, token):
        """Which rows have repeated themselves for long."""
        same = self.recent == token[:, None]
        self.repeated.copy_(torch.where(same, self.repeated + 1, 0))
        self.recent.copy_(torch.cat([token[:, None], self.recent[:, :-1]], dim=1))
        return (self.repeated >= self.too_long).any(1)

    def step(self):
        self.note()
        logits = self.decoder.step(self.token, self.at)
        temperature = torch.where(self.answering, self.cool, self.warm)
        chosen = self.decoder.ops.pick(logits, temperature, self.count)
        given = self.next < self.stop
        token = torch.where(given, self.scripts.table[self.next.clamp(max=len(self.scripts.table) - 1)], chosen)
        self.token.copy_(token)
        self.kind.copy_(torch.where(given, GIVEN, torch.where(self.answering, ANSWER, QUESTION)))
        self.next += given
        self.at += 1
        self.turn_length.copy_(torch.where(given, 0, self.turn_length + 1))
        over = self.done.clone()
        ended = ~given & (token == self.end)
        last = ended & self.answering & (self.turns <= 1)
        stuck = self.repeats(token) | (
            self.turn_length >= torch.where(self.answering, LONGEST_ANSWER, LONGEST_QUESTION)
        )
        self.done |= last | stuck | (self.at >= self.length - 1)
        self.script(ended & ~self.answering, self.scripts.to_answer)
        self.script(ended & self.answering, self.scripts.to_question)
        self.turns -= (ended & self.answering).long()
        self.answering ^= ended
        self.begin(over)


def captured(step, device):
    """`step` as a CUDA graph where there is one; what a call then costs the host is a launch."""
    if device.type != "cuda":
        return step
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def write(writer, seconds, say):
    """Steps until the time or the log is over; how many steps the log holds."""
    run = captured(writer.step, writer.token.device)
    steps, (room, rows) = int(writer.row), writer.log.shape
    start = said = time.time()
    while steps < room - 4:
        run()
        steps += 1
        if steps % 16 == 0:
            now = int(writer.row), time.time()  # waits for the device
            if now[1] - said > 10:
                said = now[1]
                say(f"{now[1] - start:.0f} s, {steps} steps, {steps * rows / (now[1] - start) / 1e3:.0f} k tokens/s")
            if now[1] - start > seconds:
                break
    steps, spent = int(writer.row), time.time() - start
    say(f"{steps} steps in {spent:.0f} s, {steps * rows / spent / 1e3:.0f} k tokens/s")
    return steps


def conversations(tokens, kinds):
    """Pairs of ids and kinds, one a conversation that has an answer. `tokens` `[rows, steps]`."""
    for row, row_kinds in zip(tokens, kinds):
        cuts = np.flatnonzero(row_kinds & FIRST)
        for start, stop in zip(cuts, [*cuts[1:], len(row)]):
            if (row_kinds[start:stop] == ANSWER).any():
                yield row[start:stop], row_kinds[start:stop]


def pack(found, length):
    """Rows of `length` tokens of whole conversations, the last one of a row cut."""
    rows, row_kinds, parts, fill = [], [], [], 0
    for ids, kinds in found:
        parts.append((ids[: length - fill], kinds[: length - fill]))
        fill += len(parts[-1][0])
        if fill == length:
            rows.append(np.concatenate([ids for ids, _ in parts]))
            row_kinds.append(np.concatenate([kinds for _, kinds in parts]))
            parts, fill = [], 0
    if not rows:
        raise ValueError(f"not {length} tokens of conversations with an answer: more seconds or rows are needed")
    return np.stack(rows), np.stack(row_kinds)


def heldout_filter(chat, path):
    """Tells of a conversation whether its first question is none of those in the file `path`.

    Letters alone are compared, whatever the tokens that they came in and the spaces between them."""
    if path is None:
        return lambda ids, kinds: True
    bare = lambda text: "".join(text.split()).lower()
    prompts = [json.loads(line)["prompt"] for line in Path(path).read_text().splitlines()]
    between = chat.tokenizer.decode(chat.between("user"))
    ends = tuple({bare(prompt + between) for prompt in prompts})
    letters = [bare(text) for text in chat.tokenizer.batch_decode([[id] for id in range(len(chat.tokenizer))])]

    def is_new(ids, kinds):
        answer = int(np.argmax(kinds == ANSWER))
        return not "".join([letters[id] for id in ids[:answer].tolist()]).endswith(ends)

    return is_new


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", required=True, help="a folder of Hugging Face's layout, or a GGUF file")
    parser.add_argument("--out", type=Path, required=True, help="a folder; --seed names the files in it")
    parser.add_argument("--heldout", help="JSON lines with prompts that no conversation may begin with")
    parser.add_argument("--seconds", type=float, default=200)
    parser.add_argument("--rows", type=int, default=4096)
    parser.add_argument("--length", type=int, default=1024, help="most tokens of a conversation")
    parser.add_argument("--row-length", type=int, default=2048)
    parser.add_argument("--openings", type=int, default=8192)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--most-steps", type=int, default=40_000)
    o = parser.parse_args()
    say = lambda text: print(f"generate {o.seed}: {text}", flush=True)
    torch.manual_seed(o.seed)
    target, chat = load(o.target, o.device, torch.bfloat16 if o.device == "cuda" else torch.float32)
    scripts = Scripts(chat, o.openings, o.seed, target.device)
    decoder = Decoder(target, o.rows, o.length, choose(o.device, say))
    writer = Writer(decoder, scripts, chat.end, o.rows, o.length, o.most_steps)
    steps = write(writer, o.seconds, say)
    tokens, kinds = (log[:steps].T.contiguous().cpu().numpy() for log in (writer.log, writer.log_kind))
    is_new = heldout_filter(chat, o.heldout)
    found = list(conversations(tokens, kinds))
    kept = [one for one in found if is_new(*one)]
    rows, row_kinds = pack(kept, o.row_length)
    o.out.mkdir(parents=True, exist_ok=True)
    np.save(o.out / f"kinds-{o.seed}.npy", row_kinds)
    # The file that says that all is there.
    np.save(o.out / "part.npy", rows)
    (o.out / "part.npy").rename(o.out / f"tokens-{o.seed}.npy")
    say(
        f"{len(found)} conversations, {len(found) - len(kept)} with a held-out question dropped, {len(rows)} rows, "
        f"{(row_kinds == ANSWER).mean():.2f} of the tokens in answers"
    )


if __name__ == "__main__":
    main()
