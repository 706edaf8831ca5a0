#!/usr/bin/env python3
"""Slipstream beside llama.cpp and mistral.rs on this machine: the same files, prompts and threads, in turns.

    bench/peers/compare.py FOLDER [--what decode,prefill,…] [--rounds 9] [--json out.json]

FOLDER is what install.sh made. In each round every contender does the same work once, in an order that turns
round from round to round (A B B A), and ratios are taken within a round, so that a machine that is slow for
a while is slow for both. Every line is a median with the least and the most.

    decode   one request after another, tokens a second after the first
    prefill  a prompt of 512 ids that nothing was cached of, up to its first token
    passes   8 and 16 rows: Slipstream's `bench passes`, llama.cpp's `llama-bench`
    drafted  held-out questions answered to their end: ours drafted and plain, theirs plain
    load     8 and 32 requests at once, tokens a second of all
    busy     decode while another process keeps one core busy, as a share of decode without
    others   decode and prefill with Q4_K_M and Q8_0 files of another model
"""

import argparse
import contextlib
import json
import os
import random
import statistics
import subprocess
import sys
import threading
import time

from engines import ROOT, Llama, Mistral, Slipstream, has_mistral
from table import Rounds, held

OURS, THEIRS_Q4_1, THEIRS_Q4_0 = "slipstream Q4_1", "llama.cpp Q4_1", "llama.cpp Q4_0"
DRAFTED, MISTRAL = "slipstream Q4_1, drafted", "mistral.rs Q4_0"
CONTEXT = 1024
PREFILL = 512


class Bench:
    """Options, and what has been measured."""

    def __init__(self, options):
        self.options, self.folder = options, os.path.abspath(options.folder)
        self.program = os.path.abspath(options.slipstream)
        self.rounds, self.threads = options.rounds, options.threads
        self.results, self.random = [], random.Random(options.seed)
        with open(os.path.join(ROOT, "models/heldout-prompts.jsonl"), encoding="utf-8") as lines:
            self.questions = [json.loads(line) for line in lines if line.strip()]

    def model(self, name):
        return os.path.join(self.folder, "models", name)

    def slipstream(self, running=1, model=None):
        path = self.model(model) if model else None
        return contextlib.closing(Slipstream(self.program, path, self.threads, running))

    def llama(self, model, running=1):
        return contextlib.closing(
            Llama(self.folder, self.model(model), self.threads, running, CONTEXT)
        )

    def mistral(self, model, tokenizer):
        return contextlib.closing(
            Mistral(self.folder, self.model(model), self.threads, tokenizer)
        )

    def chosen(self, count):
        """Questions evenly from the file, which is sorted by topic."""
        every = self.questions
        return [every[i * len(every) // count] for i in range(min(count, len(every)))]

    def report(self, rounds, demands, extra=()):
        lines = rounds.lines(demands) + [f"  {line}" for line in extra]
        print("\n".join(lines) + "\n", flush=True)
        self.results.append({**rounds.json(demands), "notes": list(extra)})
        # Each time: a long run that is ended has told what it found.
        if self.options.json:
            with open(self.options.json, "w", encoding="utf-8") as out:
                json.dump({"threads": self.threads, "results": self.results}, out, indent=1)


def turns(contenders, index):
    """The contenders in the order of a round: that of the one before, turned round."""
    names = list(contenders)
    return names[::-1] if index % 2 else names


def play(rounds, contenders, index):
    """One round: `contenders` maps a name to what gives its figure."""
    rounds.add({name: contenders[name]() for name in turns(contenders, index)})


def warm(engines, ids):
    for engine in engines:
        engine.generate(ids, 4)


@contextlib.contextmanager
def singles(bench):
    """One server each for one request at a time, by contender, ours first."""
    with contextlib.ExitStack() as stack:
        ours = stack.enter_context(bench.slipstream())
        engines = {
            OURS: ours,
            THEIRS_Q4_1: stack.enter_context(bench.llama("smollm2-q4_1.gguf")),
            THEIRS_Q4_0: stack.enter_context(bench.llama("smollm2-q4_0.gguf")),
        }
        if has_mistral(bench.folder):
            engines[MISTRAL] = stack.enter_context(bench.mistral("smollm2-q4_0.gguf", ours))
        warm(engines.values(), ours.chat_ids("Why is the sky blue?"))
        yield engines


def decode(bench):
    rounds = Rounds("plain decoding, default pair", "tok/s")
    with singles(bench) as engines:
        ours = engines[OURS]
        for i, question in enumerate(bench.chosen(bench.rounds)):
            ids = ours.chat_ids(question["prompt"])
            # mistral.rs is slow enough that fewer tokens tell as much.
            lengths = {MISTRAL: 24}
            contenders = {
                name: lambda e=e, n=lengths.get(name, 96): e.generate(ids, n).rate()
                for name, e in engines.items()
            }
            play(rounds, contenders, i)
    sizes = [os.path.getsize(bench.model(f"smollm2-{kind}.gguf")) for kind in ("q4_1", "q4_0")]
    by_bytes = sizes[1] / sizes[0]
    demands = [(OURS, THEIRS_Q4_1, 1.8), (OURS, THEIRS_Q4_0, by_bytes), (OURS, MISTRAL, None)]
    note = f"Q4_0 reads {by_bytes:.3f} of the bytes of Q4_1: as fast a byte is a ratio of {by_bytes:.3f}"
    bench.report(rounds, demands, [note])


def fresh(bench, vocabulary):
    """Ids that no cache knows, without the first few, which are control tokens."""
    return [bench.random.randrange(100, vocabulary) for _ in range(PREFILL)]


def prefill_rounds(bench, engines, rounds, vocabulary):
    for i in range(bench.rounds):
        ids = fresh(bench, vocabulary)
        contenders = {
            name: lambda e=e: PREFILL / e.generate(ids, 1).prefill for name, e in engines.items()
        }
        play(rounds, contenders, i)


def prefill(bench):
    rounds = Rounds(f"prefill of {PREFILL} tokens, default pair", "tok/s")
    with singles(bench) as engines:
        # Its text of random ids is other ids again.
        engines.pop(MISTRAL, None)
        prefill_rounds(bench, engines, rounds, 49_000)
    bench.report(rounds, [(OURS, THEIRS_Q4_1, None), (OURS, THEIRS_Q4_0, 1.2)])


def ours_passes(bench, rows, readings):
    """Rows a second of prompts of `rows` rows, the head on the last one."""
    command = [bench.program, "bench", "passes", "--json", "--threads", str(bench.threads)]
    command += ["--rows", ",".join(map(str, rows)), "--readings", str(readings)]
    said = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout
    found = [json.loads(line) for line in said.splitlines()]
    return {one["rows"]: one["rows"] / statistics.median(one["prompt"]) for one in found}


def their_passes(bench, model, rows, readings):
    command = [os.path.join(bench.folder, "llama/bin/llama-bench"), "-m", bench.model(model)]
    command += ["-p", ",".join(map(str, rows)), "-n", "0", "-t", str(bench.threads)]
    command += ["-r", str(readings), "-o", "json"]
    said = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True, text=True
    ).stdout
    return {
        one["n_prompt"]: one["n_prompt"] / statistics.median(one["samples_ns"]) * 1e9
        for one in json.loads(said)
    }


def passes(bench):
    widths, readings = [8, 16], 20
    rounds = {w: Rounds(f"a pass of {w} rows, default pair", "rows/s") for w in widths}
    contenders = {
        OURS: lambda: ours_passes(bench, widths, readings),
        THEIRS_Q4_1: lambda: their_passes(bench, "smollm2-q4_1.gguf", widths, readings),
        THEIRS_Q4_0: lambda: their_passes(bench, "smollm2-q4_0.gguf", widths, readings),
    }
    for i in range(bench.rounds):
        found = {name: contenders[name]() for name in turns(contenders, i)}
        for w in widths:
            rounds[w].add({name: rates[w] for name, rates in found.items()})
    for w in widths:
        bench.report(rounds[w], [(OURS, THEIRS_Q4_1, None), (OURS, THEIRS_Q4_0, 1.2)])


def answers(bench, engines, ids, seed, index):
    """One question, answered by every contender to its end or 128 tokens."""
    ours = engines[OURS]
    ask = {
        OURS: lambda: ours.generate(ids, 128, go_on=False),
        DRAFTED: lambda: ours.generate(ids, 128, go_on=False, drafted=True),
        f"{OURS}, T 0.7": lambda: ours.generate(ids, 128, go_on=False, temperature=0.7, seed=seed),
        f"{DRAFTED}, T 0.7": lambda: ours.generate(
            ids, 128, go_on=False, drafted=True, temperature=0.7, seed=seed
        ),
    }
    for name in (THEIRS_Q4_1, THEIRS_Q4_0):
        ask[name] = lambda e=engines[name]: e.generate(ids, 128, go_on=False)
    found = {name: ask[name]() for name in turns(ask, index)}
    for suffix in ("", ", T 0.7"):
        if found[OURS + suffix].ids != found[DRAFTED + suffix].ids:
            raise RuntimeError(f"question {seed}{suffix}: the drafted answer is another than the plain one")
    return found


def drafted(bench):
    """Rates are of all tokens in all time. The rounds are questions."""
    pairs = [
        (DRAFTED, OURS, 1.6),
        (DRAFTED, THEIRS_Q4_1, 3.0),
        (DRAFTED, THEIRS_Q4_0, 1.4),
        (f"{DRAFTED}, T 0.7", f"{OURS}, T 0.7", 1.25),
    ]
    rounds = Rounds("held-out questions, one at a time", "tok/s")
    questions, found = bench.chosen(bench.options.questions), []
    with singles(bench) as engines:
        for i, question in enumerate(questions):
            ids = engines[OURS].chat_ids(question["prompt"])
            found.append((question["topic"], answers(bench, engines, ids, i, i)))
            told = {name: a.rate() for name, a in found[-1][1].items() if a.tokens > 1}
            rounds.add(told)

    def rate(name, topic=None):
        these = [f[name] for t, f in found if topic in (None, t)]
        return sum(a.tokens - 1 for a in these) / sum(a.decode for a in these)

    extra = ["of all tokens in all time:"]
    for over, under, least in pairs:
        ratio = rate(over) / rate(under)
        extra.append(
            f"  {over} ÷ {under}: {rate(over):.1f} ÷ {rate(under):.1f} = {ratio:.2f}, wanted {least}: "
            f"{held(ratio >= least)}"
        )
    for suffix in ("", ", T 0.7"):
        each = {
            topic: rate(DRAFTED + suffix, topic) / rate(OURS + suffix, topic)
            for topic in dict.fromkeys(topic for topic, _ in found)
        }
        listed = ", ".join(f"{topic} {ratio:.2f}" for topic, ratio in each.items())
        all_gain = held(min(each.values()) >= 1)
        extra.append(f"  drafted ÷ plain{suffix} by topic: {listed}; wanted 1 in each: {all_gain}")
    # What is wanted is wanted of all of them, not of single ones.
    bench.report(rounds, [(over, under, None) for over, under, _ in pairs], extra)


def crowd(engine, prompts, tokens, at_once, options):
    """Tokens a second of all requests, `at_once` of them open until none is left."""
    waiting, made, failures = iter(list(enumerate(prompts))), [], []
    lock = threading.Lock()

    def client():
        connection = engine.connect()
        while True:
            with lock:
                seed, ids = next(waiting, (None, None))
            if ids is None:
                break
            try:
                made.append(engine.generate(ids, tokens, connection, seed=seed, **options).tokens)
            except Exception as failure:  # The others go on; the caller raises it.
                failures.append(failure)
                break
        connection.close()

    clients = [threading.Thread(target=client) for _ in range(at_once)]
    begun = time.monotonic()
    for one in clients:
        one.start()
    for one in clients:
        one.join()
    took = time.monotonic() - begun
    if failures:
        raise failures[0]
    return sum(made) / took


def load(bench):
    for at_once in bench.options.at_once:
        tokens = 64 if at_once < 16 else 48
        rounds = Rounds(f"server, {at_once} requests at once, {tokens} tokens each", "tok/s")
        with contextlib.ExitStack() as stack:
            ours = stack.enter_context(bench.slipstream(at_once))
            engines = {
                OURS: (ours, {"drafted": True}),
                THEIRS_Q4_1: (stack.enter_context(bench.llama("smollm2-q4_1.gguf", at_once)), {}),
                THEIRS_Q4_0: (stack.enter_context(bench.llama("smollm2-q4_0.gguf", at_once)), {}),
            }
            prompts = [ours.chat_ids(q["prompt"]) for q in bench.chosen(max(16, at_once))]
            for engine, options in engines.values():
                crowd(engine, prompts[:at_once], 4, at_once, options)
            for i in range(bench.rounds):
                contenders = {
                    name: lambda e=e, o=o: crowd(e, prompts, tokens, at_once, o)
                    for name, (e, o) in engines.items()
                }
                play(rounds, contenders, i)
        for figures in rounds.rounds:
            figures["llama.cpp, its better"] = max(figures[THEIRS_Q4_1], figures[THEIRS_Q4_0])
        bench.report(rounds, [(OURS, "llama.cpp, its better", 1.5)])


@contextlib.contextmanager
def busy_core(on):
    """Another process that never waits, on the first of this one's cores."""
    if not on:
        yield
        return
    core = min(os.sched_getaffinity(0))
    spin = f"import os\nos.sched_setaffinity(0, {{{core}}})\nwhile True: pass"
    process = subprocess.Popen([sys.executable, "-c", spin])
    # Until it runs.
    time.sleep(0.3)
    try:
        yield
    finally:
        process.kill()
        process.wait()


def busy(bench):
    alone = Rounds("decode, nothing else running", "tok/s")
    beside = Rounds("decode, one core kept busy by another process", "tok/s")
    kept = Rounds("share of its decoding that an engine keeps", "%")
    with singles(bench) as engines:
        engines.pop(MISTRAL, None)
        ours = engines[OURS]
        for i, question in enumerate(bench.chosen(bench.rounds)):
            ids = ours.chat_ids(question["prompt"])
            contenders = {
                name: lambda e=e: e.generate(ids, 48).rate() for name, e in engines.items()
            }
            contenders[DRAFTED] = lambda: ours.generate(ids, 48, drafted=True).rate()
            for on, rounds in turns({False: alone, True: beside}.items(), i):
                with busy_core(on):
                    play(rounds, contenders, i)
            pair = (alone.rounds[-1], beside.rounds[-1])
            kept.add({name: 100 * pair[1][name] / pair[0][name] for name in pair[0]})
    bench.report(alone, [])
    bench.report(beside, [(OURS, THEIRS_Q4_1, None)])
    least = statistics.median(kept.of(OURS))
    bench.report(kept, [], [f"{OURS} keeps {least:.0f} %, wanted 40: {held(least >= 40)}"])


def others(bench):
    for kind in ("q4_k_m", "q8_0"):
        file = f"qwen2.5-0.5b-{kind}.gguf"
        ours, theirs = (f"{who} {kind.upper()}" for who in ("slipstream", "llama.cpp"))
        decoding = Rounds(f"plain decoding, Qwen2.5-0.5B {kind.upper()}", "tok/s")
        prompts = Rounds(f"prefill of {PREFILL} tokens, Qwen2.5-0.5B {kind.upper()}", "tok/s")
        with bench.slipstream(model=file) as own, bench.llama(file) as peer:
            engines = {ours: own, theirs: peer}
            warm(engines.values(), own.chat_ids("Why is the sky blue?"))
            for i, question in enumerate(bench.chosen(bench.rounds)):
                ids = own.chat_ids(question["prompt"])
                contenders = {
                    name: lambda e=e: e.generate(ids, 32).rate() for name, e in engines.items()
                }
                play(decoding, contenders, i)
            prefill_rounds(bench, engines, prompts, 150_000)
        for rounds in (decoding, prompts):
            bench.report(rounds, [(ours, theirs, 1.2)])


PARTS = {f.__name__: f for f in (decode, prefill, passes, drafted, load, busy, others)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder")
    default = os.path.join(ROOT, os.environ.get("CARGO_TARGET_DIR", "target"), "release/slipstream")
    parser.add_argument("--slipstream", default=default, help="the program, target/release/slipstream otherwise")
    parser.add_argument("--what", default=",".join(PARTS), help="parts, in this order")
    parser.add_argument("--rounds", type=int, default=9, help="rounds of each part but drafted")
    parser.add_argument("--questions", type=int, default=240, help="questions of drafted")
    parser.add_argument("--at-once", type=int, nargs="+", default=[8, 32], help="requests of load")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0, help="of the ids of prefill")
    parser.add_argument("--json", help="where to write everything that was measured")
    options = parser.parse_args()
    parts = options.what.split(",")
    unknown = [part for part in parts if part not in PARTS]
    if unknown:
        parser.error(f"--what {','.join(unknown)}: give some of {', '.join(PARTS)}")
    bench = Bench(options)
    for part in parts:
        PARTS[part](bench)


if __name__ == "__main__":
    main()
