"""Checks the parts of this folder against plain computations, on a CPU, with a random target that it makes.

    python check.py TOKENIZER_FOLDER [--triton]

`--triton` also runs the Triton kernels; without a GPU in Triton's interpreter (TRITON_INTERPRET=1), which takes minutes.
"""

import argparse
import json
import sys
import tempfile
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
import torch.nn.functional as F
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

import kernels
from drafter import Drafter, as_json, fresh_config
from evaluate import answers, runs, vocabs_of, walk
from generate import ANSWER, FIRST, QUESTION, Scripts, Writer, conversations, pack, write
from sight import Dense, Flex, block_of
from target import Chat, Decoder, Target
from train import Batch, Trainer, frequent, list_ids

sys.path.insert(0, str(Path(__file__).parents[2] / "fixtures"))
import dflash_reference as reference


def tiny(vocab):
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocab,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=6,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        rope_parameters={"rope_type": "default", "rope_theta": 1e5},
        tie_word_embeddings=True,
        max_position_embeddings=2048,
        initializer_range=0.2,
    )
    model = LlamaForCausalLM(config).eval()
    return model, Target(model, "cpu", torch.float32)


def close(a, b, what, tolerance=1e-4):
    difference = float((a - b).detach().norm() / b.detach().norm())
    assert difference < tolerance, f"{what}: differs by {difference:.1e}"
    print(f"{what}: {difference:.1e}")


def check_target(model, target):
    tokens = torch.randint(0, target.vocab, (1, 40))
    with torch.no_grad():
        wanted = model(tokens, output_hidden_states=True)
    places = torch.arange(40)[None]
    sight = Dense(40)
    sight.look(torch.zeros_like(places), places + 1)
    hidden, taps = target.packed(tokens, places, sight, [1, 3])
    close(hidden @ target.head.T, wanted.logits, "packed logits")
    close(taps, torch.cat([wanted.hidden_states[2], wanted.hidden_states[4]], -1), "taps")
    # Two conversations in a row are as each alone.
    starts = torch.where(places < 15, 0, 15)
    sight.look(starts, places + 1)
    both, _ = target.packed(tokens, places - starts, sight, [1])
    with torch.no_grad():
        second = model(tokens[:, 15:]).logits
    close(both[:, 15:] @ target.head.T, second, "a second conversation of a row")
    decoder = Decoder(target, 1, 64, kernels.Plain)
    logits = [decoder.step(tokens[:, i], places[:, i]) for i in range(40)]
    close(torch.stack(logits, 1), wanted.logits, "decoded logits")


def check_writer(target, chat):
    """Conversations have the form of a chat, whatever a random target says."""

    class Ends(kernels.Plain):
        @staticmethod
        def pick(logits, temperatures, step):
            ended = torch.rand(len(logits)) < 0.1
            return torch.where(ended, chat.end, torch.randint(1000, 2000, (len(logits),)))

    scripts = Scripts(chat, 50, 0, target.device)
    decoder = Decoder(target, 16, 160, Ends)
    writer = Writer(decoder, scripts, chat.end, 16, 160, 600)
    steps = write(writer, 1e9, print)
    tokens, kinds = writer.log[:steps].T.numpy(), writer.log_kind[:steps].T.numpy()
    found = list(conversations(tokens, kinds))
    to_answer = chat.between("user")
    for ids, kinds in found[:-1]:
        answer = int(np.argmax(kinds == ANSWER))
        assert kinds[0] & FIRST and not (kinds[1:] & FIRST).any()
        assert ids[answer - len(to_answer) : answer].tolist() == to_answer
        assert (kinds[:answer] == QUESTION).sum() >= 1 and len(ids) <= 160
        text = chat.tokenizer.decode(ids)
        assert text.count("assistant\n") <= 2
    print(chat.tokenizer.decode(found[1][0][:60]))
    rows, row_kinds = pack(found, 256)
    assert rows.shape == row_kinds.shape and (row_kinds[:, 0] & FIRST).all()
    print(f"{len(found)} conversations in {len(rows)} rows")
    return rows, row_kinds


def check_drafter(target, drafter, rows, kinds):
    """Blocks over packed rows against the reference, which knows one conversation and one block."""
    batch = Batch(torch.from_numpy(rows[:2]), torch.from_numpy(kinds[:2]))
    length = rows.shape[1]
    sight = Dense(length)
    sight.look(batch.starts, batch.places + 1)
    _, taps = target.packed(batch.tokens, batch.places - batch.starts, sight, drafter.taps)
    groups = [(16, torch.tensor([[3, 70, 150, 200], [9, 80, 111, 230]])), (4, torch.tensor([[20, 199], [1, 100]]))]
    blocks = block_of([(size, anchors.shape[1]) for size, anchors in groups], "cpu")
    sight = Dense(length + len(blocks), blocks)
    outputs = drafter.draft(target, batch.tokens, taps, batch.starts, groups, sight)
    with tempfile.TemporaryDirectory() as folder:
        drafter.save(folder)
        plain = reference.Drafter.load(Path(folder))
        again = Drafter.load(folder, "cpu", torch.float32)
    for shape, master in again.masters.items():
        close(master, drafter.masters[shape].bfloat16().float(), f"saved tensors of {tuple(shape)}")
    plain.tensors = {name + ".weight": tensor for name, tensor in drafter.weights().items()}
    for (size, anchors), output in zip(groups, outputs):
        for b, row in enumerate(anchors.tolist()):
            for a, anchor in enumerate(row):
                features = plain.context_features(taps[b, int(batch.starts[b, anchor]) : anchor])
                wanted = plain.draft(features, int(batch.tokens[b, anchor]), size, target.embedding, target.head)
                assert (output[b, a] @ target.head.T - wanted).norm() / wanted.norm() < 1e-4
    print("blocks are as the reference's")


def check_loss(trainer, rows, kinds):
    """The gradient against autograd's of the same loss in words, and the weights of masks."""
    o, target = trainer.o, trainer.target
    batch = Batch(torch.from_numpy(rows[:2]), torch.from_numpy(kinds[:2]))
    taps, logits, log_sums = trainer.look(batch)
    groups = trainer.anchors(batch, logits, log_sums)
    outputs = [output.detach().requires_grad_() for output in trainer.draft(batch, taps, groups)]
    loss, gradients, _ = trainer.loss(batch, groups, outputs, logits, log_sums)
    total, plain, all_weights = 0.0, 0.0, 0.0
    blocks = (
        (b, a, anchor, size, output)
        for (size, anchors), output in zip(groups, outputs)
        for b in range(2)
        for a, anchor in enumerate(anchors[b].tolist())
    )
    for b, a, anchor, size, output in blocks:
        still = 1.0
        for j in range(1, size):
            at = anchor + j
            if at >= rows.shape[1] or not (kinds[b, anchor : at + 1] == ANSWER).all():
                break
            q = F.log_softmax(output[b, a, j - 1] @ target.head.T * o.sharpness, -1)
            p = F.log_softmax(logits[b * rows.shape[1] + at - 1] * o.sharpness, -1)
            weight = np.exp(-(j - 1) / o.fade)
            kl = (p.exp() * (p - q)).sum()
            total = total + weight * (o.floor + (1 - o.floor) * still) * kl
            plain, all_weights = plain + weight * kl.detach(), all_weights + weight
            still *= float(q[rows[b, at]].detach().exp())
    close(loss, plain / all_weights, "loss")
    for (size, _), gradient, wanted in zip(groups, gradients, torch.autograd.grad(total / all_weights, outputs)):
        close(gradient, wanted, f"gradient of blocks of {size}", 1e-2)


def check_sight():
    """FlexAttention's tiles against the plain mask."""
    torch.manual_seed(1)
    for groups in ([], [(16, 8), (4, 32)]):
        queries, context = 256, 384 if groups else 0
        keys = context + queries
        q, k, v = torch.randn(2, 4, queries, 16), torch.randn(2, 2, keys, 16), torch.randn(2, 2, keys, 16)
        blocks = block_of(groups, "cpu") if groups else None
        if groups:
            high = torch.randint(1, context, (2, queries))
        else:
            high = torch.arange(1, queries + 1).expand(2, -1)
        low = (high - torch.randint(1, 200, (2, queries))).clamp(min=0)
        dense, flex = Dense(keys, blocks), Flex(2, queries, keys, blocks, "cpu")
        results = []
        for sight in (dense, flex):
            sight.look(low, high)
            results.append(sight(q, k, v))
        close(results[1], results[0], f"FlexAttention, blocks {groups}")
        # Its tiles hold all that is seen: FlexAttention on a CPU looks at the mask alone.
        tiles = flex.mask.to_dense()[:, 0].bool().repeat_interleave(128, 1).repeat_interleave(128, 2)
        assert not (dense.mask[:, 0] & ~tiles).any()


class Anew(reference.Target):
    """The reference's target without a cache, whose name changes with the versions of transformers."""

    def restart(self):
        self.ids = []

    @torch.no_grad()
    def run(self, ids):
        self.ids = self.ids + ids
        out = self.model(torch.tensor([self.ids]), output_hidden_states=True)
        taps = torch.cat([out.hidden_states[i + 1][0] for i in self.layer_ids], dim=-1)
        return out.logits[0, -len(ids) :], taps[-len(ids) :]

    def keep(self, tokens):
        self.ids = self.ids[:tokens]


def check_lists(config, rows, kinds):
    """Which ids are listed, and how a config is written."""
    data = SimpleNamespace(tokens=torch.from_numpy(rows), kinds=torch.from_numpy(kinds))
    counts = Counter(rows[kinds == ANSWER].tolist())
    best = sorted(counts, key=lambda i: (-counts[i], i))
    for cover in (0.3, 0.98):
        list_ids(config, data, cover, print)
        ids = config["dflash_config"]["proposed_ids"]
        made = [sum(counts[i] for i in best[:count]) / counts.total() for count in (len(ids) - 1, len(ids))]
        assert ids == sorted(best[: len(ids)]) and made[0] < cover <= made[1]
        text = as_json(config)
        assert json.loads(text) == config and f'"proposed_ids": {ids}' in text
    list_ids(config, data, 1, print)
    assert "proposed_ids" not in config["dflash_config"]


def check_replay(model, target, drafter, chat):
    """The walk over all blocks against the reference's loop, with proposals from all ids, from half and from a list."""
    prompts = [chat.ids("a b c"), chat.ids("What is it that you")]
    texts = answers(target, kernels.Plain, prompts, 40, chat.end, None)
    fields = {**drafter.config, **drafter.config["dflash_config"]}
    config = reference.Config(**{name: fields.get(name) for name in reference.Config.__dataclass_fields__})
    plain = reference.Drafter(config, {name + ".weight": w.detach() for name, w in drafter.weights().items()})
    looped = Anew(model, drafter.taps)
    vocabs = vocabs_of(drafter, target.vocab, target.device)
    drafter.config["dflash_config"]["proposed_ids"] = frequent(torch.tensor(sum(texts, [])), 0.5)
    vocabs |= vocabs_of(drafter, target.vocab, target.device)
    assert list(vocabs) == ["whole vocabulary", "lower half", "listed ids"]
    found = {size: runs(target, drafter, size, prompts, texts, None, vocabs.values()) for size in (16, 8)}
    for i, (prompt, text) in enumerate(zip(prompts, texts)):
        for size, width in ((16, 4), (16, 16), (8, 8)):
            for (name, ids), run in zip(vocabs.items(), found[size][i]):
                tokens, steps = reference.drafted_greedy(
                    looped, plain, prompt, 40, size, width, {chat.end}, ids.tolist()
                )
                assert tokens == text and len(steps) == walk(run, width), name
    print("the replay is as the reference's loop")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tokenizer")
    parser.add_argument("--triton", action="store_true")
    o = parser.parse_args()
    if o.triton:
        kernels.check("cuda" if torch.cuda.is_available() else "cpu", vocab=1024, dtype=torch.float32)
        print("kernels are as their twins")
    chat = Chat(AutoTokenizer.from_pretrained(o.tokenizer))
    model, target = tiny(len(chat.tokenizer))
    check_target(model, target)
    check_sight()
    rows, kinds = check_writer(target, chat)
    drafter = Drafter.fresh(fresh_config(target, layers=3), "cpu", torch.float32)
    check_drafter(target, drafter, rows, kinds)
    options = SimpleNamespace(
        batch=2,
        row_length=rows.shape[1],
        blocks=[(16, 12), (4, 20)],
        sharpness=1.4,
        fade=7.0,
        floor=0.3,
        plain_anchors=0.3,
        chunk=50,
    )
    check_loss(Trainer(target, drafter, kernels.Plain, options), rows, kinds)
    check_lists(drafter.config, rows, kinds)
    check_replay(model, target, drafter, chat)


if __name__ == "__main__":
    main()
