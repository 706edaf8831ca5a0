#!/usr/bin/env python3
"""Tables of what figures.sh measured: medians with the least and the most, shares of limits, ratios to peers.

    bench/cuda/figures.py LOGS CONFIG

LOGS is the folder that figures.sh wrote; what is missing there is left out. CONFIG is the config.json of the shape
that was measured. A step's limit is the longer of two times: of its weights, keys and values at the rate at which
the card reads, and of its products at the rate of a large product. Both rates are of the same run.
"""

import json
import os
import re
import statistics
import sys

DRAFTER_LAYERS, BLOCK = 5, 16


def spread(values, digits=0):
    """The median, and the least and the most where there are several."""
    values = list(values)
    middle = f"{statistics.median(values):,.{digits}f}"
    if len(values) == 1:
        return middle
    return f"{middle} ({min(values):,.{digits}f} – {max(values):,.{digits}f})"


def table(heads, rows):
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines) + "\n"


class Folder:
    """The logs."""

    def __init__(self, path):
        self.path = path

    def text(self, name):
        path = os.path.join(self.path, name)
        if not os.path.exists(path):
            return None
        with open(path, encoding="utf-8") as file:
            return file.read()

    def json(self, name):
        text = self.text(name)
        return json.loads(text) if text else None


class Shape:
    """What a step of a model and of a drafter of its size moves and multiplies."""

    def __init__(self, config):
        hidden, dim = config["hidden_size"], config["head_dim"]
        q, kv = (config[f"num_{which}_heads"] * dim for which in ("attention", "key_value"))
        self.layers = config["num_hidden_layers"]
        self.layer = hidden * (2 * q + 2 * kv + 3 * config["intermediate_size"])
        self.head = config["vocab_size"] * hidden
        # Features, and the drafter's keys and values of what is absorbed.
        self.absorb = DRAFTER_LAYERS * hidden * (hidden + 2 * kv)
        # Of a token and layer.
        self.kv_bytes = 2 * kv * 2
        # Operations of a query with a key and a value, in one layer.
        self.attention = 4 * q

    def plain_bytes(self, requests, context):
        """Of a step that is not drafted."""
        weights = 2 * (self.layers * self.layer + self.head)
        return weights + requests * context * self.layers * self.kv_bytes

    def drafted_bytes(self, requests, context):
        weights = 2 * (DRAFTER_LAYERS * self.layer + self.head + self.absorb)
        known = requests * context * DRAFTER_LAYERS * self.kv_bytes
        return self.plain_bytes(requests, context) + weights + known

    def plain_operations(self, rows):
        return 2 * rows * (self.layers * self.layer + self.head)

    def drafted_operations(self, rows, requests):
        """`rows` are those that are verified."""
        drafts = requests * BLOCK * (DRAFTER_LAYERS * self.layer + self.head)
        return self.plain_operations(rows) + 2 * (drafts + rows * self.absorb)

    def prompt_operations(self, tokens):
        """Of a prompt, whose last token alone is chosen after."""
        pairs = tokens * (tokens + 1) / 2
        return 2 * tokens * self.layers * self.layer + pairs * self.layers * self.attention


class Limits:
    """Rates of the card: bytes and operations a second."""

    def __init__(self, folder):
        cycle, peer = folder.text("cycle-qwen3-8b.log"), folder.json("peer.json")
        found = re.search(r"reads at most (\d+) GB/s", cycle or "")
        self.reads = float(found[1]) * 1e9 if found else None
        self.multiplies = (peer or {}).get("matmul_tflops", 0) * 1e12 or None

    def share(self, bytes_read, operations, seconds):
        """How near to its limit a step is, and which limit it is."""
        times = {}
        if self.reads:
            times["reading"] = bytes_read / self.reads
        if self.multiplies:
            times["products"] = operations / self.multiplies
        if not times:
            return "–"
        which = max(times, key=times.get)
        return f"{100 * times[which] / seconds:.0f} % ({which})"

    def lines(self):
        if self.reads:
            yield f"The card reads at most {self.reads / 1e9:,.0f} GB/s"
        if self.multiplies:
            yield f"a large bf16 product gets {self.multiplies / 1e12:,.0f} TFLOP/s"


def grouped(runs, key):
    """Runs by key, in the order of their first ones."""
    groups = {}
    for run in runs:
        groups.setdefault(key(run), []).append(run)
    return groups


def each(runs, *path):
    """A figure of every run."""
    found = []
    for run in runs:
        value = run["figures"]
        for name in path:
            value = value[name] if value is not None else None
        found.append(value)
    return found


def middle(runs, *path):
    """The median of a figure over the runs."""
    return statistics.median(each(runs, *path))


def way(run):
    """plain, drafted, or drafted with the τ that was simulated."""
    simulated = re.match(r"τ ([\d.]+)", run["simulated_acceptance"] or "")
    return f"τ {simulated[1]}" if simulated else run["mode"]


def loads(report, limits=None, shape=None, context=0):
    """A row for each load and way."""
    heads = ["requests at once", "", "tok/s", "÷ plain", "τ reached", "tokens a step", "ms a step"]
    heads += ["of the limit"] if limits else []
    heads += ["first token, ms", "host blocked, ms a step", "launched ahead", "forward lane idle"]
    rows, plain = [], None
    for (open_, how), runs in grouped(report["runs"], lambda r: (r["concurrency"], way(r))).items():
        rates = each(runs, "output_tokens_per_second")
        if how == "plain":
            plain = statistics.median(rates)
        step, tokens = middle(runs, "steps", "cycle_ms", "p50"), middle(runs, "steps", "tokens")
        row = [open_, how, spread(rates), f"{statistics.median(rates) / plain:.2f}" if plain else "–"]
        row += [f"{middle(runs, 'drafting', 'tau'):.2f}", f"{tokens:.0f}", f"{step:.2f}"]
        if limits:
            if how == "plain":
                work = shape.plain_bytes(open_, context), shape.plain_operations(open_)
            else:
                work = shape.drafted_bytes(open_, context), shape.drafted_operations(tokens, open_)
            row.append(limits.share(*work, step / 1e3))
        row += [
            f"{middle(runs, 'ttft_ms', 'p50'):.1f}",
            f"{middle(runs, 'steps', 'blocked_ms', 'land'):.2f}",
            f"{100 * middle(runs, 'steps', 'launched_ahead_share'):.1f} %",
            f"{100 * middle(runs, 'steps', 'device_idle_share'):.2f} %",
        ]
        rows.append(row)
    return table(heads, rows)


def prefill(report, limits, shape):
    """Times to the first token of prompts of each length."""
    lengths = {}
    for run in report["runs"]:
        for request in run["requests"]:
            lengths.setdefault(request["prompt_tokens"], []).append(request["ttft_ms"])
    rows = []
    for tokens, times in lengths.items():
        operations = shape.prompt_operations(tokens)
        bytes_read = shape.plain_bytes(1, 0)
        rate = operations / statistics.median(times) * 1e3 / 1e12
        rows.append([
            f"{tokens:,}",
            spread(times, 1),
            spread([tokens / time * 1e3 for time in times]),
            f"{rate:.0f}",
            limits.share(bytes_read, operations, statistics.median(times) / 1e3),
        ])
    return table(["prompt", "first token, ms", "tok/s", "TFLOP/s", "of the limit"], rows)


def fences(report):
    heads = ["requests at once", "", "fence", "tok/s", "host blocked, ms a step (by the fence)"]
    heads += ["launched ahead", "forward lane idle", "GPU idle"]
    rows = []
    key = lambda r: (r["concurrency"], way(r), r["fence"])
    for (open_, how, fence), runs in grouped(report["runs"], key).items():
        land, own = (middle(runs, "steps", "blocked_ms", place) for place in ("land", "fence"))
        rows.append([
            open_,
            how,
            fence,
            spread(each(runs, "output_tokens_per_second")),
            f"{land + own:.2f} ({own:.2f})",
            f"{100 * middle(runs, 'steps', 'launched_ahead_share'):.1f} %",
            f"{100 * middle(runs, 'steps', 'device_idle_share'):.2f} %",
            spread([100 * share for share in each(runs, "steps", "card_idle_share")], 2) + " %",
        ])
    return table(heads, rows)


def peers(report, peer):
    """Rates of the peers, and ours at one request at once as a multiple of them."""
    ours = {
        how: statistics.median(each(runs, "output_tokens_per_second"))
        for (open_, how), runs in grouped(report["runs"], lambda r: (r["concurrency"], way(r))).items()
        if open_ == 1
    }
    rows = []
    for entry in peer["results"]:
        asked = entry.get("asked")
        how = f"τ {asked:g}" if asked else "plain"
        rate = statistics.median(entry["tokens_per_second"])
        ratio = f"{ours[how] / rate:.2f}" if how in ours else "–"
        tau = f"{entry['tau']:.2f}" if "tau" in entry else "–"
        row = [how, f"{entry['what']}, {entry['how']}", spread(entry["tokens_per_second"], 1)]
        rows.append(row + [spread(entry["step_ms"], 2), tau, ratio])
    heads = ["", "transformers, PyTorch", "tok/s", "ms a step", "τ reached", "Slipstream ÷ it"]
    return table(heads, rows)


def main():
    if len(sys.argv) != 3:
        sys.exit("usage: bench/cuda/figures.py LOGS CONFIG")
    folder = Folder(sys.argv[1])
    with open(sys.argv[2], encoding="utf-8") as file:
        shape = Shape(json.load(file))
    limits = Limits(folder)
    print("; ".join(limits.lines()) + ".\n")
    load, peer = folder.json("load.json"), folder.json("peer.json")
    if load:
        facts = load["load"]
        context = (facts["prompt_tokens"] + facts["max_tokens"] / 2) / facts["requests"]
        print(f"`{load['command']}`\n\n{loads(load, limits, shape, context)}")
        print(f"Outputs of all runs equal: {load['outputs_equal']}.\n")
    # Whose blocks are of several sizes, so that a step has no one limit.
    for told in ("0", "0.55"):
        if report := folder.json(f"steady-{told}.json"):
            print(f"`{report['command']}`\n\n{loads(report)}")
            print(f"Outputs of all runs equal: {report['outputs_equal']}.\n")
    if report := folder.json("prefill.json"):
        print(f"`{report['command']}`\n\n{prefill(report, limits, shape)}")
    if report := folder.json("fences.json"):
        print(f"`{report['command']}`\n\n{fences(report)}")
    for temperature in ("0", "0.7"):
        if report := folder.json(f"pair-{temperature}.json"):
            print(f"`{report['command']}`\n\n{loads(report)}")
            print(f"Outputs of all runs equal: {report['outputs_equal']}.\n")
    if load and peer:
        print(peers(load, peer))


if __name__ == "__main__":
    main()
