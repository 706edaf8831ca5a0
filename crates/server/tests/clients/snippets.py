"""Runs every piece of code of the guide against a running server, so that none of them is wrong:

    python3 snippets.py FOLDER PAGE…

Pieces in `sh`, `python` and `js` of the pages named are run in FOLDER, where Node finds its packages; each
must end well and say something. What the guide says of the server (address, key, model) is replaced by what
it is here."""

import os
import re
import subprocess
import sys
from pathlib import Path

REPLACED = {
    "http://127.0.0.1:8080": os.environ["SLIPSTREAM_URL"],
    '"none"': '"sk-suite"',
    "Bearer none": "Bearer sk-suite",
    "smollm2-135m-instruct": "smollm2",
}
# The guide's server has no key: curl gets ours here, and fails where the server refuses.
CURL = "curl() { command curl --silent --show-error --fail -H 'authorization: Bearer sk-suite' \"$@\"; }\n"

KINDS = {
    "sh": (".sh", ["bash", "-eu"], CURL),
    "python": (".py", [sys.executable], ""),
    "js": (".mjs", ["node"], ""),
}


def pieces(page):
    """Kind, first line and text of each piece of code that runs."""
    text = page.read_text(encoding="utf-8")
    for found in re.finditer(r"^```(\w+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        if found[1] in KINDS:
            yield found[1], text.count("\n", 0, found.start()) + 2, found[2]


def run(folder, name, kind, text):
    """What is wrong with a piece; nothing when it ran and said something."""
    for old, new in REPLACED.items():
        text = text.replace(old, new)
    ending, command, prelude = KINDS[kind]
    file = folder / f"snippet{ending}"
    file.write_text(prelude + text, encoding="utf-8")
    try:
        done = subprocess.run([*command, file], cwd=folder, capture_output=True, text=True, timeout=300)
    except subprocess.TimeoutExpired:
        return f"{name} does not end; has it a bound on the answer's length?"
    if done.returncode != 0:
        return f"{name} ends with code {done.returncode}:\n{done.stdout}{done.stderr}"
    if not done.stdout.strip():
        return f"{name} says nothing"
    return None


def main():
    folder, counts, problems = Path(sys.argv[1]), {}, []
    for page in map(Path, sys.argv[2:]):
        for kind, line, text in pieces(page):
            counts[kind] = counts.get(kind, 0) + 1
            problem = run(folder, f"{page.name}:{line}", kind, text)
            if problem:
                problems.append(problem)
    for problem in problems:
        print(problem, file=sys.stderr)
    missing = KINDS.keys() - counts.keys()
    if problems or missing:
        sys.exit(f"the guide: {len(problems)} pieces fail; kinds without a piece: {sorted(missing)}")
    print("the guide: every piece runs:", ", ".join(f"{counts[kind]} {kind}" for kind in sorted(counts)))


if __name__ == "__main__":
    main()
