#!/usr/bin/env python3
"""A tokenizer with as many tokens as a model's vocabulary has, for random weights: what is chosen, and drafted, is
chosen among as many as with the model itself.

    bench/cuda/tokenizer_of.py MODEL CONFIG FOLDER

MODEL is a folder with a tokenizer.json of fewer tokens, CONFIG the config.json of the model's shape; FOLDER becomes a
copy of MODEL with tokens that no text has.
"""

import json
import shutil
import sys


def main():
    if len(sys.argv) != 4:
        sys.exit("usage: bench/cuda/tokenizer_of.py MODEL CONFIG FOLDER")
    model, config, folder = sys.argv[1:]
    with open(config, encoding="utf-8") as file:
        size = json.load(file)["vocab_size"]
    shutil.copytree(model, folder, dirs_exist_ok=True)
    path = f"{folder}/config.json"
    with open(path, encoding="utf-8") as file:
        own = json.load(file)
    with open(path, "w", encoding="utf-8") as file:
        json.dump({**own, "vocab_size": size}, file)
    path = f"{folder}/tokenizer.json"
    with open(path, encoding="utf-8") as file:
        tokenizer = json.load(file)
    vocab = tokenizer["model"]["vocab"]
    known = {*vocab.values(), *(token["id"] for token in tokenizer["added_tokens"])}
    for id in range(size):
        if id not in known:
            # The first letter is one that the bytes of a text never become.
            vocab[f"\u2603{id}"] = id
    with open(path, "w", encoding="utf-8") as file:
        json.dump(tokenizer, file, ensure_ascii=False)


if __name__ == "__main__":
    main()
