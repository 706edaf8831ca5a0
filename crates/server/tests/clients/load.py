"""Load and leaks: a crowd of connections and queued requests held open, clients that vanish at random
moments, and a storm of malformed requests beside good ones. Starts a server of its own and looks at its
process from outside: memory, files, threads, requests and KV pages must come back to where they were.

    python3 load.py BINARY [--long]

The short form takes some seconds and is part of the gate; the long one holds 2,000 connections and 500
requests, and lets 200 clients a minute vanish for five minutes."""

import argparse
import asyncio
import json
import os
import random
import re
import resource
import signal
import socket
import struct
import subprocess
import sys
import time

RUNNING = 4
# Small, so that warming up touches all of it: memory grows when a page is used for the first time.
KV_TOKENS = 1024
# What a process may gain that leaks nothing: its allocator keeps what it once had to give.
SLACK_MIB = 24
# Waiting stops here only if something hangs.
LONGEST = 300

SHORT = {"connections": 600, "queued": 200, "hold": 3, "vanish": 60, "vanish_time": 5, "malformed": 400}
LONG = {"connections": 2000, "queued": 500, "hold": 30, "vanish": 1000, "vanish_time": 300, "malformed": 20000}


class Server:
    """The process, and what can be seen of it."""

    def __init__(self, binary, log):
        options = ["--port", "0", "--served-name", "model", "--log", "off"]
        options += ["--max-running", str(RUNNING), "--kv-tokens", str(KV_TOKENS)]
        self.process = subprocess.Popen([binary, "serve", *options], stdout=subprocess.PIPE, stderr=log)
        line = self.process.stdout.readline().decode()
        found = re.fullmatch(r"listening on http://(.*):(\d+)\n", line)
        if not found:
            raise RuntimeError(f"the server did not start: {line!r}")
        self.address = (found[1], int(found[2]))
        self.folder = f"/proc/{self.process.pid}"

    def status(self, field):
        with open(f"{self.folder}/status", encoding="ascii") as status:
            return int(re.search(rf"^{field}:\s+(\d+)", status.read(), re.MULTILINE)[1])

    def memory(self):
        """Resident MiB."""
        return self.status("VmRSS") / 1024

    def threads(self):
        return self.status("Threads")

    def files(self):
        return len(os.listdir(f"{self.folder}/fd"))

    async def send(self, data):
        """A connection that has sent `data`, and nobody reads yet."""
        reader, writer = await asyncio.open_connection(*self.address)
        writer.write(data)
        return reader, writer

    async def ask(self, path, body=None):
        """Status and body of an answer."""
        reader, writer = await self.send(request(path, body))
        answer = await asyncio.wait_for(reader.read(), LONGEST)
        writer.close()
        head, _, rest = answer.partition(b"\r\n\r\n")
        return int(head.split()[1]), rest

    async def load(self):
        """Open requests, and tokens that they hold in KV memory."""
        load = json.loads((await self.ask("/get_load"))[1])[0]
        return load["num_reqs"], load["num_tokens"]

    async def until(self, what, so):
        end = time.monotonic() + LONGEST
        while not await so():
            if time.monotonic() > end:
                raise AssertionError(f"{what} never came true")
            await asyncio.sleep(0.05)

    async def rest(self, files):
        """Waits until nothing is open: no request, no page, no file more than `files`."""

        async def resting():
            return await self.load() == (0, 0) and self.files() <= files + 1

        await self.until("an idle server", resting)


def request(path, body=None):
    data = b"" if body is None else json.dumps(body).encode()
    head = f"{'GET' if body is None else 'POST'} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n"
    if body is not None:
        head += f"content-type: application/json\r\ncontent-length: {len(data)}\r\n"
    return head.encode() + b"\r\n" + data


def completion(tokens, prompt="The sea is", **more):
    sampling = {"max_tokens": tokens, "ignore_eos": True, "temperature": 0.8, "seed": 7}
    return {"prompt": prompt, **sampling, **more}


def check(so, what):
    if not so:
        raise AssertionError(what)


async def warm(server):
    """Uses all of the KV memory once, and every kind of pass."""
    prompts = [[token] * 200 for token in range(1000, 1000 + 2 * KV_TOKENS // 200)]
    answers = await asyncio.gather(
        *(server.ask("/v1/completions", completion(8, prompt)) for prompt in prompts)
    )
    check(all(status == 200 for status, _ in answers), "warming up went well")


async def crowd(server, sizes):
    """Connections and queued requests, held."""
    files, before = server.files(), server.memory()
    body = completion(900, stream=True)
    running = [await server.send(request("/v1/completions", body)) for _ in range(RUNNING)]
    for reader, _ in running:
        await asyncio.wait_for(reader.readuntil(b"data: "), LONGEST)
    queued = []
    for _ in range(sizes["queued"]):
        queued.append(await server.send(request("/v1/completions", completion(900))))
    idle = []
    for _ in range(sizes["connections"] - len(running) - len(queued)):
        idle.append(await server.send(b"GET /health HTTP/1.1\r\n"))

    async def all_there():
        full = (await server.load())[0] == len(running) + len(queued)
        return full and server.files() >= files + sizes["connections"]

    # Requests are small and the answers long: none has ended when the last has come.
    await server.until("a full queue and all connections", all_there)
    held, samples = server.memory(), []
    end = time.monotonic() + sizes["hold"]
    while time.monotonic() < end:
        await asyncio.sleep(0.5)
        status, _ = await server.ask("/health")
        check(status == 200, "others are answered meanwhile")
        samples.append(server.memory())
    for _, writer in running + queued + idle:
        writer.close()
    await server.rest(files)
    print(
        f"crowd: {sizes['connections']} connections, {sizes['queued']} queued requests, held"
        f" {sizes['hold']} s: {before:.1f} MiB before, {held:.1f} with all open,"
        f" {max(samples):.1f} at most while held, {server.memory():.1f} afterwards"
    )
    check(max(samples) <= held + SLACK_MIB / 2, "memory is flat while the crowd is held")


async def vanish(server):
    """One client that hangs up at a random moment, in one of two ways."""
    body = completion(random.randrange(1, 200), stream=random.random() < 0.6)
    data = request(random.choice(["/v1/completions"] * 3 + ["/nowhere"]), body)
    moment = random.choice(["head", "body", "sent", "answer", "answer"])
    cut = {"head": random.randrange(1, 60), "body": len(data) - 10}.get(moment, len(data))
    reader, writer = await server.send(data[:cut])
    if moment == "answer":
        await asyncio.wait_for(reader.read(1), LONGEST)
    await asyncio.sleep(random.random() * 0.3)
    if random.random() < 0.5:
        # A reset instead of a polite end.
        linger = struct.pack("ii", 1, 0)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    writer.transport.abort()


async def vanishing(server, sizes):
    """Clients that vanish, spread over some time."""
    files, before, threads = server.files(), server.memory(), server.threads()
    number, pause = sizes["vanish"], sizes["vanish_time"] / sizes["vanish"]
    clients, peak, begin = [], before, time.monotonic()
    for i in range(number):
        clients.append(asyncio.create_task(vanish(server)))
        await asyncio.sleep(max(0, begin + (i + 1) * pause - time.monotonic()))
        peak = max(peak, server.memory())
    await asyncio.gather(*clients)
    took = time.monotonic() - begin
    await server.rest(files)
    after = server.memory()
    print(
        f"vanishing: {number} clients in {took:.0f} s: memory {before:.1f} MiB before, {peak:.1f} at most,"
        f" {after:.1f} afterwards; files {files} and {server.files()}; threads {threads} and"
        f" {server.threads()}; no request and no KV page left"
    )
    check(after <= before + SLACK_MIB, "memory came back")
    # Beside its own threads the server has at most one a processor that comes and goes.
    check(server.threads() <= threads + os.cpu_count(), "threads came back")


def json_post(data):
    head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {len(data)}\r\n"
    return head.encode() + b"content-type: application/json\r\n\r\n" + data


MALFORMED = [
    b"\x00\x01\x02\xff garbage\r\n\r\n",
    b"GET / HTTP/9.9\r\n\r\n",
    b"GET /\r\n\r\n",
    b"DELETE /v1/models HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n",
    b"GET /nowhere/%ff%00 HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n",
    b"POST /generate HTTP/1.1\r\nhost: x\r\ncontent-length: -1\r\n\r\n",
    b"POST /generate HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
    b"zz\r\nx\r\n0\r\n\r\n",
    b"GET /health HTTP/1.1\r\nhost: x\r\nlong: " + b"a" * 1_000_000 + b"\r\n\r\n",
    json_post(b""),
    json_post(b"{"),
    json_post(b"[1, 2"),
    json_post(b'{"prompt": "\xff\xfe"}'),
    json_post(b"[" * 20_000 + b"]" * 20_000),
    json_post(b'{"prompt": 7}'),
    json_post(b'{"prompt": ""}'),
    json_post(b'{"prompt": "x", "max_tokens": -1}'),
    json_post(b'{"prompt": "x", "temperature": "hot"}'),
    json_post(b'{"prompt": "x", "temperature": 1e400}'),
    json_post(b'{"prompt": "x", "n": 1e9}'),
    json_post(b'{"prompt": [99999999]}'),
    json_post(b'{"prompt": "x", "unknown": 1}'),
    json_post(b'{"prompt": "x", "seed": 1, "seed": "two"}'),
    json_post(b'{"prompt": "x", "stop": [[]]}'),
]


async def malformed(server, data):
    """The status of the answer; none for a connection that was closed without one."""
    try:
        reader, writer = await server.send(data)
        answer = await asyncio.wait_for(reader.read(), LONGEST)
        writer.close()
    except ConnectionError:
        return None
    return int(answer.split()[1]) if answer.startswith(b"HTTP/") else None


async def text(server, seed):
    status, answer = await server.ask("/v1/completions", completion(24, seed=seed))
    check(status == 200, f"a good request is answered: {answer}")
    return json.loads(answer)["choices"][0]["text"]


async def storm(server, sizes):
    """Malformed requests beside good ones, which give the bytes that they give alone."""
    files, before = server.files(), server.memory()
    seeds = range(6)
    alone = [await text(server, seed) for seed in seeds]
    statuses, left, same = {}, iter(range(sizes["malformed"])), 0
    done = asyncio.Event()

    async def blow():
        for i in left:
            status = await malformed(server, MALFORMED[i % len(MALFORMED)])
            statuses[status] = statuses.get(status, 0) + 1

    async def go_on(seed):
        nonlocal same
        while True:
            check(await text(server, seed) == alone[seed], f"the bytes of seed {seed} are the same")
            same += 1
            if done.is_set():
                return

    good = [asyncio.create_task(go_on(seed)) for seed in seeds]
    await asyncio.gather(*(blow() for _ in range(8)))
    done.set()
    await asyncio.gather(*good)
    await server.rest(files)
    counts = ", ".join(f"{status or 'closed'}: {statuses[status]}" for status in sorted(statuses, key=str))
    print(
        f"storm: {sizes['malformed']} malformed requests ({counts}), {same} good ones beside them with the"
        f" bytes that they have alone; memory {before:.1f} MiB before, {server.memory():.1f} afterwards"
    )
    refused = [status for status in statuses if status is not None]
    check(all(400 <= status < 500 for status in refused), f"each is refused as the client's: {counts}")
    check(server.memory() <= before + SLACK_MIB, "memory came back")


async def run(server, sizes):
    await warm(server)
    await crowd(server, sizes)
    # The first ones may still teach the allocator something.
    await vanishing(server, {"vanish": 20, "vanish_time": 1})
    await vanishing(server, sizes)
    await storm(server, sizes)


def main():
    arguments = argparse.ArgumentParser(description="Load and leaks of a server.")
    arguments.add_argument("binary")
    arguments.add_argument("--long", action="store_const", const=LONG, default=SHORT, dest="sizes")
    given = arguments.parse_args()
    # The server inherits the limit, and this side holds as many files.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    need = given.sizes["connections"] + 200
    if most != resource.RLIM_INFINITY and most < need:
        sys.exit(f"{need} files are needed, the system allows {most}: raise `ulimit -Hn`")
    random.seed(1)
    server = Server(given.binary, sys.stderr)
    try:
        asyncio.run(run(server, given.sizes))
        server.process.send_signal(signal.SIGTERM)
        check(server.process.wait(LONGEST) == 0, "the server ends well")
    finally:
        server.process.kill()
    print("load: passed")


if __name__ == "__main__":
    main()
