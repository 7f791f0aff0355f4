#!/usr/bin/env python3
"""How fast a split model answers: against one node, by the number of stages, by the delay between
nodes, with and without guessing, and how long it stands still when a stage is killed.

    benches/hive.py --binary target/release/cadencia --model models/SOME.gguf [--quick]

All nodes are processes of this machine and share its cores, so compute is never in parallel: what is
seen is what passing rows costs. Delays are made by small UDP proxies before each node's lanes. Rounds
of one node and of hives take turns; medians and ranges are printed. Needs nothing beyond Python's
standard library.
"""

import argparse
import heapq
import http.client
import json
import os
import re
import selectors
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "scripts"))
import child

READY_WITHIN_S = 120
ANSWER_WITHIN_S = 300
PROMPT = "Tell me a long story about a lighthouse keeper who collects the names of ships."
TOKENS = 128


class Proxy:
    """Passes datagrams to `target` and back, each `delay` seconds later."""

    def __init__(self, target, delay):
        self.target, self.delay = target, delay
        self.front = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.front.bind(("127.0.0.1", 0))
        self.address = self.front.getsockname()
        self.ways = {}
        self.queue = []
        self.count = 0
        self.selector = selectors.DefaultSelector()
        self.front.setblocking(False)
        self.selector.register(self.front, selectors.EVENT_READ, None)
        self.over = False
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def way(self, client):
        if client not in self.ways:
            back = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            back.connect(self.target)
            back.setblocking(False)
            self.ways[client] = back
            self.selector.register(back, selectors.EVENT_READ, client)
        return self.ways[client]

    def run(self):
        while not self.over:
            now = time.monotonic()
            while self.queue and self.queue[0][0] <= now:
                _, _, sock, to, data = heapq.heappop(self.queue)
                try:
                    sock.sendto(data, to) if to else sock.send(data)
                except OSError:
                    pass
            wait = max(self.queue[0][0] - time.monotonic(), 0) if self.queue else 0.2
            for key, _ in self.selector.select(wait):
                self.take(key.fileobj, key.data)

    def take(self, sock, client):
        while True:
            try:
                data, origin = sock.recvfrom(65536)
            except OSError:
                return
            if client is None:
                item = (self.way(origin), None)
            else:
                item = (self.front, client)
            self.count += 1
            heapq.heappush(self.queue, (time.monotonic() + self.delay, self.count, *item, data))

    def stop(self):
        self.over = True
        self.thread.join()


class Node:
    """A running node."""

    def __init__(self, binary, flags):
        self.home = tempfile.TemporaryDirectory(prefix="cadencia-hive-bench-")
        state = os.path.join(self.home.name, "state")
        command = [binary, "up", "--api", "127.0.0.1:0", "--state-dir", state, *flags]
        self.process = subprocess.Popen(
            command, env=child.surroundings(self.home.name), stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
            start_new_session=True)
        self.lines = []
        self.changed = threading.Condition()
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self):
        for line in self.process.stdout:
            with self.changed:
                self.lines.append(line.rstrip())
                self.changed.notify_all()

    def wait_for(self, pattern):
        end = time.monotonic() + READY_WITHIN_S
        seen = 0
        with self.changed:
            while True:
                for line in self.lines[seen:]:
                    found = re.search(pattern, line)
                    if found:
                        return found
                seen = len(self.lines)
                left = end - time.monotonic()
                if left <= 0 or self.process.poll() is not None:
                    said = "\n".join(self.lines[-20:])
                    sys.exit(f"no line with {pattern!r}; a node said:\n{said}")
                self.changed.wait(min(left, 1))

    def api(self):
        found = self.wait_for(r"listening on http://([^/\s]+):(\d+)")
        return found.group(1), int(found.group(2))

    def stop(self):
        child.stop(self.process, 10)
        self.reader.join(10)
        self.home.cleanup()


def free_port():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Hive:
    """A requester and `stages` others, whose lanes are `delay` seconds away, each way."""

    def __init__(self, arguments, stages, delay=0.0, spares=0, guessing="off"):
        self.nodes, self.proxies = [], []
        hive = ["--mdns", "false", "--threads", str(arguments.threads)]
        seeds = []
        for _ in range(stages):
            flags = ["--listen", "127.0.0.1:0", "--lend-mb", "600", *hive, *self.lanes(delay)]
            for seed in seeds[:1]:
                flags += ["--join", seed]
            node = Node(arguments.binary, flags)
            self.nodes.append(node)
            seeds.append(node.wait_for(r"address=(/ip4/127.0.0.1/udp/\d+/quic-v1)").group(1))
        # The same number of layers everywhere; a layer is two half-blocks.
        cuts = [2 * (n * arguments.layers // (stages + 1)) for n in range(1, stages + 1)]
        flags = ["--model", arguments.model, "--listen", "127.0.0.1:0", "--lend-mb", "0", *hive,
                 "--cuts", ",".join(map(str, cuts)), "--spares", str(spares), "--guessing", guessing, *self.lanes(delay)]
        for seed in seeds:
            flags += ["--join", seed]
        self.nodes.append(Node(arguments.binary, flags))
        self.api = self.nodes[-1].api()
        connection = http.client.HTTPConnection(*self.api, timeout=ANSWER_WITHIN_S)
        connection.request("GET", "/v1/hive")
        found = json.loads(connection.getresponse().read())["hive"]["models"][0]["plan"]["stages"]
        connection.close()
        if len({stage["node"] for stage in found}) != stages:
            sys.exit(f"the route takes other nodes than the {stages} that are there: {found}")

    def lanes(self, delay):
        if not delay:
            return []
        port = free_port()
        proxy = Proxy(("127.0.0.1", port), delay)
        self.proxies.append(proxy)
        return ["--lanes", f"127.0.0.1:{port}", "--lanes-at", "%s:%d" % proxy.address]

    def stop(self):
        for node in reversed(self.nodes):
            node.stop()
        for proxy in self.proxies:
            proxy.stop()


def ask(api, prompt=PROMPT, tokens=TOKENS):
    """(text, tokens a second while the answer grows, seconds to the first token, in all)."""
    body = {"messages": [{"role": "user", "content": prompt}], "max_tokens": tokens,
            "temperature": 0, "ignore_eos": True}
    connection = http.client.HTTPConnection(*api, timeout=ANSWER_WITHIN_S)
    start = time.monotonic()
    connection.request("POST", "/v1/chat/completions", json.dumps(body),
                       {"Content-Type": "application/json"})
    response = connection.getresponse()
    answer = json.loads(response.read())
    whole = time.monotonic() - start
    if response.status != 200:
        sys.exit(f"a node answered {response.status}: {answer}")
    connection.close()
    timings = answer["timings"]
    text = answer["choices"][0]["message"]["content"]
    return text, timings["predicted_per_second"], timings["prompt_ms"] / 1e3, whole


def spread(numbers, digits=1):
    middle = statistics.median(numbers)
    return f"{middle:.{digits}f} [{min(numbers):.{digits}f}, {max(numbers):.{digits}f}]"


def against_one(arguments, expected, solo):
    print("\nstages | tok/s | share of one node | us a hop beyond compute")
    for stages in (1, 2, 3):
        hive = Hive(arguments, stages)
        ask(hive.api)
        rates, shares, hops = [], [], []
        for _ in range(arguments.rounds):
            _, alone, *_ = ask(solo)
            text, rate, *_ = ask(hive.api)
            if text != expected:
                sys.exit("the answers differ, which must never be")
            rates.append(rate)
            shares.append(rate / alone)
            hops.append((1e6 / rate - 1e6 / alone) / (stages + 1))
        print(f"{stages + 1} | {spread(rates)} | {spread(shares, 2)} | {spread(hops, 0)}", flush=True)
        hive.stop()


def by_delay(arguments, expected, alone):
    print("\nnodes | one-way delay, ms | tok/s without guesses | with | bound of direct forwarding")
    compute = 1 / alone
    for stages in (1, 3):
        for delay in (0, 5, 20, 50):
            rates = []
            for guessing in ("off", "on"):
                hive = Hive(arguments, stages, delay / 1e3, guessing=guessing)
                text, rate, *_ = ask(hive.api, tokens=64)
                if not expected.startswith(text):
                    sys.exit("the answers differ, which must never be")
                rates.append(rate)
                hive.stop()
            bound = 1 / (compute + (stages + 1) * delay / 1e3)
            print(f"{stages + 1} | {delay} | {rates[0]:.1f} | {rates[1]:.1f} | {bound:.1f}", flush=True)


def short(arguments):
    hive = Hive(arguments, 3)
    words = " ".join(f"word{n}" for n in range(12))
    ask(hive.api)
    times = [ask(hive.api, f"{n} {words}", 32)[3] for n in range(5)]
    print(f"\n4 nodes, about 64 tokens of prompt, 32 of answer: {spread(times, 2)} s", flush=True)
    hive.stop()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--binary", default="target/release/cadencia")
    parser.add_argument("--model", required=True)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--layers", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="no table of delays")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    one = Node(arguments.binary, ["--model", arguments.model, "--guessing", "off",
                                  "--threads", str(arguments.threads)])
    solo = one.api()
    expected, alone, *_ = ask(solo)
    print(f"{os.path.basename(arguments.model)}, {arguments.threads} threads a node, loopback")
    against_one(arguments, expected, solo)
    short(arguments)
    if not arguments.quick:
        by_delay(arguments, expected, ask(solo)[1])
    one.stop()


if __name__ == "__main__":
    main()
