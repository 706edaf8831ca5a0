"""The engines that are compared, each behind the same few calls.

A server stays up while others are measured: an idle one parks its threads, so that turns can be short. Every
engine gets the same prompts as token ids (mistral.rs takes text), made by Slipstream's tokenizer and
template, and says itself how long its prompt and its tokens took.
"""

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
STARTS = 120


class Answer:
    """What came of one request: tokens, and seconds of the prompt and of the tokens after the first."""

    def __init__(self, tokens, prefill, decode, ids=None):
        self.tokens, self.prefill, self.decode, self.ids = tokens, prefill, decode, ids

    def rate(self):
        """Tokens a second after the first."""
        return (self.tokens - 1) / self.decode


class Server:
    """A server of either kind, and requests to it."""

    def __init__(self, command):
        self.errors = tempfile.TemporaryFile()
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self.errors)
        self.command = command

    def failed(self, why):
        self.errors.seek(0)
        said = self.errors.read().decode(errors="replace")[-2000:]
        return RuntimeError(f"{' '.join(self.command)}: {why}\n{said}")

    def connect(self):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)

    def post(self, path, body, connection=None):
        own = connection or self.connect()
        own.request("POST", path, json.dumps(body), {"content-type": "application/json"})
        response = own.getresponse()
        text = response.read()
        if connection is None:
            own.close()
        if response.status != 200:
            raise self.failed(f"{path}: {response.status} {text[:500]}")
        return json.loads(text)

    def close(self):
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Slipstream(Server):
    """Our own, whose requests say whether they draft."""

    def __init__(self, program, model, threads, running):
        command = [program, "serve", "--port", "0", "--log", "off", "--threads", str(threads)]
        command += ["--max-running", str(running)]
        # The default pair without a file; a file has no drafter.
        command += ["--model", model, "--plain"] if model else []
        super().__init__(command)
        line = self.process.stdout.readline().decode()
        found = re.search(r"http://127\.0\.0\.1:(\d+)", line)
        if not found:
            raise self.failed("does not say where it listens")
        self.port = int(found[1])

    def chat_ids(self, question):
        """A question as the model reads it."""
        body = {"messages": [{"role": "user", "content": question}]}
        return self.post("/tokenize", body)["tokens"]

    def text(self, ids):
        return self.post("/detokenize", {"tokens": ids})["prompt"]

    def generate(self, ids, tokens, connection=None, drafted=False, temperature=0.0, seed=0, go_on=True):
        body = {
            "input_ids": ids,
            "sampling_params": {
                "max_new_tokens": tokens,
                "temperature": temperature,
                "seed": seed,
                "ignore_eos": go_on,
            },
            "speculation": {"enabled": drafted},
        }
        answer = self.post("/generate", body, connection)
        meta = answer["meta_info"]
        first = meta["time_to_first_token"]
        return Answer(
            meta["completion_tokens"], first, meta["e2e_latency"] - first, answer["output_ids"]
        )


class Llama(Server):
    """llama.cpp's server. Its greedy choice is asked for without the filters before it."""

    def __init__(self, folder, model, threads, running, context):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        command = [os.path.join(folder, "llama/bin/llama-server"), "-m", model, "--offline"]
        command += ["--host", "127.0.0.1", "--port", str(self.port), "--no-ui", "-t", str(threads)]
        command += ["-tb", str(threads), "-np", str(running), "-c", str(running * context)]
        super().__init__(command)
        self.process.stdout.close()
        begun = time.monotonic()
        while not self.healthy():
            if self.process.poll() is not None or time.monotonic() - begun > STARTS:
                raise self.failed("does not start")
            time.sleep(0.1)

    def healthy(self):
        try:
            connection = self.connect()
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        except OSError:
            return False

    def generate(self, ids, tokens, connection=None, temperature=0.0, seed=0, go_on=True):
        body = {
            "prompt": ids,
            "n_predict": tokens,
            "temperature": temperature,
            "samplers": ["temperature"],
            "seed": seed,
            "ignore_eos": go_on,
            "cache_prompt": False,
        }
        times = self.post("/completion", body, connection)["timings"]
        return Answer(
            times["predicted_n"], times["prompt_ms"] / 1e3, times["predicted_ms"] / 1e3
        )


class Mistral:
    """mistral.rs, through its Python package. Goes on past nothing: keep the outputs short."""

    def __init__(self, folder, model, threads, tokenizer):
        self.tokenizer = tokenizer
        python = os.path.join(folder, "venv/bin/python")
        environment = dict(os.environ, RAYON_NUM_THREADS=str(threads), HF_HUB_OFFLINE="1")
        self.process = subprocess.Popen(
            [python, os.path.join(HERE, "mistral_worker.py"), model],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            text=True,
        )
        if self.process.stdout.readline().strip() != "{}":
            raise RuntimeError(f"mistral.rs does not load {model}")

    def generate(self, ids, tokens):
        asked = {"prompt": self.tokenizer.text(ids), "tokens": tokens}
        self.process.stdin.write(json.dumps(asked) + "\n")
        self.process.stdin.flush()
        found = json.loads(self.process.stdout.readline())
        return Answer(found["tokens"], found["prefill"], found["decode"])

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def has_mistral(folder):
    python = os.path.join(folder, "venv/bin/python")
    found = subprocess.run([python, "-c", "import mistralrs"], stderr=subprocess.DEVNULL)
    return found.returncode == 0
