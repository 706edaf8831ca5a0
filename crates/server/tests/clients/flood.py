"""Crowds of connections, clients that vanish, and SIGTERM under load; run.sh starts the server with
few descriptors to give and says which process it is. The last test ends the server."""

import json
import os
import random
import resource
import signal
import socket
import threading
import time
import unittest
import urllib.error
import urllib.request
from urllib.parse import urlparse

BASE = os.environ["SLIPSTREAM_URL"]
ADDRESS = (urlparse(BASE).hostname, urlparse(BASE).port)
CROWD = 5000
VANISHING = 2000
# Where the end of a connection is lost on the way, the time for its head ends it, after a handshake that
# may be repeated for a minute. Waiting stops here only if something hangs.
LONGEST = 300


def ask(path, body=None, timeout=120):
    headers = {"authorization": "Bearer sk-suite", "content-type": "application/json"}
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(BASE + path, data, headers)
    with urllib.request.urlopen(request, timeout=timeout) as answer:
        return answer.read().decode()


def ask_until(path, body=None):
    """Asks again while the server has no place."""
    end = time.monotonic() + LONGEST
    while True:
        try:
            return ask(path, body)
        except (urllib.error.URLError, ConnectionError):
            if time.monotonic() > end:
                raise
            time.sleep(0.2)


def send(body):
    """A request whose answer nobody waits for yet."""
    data = json.dumps(body).encode()
    head = (
        "POST /v1/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer sk-suite\r\n"
        f"content-type: application/json\r\nconnection: close\r\ncontent-length: {len(data)}\r\n\r\n"
    )
    connection = socket.create_connection(ADDRESS, timeout=120)
    connection.sendall(head.encode() + data)
    return connection


def completion(tokens, **more):
    return {"prompt": "The sea is", "max_tokens": tokens, "ignore_eos": True, **more}


def descriptors():
    """Open files of the server."""
    return len(os.listdir(f"/proc/{os.environ['SLIPSTREAM_PID']}/fd"))


class Flood(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        if most != resource.RLIM_INFINITY and most < CROWD + 100:
            raise RuntimeError(f"the test opens {CROWD} sockets, the system allows {most}")

    def test_1_crowds_do_not_keep_others_out(self):
        before, crowd = descriptors(), []
        for number in range(CROWD):
            connection = socket.socket()
            connection.setblocking(False)
            connection.connect_ex(ADDRESS)
            crowd.append(connection)
            if number % 1000 == 999:
                self.assertIn("ok", ask_until("/health"))
        for connection in crowd:
            connection.close()
        self.assertIn("choices", ask_until("/v1/completions", completion(2)))
        end = time.monotonic() + LONGEST
        while descriptors() > before:
            self.assertLess(time.monotonic(), end, "sockets of the crowd are still open")
            time.sleep(0.1)

    def test_2_clients_that_vanish_leave_nothing(self):
        random.seed(1)

        def vanish():
            for _ in range(VANISHING // 8):
                connection = send(completion(400, stream=random.random() < 0.5))
                time.sleep(random.random() * 0.05)
                connection.close()

        threads = [threading.Thread(target=vanish) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        end = time.monotonic() + LONGEST
        while any(json.loads(ask("/get_load"))[0][key] for key in ("num_reqs", "num_tokens")):
            self.assertLess(time.monotonic(), end, "requests of vanished clients run on")
            time.sleep(0.1)
        self.assertIn("choices", ask("/v1/completions", completion(2)))

    def test_3_sigterm_finishes_what_is_open(self):
        streams = [send(completion(60, stream=True)) for _ in range(24)]
        # Each has been taken once its head has come.
        heads = [stream.recv(4096) for stream in streams]
        os.kill(int(os.environ["SLIPSTREAM_PID"]), signal.SIGTERM)
        for stream, answer in zip(streams, heads):
            while part := stream.recv(1 << 16):
                answer += part
            stream.close()
            self.assertIn(b"HTTP/1.1 200", answer)
            self.assertIn(b'"finish_reason":"length"', answer)
            self.assertIn(b"data: [DONE]", answer)


if __name__ == "__main__":
    unittest.main()
