"""mistral.rs behind a pipe: a line {"prompt": …, "tokens": n} gives a line {"tokens": …, "prefill": seconds,
"decode": seconds}. The first line out is {} once the model is loaded.

    venv/bin/python bench/peers/mistral_worker.py MODEL.gguf
"""

import json
import os
import sys

from mistralrs import CompletionRequest, Runner, Which


def main():
    # What the library prints must not come between the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    folder, name = os.path.split(os.path.abspath(sys.argv[1]))
    runner = Runner(which=Which.GGUF(quantized_model_id=folder, quantized_filename=name))
    print("{}", file=answers, flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        request = CompletionRequest(
            model="default", prompt=asked["prompt"], max_tokens=asked["tokens"], temperature=0.0
        )
        usage = runner.send_completion_request(request).usage
        answer = {
            "prompt": usage.prompt_tokens,
            "tokens": usage.completion_tokens,
            "prefill": usage.total_prompt_time_sec,
            "decode": usage.total_completion_time_sec,
        }
        print(json.dumps(answer), file=answers, flush=True)


main()
