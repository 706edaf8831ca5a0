"""Figures of interleaved rounds: medians with their spread, and ratios within the rounds."""

import statistics


class Rounds:
    """Of one quantity: in each round one figure a contender, all higher-is-better."""

    def __init__(self, name, unit):
        self.name, self.unit, self.rounds = name, unit, []

    def add(self, figures):
        self.rounds.append(figures)

    def of(self, who):
        return [figures[who] for figures in self.rounds if who in figures]

    def ratios(self, over, under):
        return [f[over] / f[under] for f in self.rounds if over in f and under in f]

    def lines(self, demands):
        """A table of the contenders, and one line for each (over, under, least) that is demanded; `least`
        is None where nothing is."""
        out = [f"{self.name}, {self.unit}, {len(self.rounds)} rounds: median (least – most)"]
        names = dict.fromkeys(name for figures in self.rounds for name in figures)
        for name in names:
            out.append(f"  {name:<34} {spread(self.of(name), 1)}")
        for over, under, least in demands:
            ratios = self.ratios(over, under)
            if ratios:
                out.append(f"  {over} ÷ {under}: {spread(ratios, 2)}{verdict(ratios, least)}")
        return out

    def json(self, demands):
        ratios = [
            {"over": a, "under": b, "wanted": least, "ratios": self.ratios(a, b)}
            for a, b, least in demands
        ]
        return {"name": self.name, "unit": self.unit, "rounds": self.rounds, "ratios": ratios}


def spread(figures, digits):
    low, middle, high = min(figures), statistics.median(figures), max(figures)
    return f"{middle:.{digits}f} ({low:.{digits}f} – {high:.{digits}f})"


def verdict(ratios, least):
    if least is None:
        return ""
    return f", wanted {least:.3g}: {held(statistics.median(ratios) >= least)}"


def held(whether):
    return "holds" if whether else "FALLS SHORT"
