#!/usr/bin/env python3
"""transformers on a CUDA card, to be set beside Slipstream on the same card: plain decoding with keys and values in
slots of a fixed number, and a DFlash loop in PyTorch, both launched from Python and, where that works, replayed
as CUDA graphs. Decodes one request at a time, in bf16 with PyTorch's scaled dot product attention.

    bench/cuda/transformers_peer.py --config bench/configs/qwen3-8b.json --json peer.json
    bench/cuda/transformers_peer.py --target FOLDER --draft FOLDER --prompts models/heldout-prompts.jsonl

With --config the weights are random and the drafter has 5 layers and blocks of 16, as published ones have. What a
random drafter proposes is never right, so each cycle keeps a drawn number of tokens, whose mean is the τ that was
asked for; the work is that of a real cycle. With --target and --draft drafts are accepted when they are what the
target chooses.
"""

import argparse
import json
import random
import statistics
import time

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from torch_dflash import Drafter, DrafterConfig, Slots

MATMUL = 8192


class Machine:
    """Where the work runs, and clocks and graphs there."""

    def __init__(self, device):
        self.device = torch.device(device)
        self.cuda = self.device.type == "cuda"

    def seconds(self, work):
        """The seconds that `work()` takes until the device has done it."""
        self.settle()
        begun = time.perf_counter()
        work()
        self.settle()
        return time.perf_counter() - begun

    def settle(self):
        if self.cuda:
            torch.cuda.synchronize()

    def graphed(self, work):
        """`work` as a CUDA graph, as a function."""
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                work()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            work()
        return graph.replay

    def matmul_tflops(self):
        """TFLOP/s of a large bf16 product, best of ten."""
        a, b = (torch.randn(MATMUL, MATMUL, device=self.device).bfloat16() for _ in range(2))
        times = [self.seconds(lambda: a @ b) for _ in range(13)][3:]
        return 2 * MATMUL**3 / min(times) / 1e12


class Pass:
    """A pass of the target over `rows` tokens at fixed addresses: what a graph can hold."""

    def __init__(self, model, slots, rows, taps):
        device = model.device
        self.model, self.slots, self.taps = model, slots, taps
        self.ids = torch.zeros(1, rows, dtype=torch.long, device=device)
        self.positions = torch.arange(rows, device=device)[None].contiguous()
        self.choices = torch.zeros(1, rows, dtype=torch.long, device=device)
        hidden = model.config.hidden_size
        self.features = torch.zeros(rows, len(taps) * hidden, dtype=model.dtype, device=device)

    def run(self):
        self.slots.at = self.positions[0]
        mask = self.slots.indices[None, :] <= self.positions[0][:, None]
        out = self.model(
            input_ids=self.ids,
            position_ids=self.positions,
            attention_mask=mask[None, None],
            past_key_values=self.slots,
            use_cache=True,
            output_hidden_states=bool(self.taps),
        )
        self.choices.copy_(out.logits.argmax(-1))
        if self.taps:
            tapped = [out.hidden_states[i + 1][0] for i in self.taps]
            self.features.copy_(torch.cat(tapped, dim=-1))


class Plain:
    """Decoding a token at a time: each choice is the next step's input, without the host."""

    def __init__(self, machine, model, slots):
        self.machine, self.model, self.slots = machine, model, slots
        self.step = Pass(model, slots, 1, [])

    def advance(self):
        self.step.run()
        self.step.ids.copy_(self.step.choices)
        self.step.positions.add_(1)

    def begin(self, prompt):
        """Reads the prompt; the first token."""
        read = Pass(self.model, self.slots, len(prompt), [])
        read.ids.copy_(torch.tensor([prompt]))
        read.run()
        self.step.ids.copy_(read.choices[:, -1:])
        self.step.positions.fill_(len(prompt))
        return int(read.choices[0, -1])

    def tokens(self, advance, prompt, count):
        """`count` tokens after the first, for a check."""
        tokens = [self.begin(prompt)]
        for _ in range(count):
            advance()
            tokens.append(int(self.step.ids))
        return tokens

    def rate(self, advance, prompt, count):
        """Tokens a second after the first, and milliseconds a step."""
        self.begin(prompt)
        took = self.machine.seconds(lambda: [advance() for _ in range(count)])
        return count / took, took / count * 1e3


class Speculative:
    """DFlash: absorb what the last pass found, draft a block, verify it; then the host counts."""

    def __init__(self, machine, model, drafter, slots):
        self.machine, self.model, self.slots = machine, model, slots
        self.drafter, self.block = drafter, drafter.config.block
        self.verify = Pass(model, slots, self.block, drafter.config.taps)
        device = model.device
        # Where the rows begin that are absorbed, and where the block begins.
        self.starts = torch.zeros(2, dtype=torch.long, device=device)
        self.offsets = torch.arange(self.block, device=device)
        self.found = torch.zeros(2, self.block, dtype=torch.long, device=device)

    def cycle(self):
        verify, embed = self.verify, self.model.get_input_embeddings()
        self.drafter.absorb(verify.features, self.starts[0] + self.offsets)
        positions = self.starts[1] + self.offsets
        rows = self.drafter.draft(embed(self.block_ids()), positions, self.starts[1])
        drafts = self.model.lm_head(rows[1:]).argmax(-1)
        verify.ids[0, 1:] = drafts
        verify.positions[0] = positions
        verify.run()
        self.found[0] = verify.ids[0]
        self.found[1] = verify.choices[0]

    def block_ids(self):
        ids = torch.full_like(self.offsets, self.drafter.config.mask_id)
        ids[:1] = self.verify.ids[0, :1]
        return ids

    def begin(self, prompt):
        """Reads the prompt, all but whose last rows the drafter absorbs here; the first token."""
        read = Pass(self.model, self.slots, len(prompt), self.verify.taps)
        read.ids.copy_(torch.tensor([prompt]))
        read.run()
        self.drafter.absorb(read.features, read.positions[0])
        assert len(prompt) >= self.block, "a prompt is at least as long as a block"
        self.verify.features.copy_(read.features[-self.block :])
        self.verify.ids[0, :1] = read.choices[0, -1]
        self.starts.copy_(torch.tensor([len(prompt) - self.block, len(prompt)]))
        return int(read.choices[0, -1])

    def tokens(self, cycle, prompt, count, kept=None):
        """Tokens after the first until there are `count`, and the cycles they took. `kept()` says how many
        tokens a cycle keeps, where that does not follow from the drafts."""
        tokens, cycles, length = [self.begin(prompt)], 0, len(prompt)
        while len(tokens) <= count:
            cycle()
            cycles += 1
            proposed, chosen = self.found.tolist()
            new = kept() if kept else accepted(proposed, chosen) + 1
            tokens += chosen[:new]
            self.verify.ids[0, 0] = chosen[new - 1]
            self.starts.copy_(torch.tensor([length, length + new]))
            length += new
        return tokens, cycles

    def rate(self, cycle, prompt, count, kept=None):
        """Tokens a second, milliseconds a cycle, and τ; the prompt is in the time and is taken off it."""
        prompts = statistics.median(self.machine.seconds(lambda: self.begin(prompt)) for _ in range(3))
        made = []
        took = self.machine.seconds(lambda: made.append(self.tokens(cycle, prompt, count, kept)))
        (tokens, cycles), took = made[0], took - prompts
        new = len(tokens) - 1
        return new / took, took / cycles * 1e3, new / cycles


def accepted(proposed, chosen):
    """How many drafts are what the target chose; `proposed` begins with the anchor."""
    count = 0
    while count + 1 < len(proposed) and proposed[count + 1] == chosen[count]:
        count += 1
    return count


def draws(tau, block, seed):
    """A function that draws how many tokens a cycle keeps: each draft is right with the same chance, such that
    the mean is `tau`."""
    low, high = 0.0, 1.0
    for _ in range(60):
        chance = (low + high) / 2
        reached = sum(chance**place for place in range(block))
        low, high = (chance, high) if reached < tau else (low, chance)
    numbers = random.Random(seed)

    def kept():
        count = 1
        while count < block and numbers.random() < high:
            count += 1
        return count

    return kept


class Results:
    """Figures by what was done and how."""

    def __init__(self):
        self.all = []

    def add(self, what, how, readings, **more):
        """`readings` are (tokens a second, milliseconds a step, …) of each repeat."""
        rates, steps = [r[0] for r in readings], [r[1] for r in readings]
        entry = {"what": what, "how": how, "tokens_per_second": rates, "step_ms": steps, **more}
        if len(readings[0]) > 2:
            entry["tau"] = statistics.mean(r[2] for r in readings)
        self.all.append(entry)
        rate, least, most = statistics.median(rates), min(rates), max(rates)
        extra = f", τ {entry['tau']:.2f}" if "tau" in entry else ""
        print(
            f"{what}, {how}: {rate:.1f} tok/s ({least:.1f} – {most:.1f}), "
            f"{statistics.median(steps):.2f} ms a step{extra}",
            flush=True,
        )


def ways(machine, work):
    """`work` as Python launches it, and as a graph where that works."""
    found = [("launched from Python", work)]
    if machine.cuda:
        try:
            found.append(("in a CUDA graph", machine.graphed(work)))
        except RuntimeError as error:
            print(f"no CUDA graph: {error}", flush=True)
    return found


def generate(machine, model, prompt, options, results):
    """The library's own loop, with its static cache and without compiling."""
    ids = torch.tensor([prompt], device=model.device)
    count = options.eager_tokens

    def run(new):
        model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=new,
            min_new_tokens=new,
            do_sample=False,
            cache_implementation="static",
            disable_compile=True,
        )

    run(2)
    readings = []
    for _ in range(options.repeats):
        one = machine.seconds(lambda: run(1))
        took = machine.seconds(lambda: run(1 + count)) - one
        readings.append((count / took, took / count * 1e3))
    results.add("plain", "generate with a static cache", readings)


def measure(machine, model, drafter, prompts, options, results):
    """Plain and speculative decoding of each prompt, `repeats` times."""
    longest = max(map(len, prompts)) + options.tokens + 2 * drafter.config.block
    slots = Slots.of(model.config, longest, model)
    drafter.slots = Slots.of_drafter(drafter.config, longest, model)
    plain = Plain(machine, model, slots)
    speculative = Speculative(machine, model, drafter, slots)
    taus = [None] if options.target else options.tau
    # Something to capture on.
    plain.begin(prompts[0])
    for how, advance in ways(machine, plain.advance):
        count = options.tokens if "graph" in how else options.eager_tokens
        readings = [
            mean([plain.rate(advance, prompt, count) for prompt in prompts])
            for _ in range(options.repeats)
        ]
        results.add("plain", how, readings)
    speculative.begin(prompts[0])
    for how, cycle in ways(machine, speculative.cycle):
        count = options.tokens if "graph" in how else 6 * options.eager_tokens
        for tau in taus:
            kept = draws(tau, drafter.config.block, seed=1) if tau else None
            readings = [
                mean([speculative.rate(cycle, prompt, count, kept) for prompt in prompts])
                for _ in range(options.repeats)
            ]
            results.add("dflash", how, readings, asked=tau)


def mean(readings):
    """Of several prompts."""
    return [statistics.mean(values) for values in zip(*readings)]


def load(options, machine):
    """Model, drafter and prompts."""
    dtype = getattr(torch, options.dtype)
    if options.config:
        config = AutoConfig.from_pretrained(options.config)
        torch.manual_seed(1)
        with machine.device:
            model = AutoModelForCausalLM.from_config(
                config, dtype=dtype, attn_implementation="sdpa"
            )
        drafter = Drafter.random(DrafterConfig.like(model.config), model)
        numbers = random.Random(1)
        prompts = [[numbers.randrange(100, config.vocab_size) for _ in range(options.context)]]
        return model.eval(), drafter, prompts
    model = AutoModelForCausalLM.from_pretrained(
        options.target, dtype=dtype, attn_implementation="sdpa"
    ).to(machine.device)
    tokenizer = AutoTokenizer.from_pretrained(options.target)
    drafter = Drafter.load(options.draft, model)
    with open(options.prompts, encoding="utf-8") as lines:
        questions = [json.loads(line)["prompt"] for line in lines if line.strip()]
    chosen = [questions[i * len(questions) // options.count] for i in range(options.count)]
    prompts = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": question}], add_generation_prompt=True, return_dict=True
        )["input_ids"]
        for question in chosen
    ]
    return model.eval(), drafter, prompts


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--config", help="random weights of the shape that this config.json describes")
    parser.add_argument("--target", help="a folder with the target's safetensors")
    parser.add_argument("--draft", help="a folder with the drafter's")
    parser.add_argument("--prompts", help='lines {"prompt": "…"}, for --target')
    parser.add_argument("--count", type=int, default=12, help="prompts, evenly from the file")
    parser.add_argument("--tau", type=float, nargs="+", default=[4.24, 6.36, 8.0])
    parser.add_argument("--context", type=int, default=128, help="tokens of the random prompt")
    parser.add_argument("--tokens", type=int, default=192, help="tokens of an answer, in graphs")
    parser.add_argument("--eager-tokens", type=int, default=16, help="the same, launched from Python; six times as many with drafts")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--json", help="where to write everything that was measured")
    options = parser.parse_args()
    if bool(options.config) == bool(options.target):
        parser.error("give --config, or --target with --draft and --prompts")
    if options.target and not (options.draft and options.prompts):
        parser.error("--target needs --draft and --prompts")
    return options


def main():
    options = arguments()
    machine, results = Machine(options.device), Results()
    report = {
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "device": torch.cuda.get_device_name() if machine.cuda else "cpu",
        "model": options.config or options.target,
        "results": results.all,
    }
    with torch.inference_mode():
        if machine.cuda:
            report["matmul_tflops"] = machine.matmul_tflops()
            print(f"a product of {MATMUL} × {MATMUL} × {MATMUL}: {report['matmul_tflops']:.0f} TFLOP/s")
        model, drafter, prompts = load(options, machine)
        measure(machine, model, drafter, prompts, options, results)
        generate(machine, model, prompts[0], options, results)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as out:
            json.dump(report, out, indent=1)


if __name__ == "__main__":
    main()
