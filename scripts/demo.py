#!/usr/bin/env python3
"""Asks one node, then a hive of four over which the same model is split, and kills a node of the
hive in the middle of its answer: both answers must be the same.

    scripts/demo.py --binary target/release/cadencia --model models/SOME.gguf [--prompt TEXT]

Needs nothing beyond Python's standard library. Settings of the user who runs it (config file,
CADENCIA_ variables) are kept out, so the demo is the same everywhere.
"""

import argparse
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time

import child

READY_WITHIN_S = 120
ANSWER_WITHIN_S = 120
STOP_WITHIN_S = 10
LOG_LINES_MAX = 40
NODES = 4
# Pieces of the answer after which a node is killed.
AMID = 20


class Trouble(Exception):
    """What went wrong, and what to do about it."""


class Node:
    """A running `cadencia`, one node or a hive; stopped however the block ends."""

    def __init__(self, binary, model, words):
        self.home = tempfile.TemporaryDirectory(prefix="cadencia-demo-")
        command = [binary, *words, "--model", model, "--api", "127.0.0.1:0"]
        self.started = time.monotonic()
        self.process = subprocess.Popen(
            command,
            env=child.surroundings(self.home.name),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            # Ctrl-C must reach the demo alone, which then stops the node itself.
            start_new_session=True,
        )
        self.log = []
        self.line = None
        self.changed = threading.Event()
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        child.stop(self.process, STOP_WITHIN_S)
        self.reader.join(STOP_WITHIN_S)
        self.home.cleanup()

    def read(self):
        """Follows the node's output to its end, so that a full pipe never stops the node."""
        for line in self.process.stdout:
            line = line.rstrip()
            self.log = (self.log + [line])[-LOG_LINES_MAX:]
            if self.line is None and "listening on http://" in line:
                self.line = line
                self.changed.set()
        self.changed.set()

    def address(self):
        """Waits for the line that says where it listens; returns (host, port)."""
        self.changed.wait(READY_WITHIN_S)
        if self.line is None:
            raise Trouble("the node did not come up; it said:\n" + self.said())
        host, port = re.search(r"listening on http://([^/\s]+):(\d+)", self.line).groups()
        return host, int(port)

    def said(self):
        return "\n".join("  " + line for line in self.log) or "  (nothing)"


def wait_ready(node, address):
    """Returns seconds from start to the first 200 of /ready."""
    deadline = node.started + READY_WITHIN_S
    while time.monotonic() < deadline:
        if node.process.poll() is not None:
            raise Trouble(f"the node ended with {node.process.returncode}; it said:\n{node.said()}")
        connection = http.client.HTTPConnection(*address, timeout=5)
        try:
            connection.request("GET", "/ready")
            if connection.getresponse().status == 200:
                return time.monotonic() - node.started
        except OSError:
            pass
        finally:
            connection.close()
        time.sleep(0.05)
    raise Trouble(f"/ready was not 200 within {READY_WITHIN_S} s; the node said:\n{node.said()}")


def events(response):
    """The JSON objects of a server-sent event stream, up to [DONE]."""
    for line in response:
        line = line.decode("utf-8").strip()
        if line == "data: [DONE]":
            return
        if line.startswith("data: "):
            yield json.loads(line[len("data: ") :])
    raise Trouble("the answer broke off before [DONE]")


def ask(address, prompt, tokens_max, amid=None):
    """Streams the answer to stdout; returns (text, tokens, seconds to the first, seconds after it).
    `amid` is called once, after some of the answer."""
    body = {
        "messages": [{"role": "user", "content": prompt}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": tokens_max,
        "temperature": 0,
    }
    connection = http.client.HTTPConnection(*address, timeout=ANSWER_WITHIN_S)
    asked = time.monotonic()
    headers = {"Content-Type": "application/json"}
    connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
    response = connection.getresponse()
    if response.status != 200:
        raise Trouble(f"the node answered {response.status}: {response.read(2000).decode()}")
    first = last = None
    text_all = ""
    pieces = tokens = 0
    for event in events(response):
        if "error" in event:
            raise Trouble(f"the node broke off: {event['error']}")
        for choice in event.get("choices", []):
            text = choice.get("delta", {}).get("content")
            if text:
                last = time.monotonic()
                first = first or last
                pieces += 1
                text_all += text
                print(text, end="", flush=True)
                if amid and pieces == AMID:
                    amid()
        tokens = (event.get("usage") or {}).get("completion_tokens", tokens)
    print()
    connection.close()
    if first is None:
        raise Trouble("the answer was empty")
    return text_all, tokens or pieces, first - asked, last - first


def timings(node, model, tokens, first_s, rest_s, ready_s):
    threads = re.search(r"(\d+) threads?", node.line)
    parts = [
        f"{tokens} tokens",
        f"{(tokens - 1) / rest_s:.1f} tok/s" if tokens > 1 and rest_s > 0 else None,
        f"first token after {first_s * 1e3:.0f} ms",
        threads.group(0) if threads else None,
        os.path.basename(model),
        f"ready {ready_s:.1f} s after start",
    ]
    return "[" + ", ".join(part for part in parts if part) + "]"


def run(arguments):
    for path, fix in ((arguments.binary, "cargo build --release"),
                      (arguments.model, "scripts/fetch-models.sh")):
        if not os.path.isfile(path):
            raise Trouble(f"{path} is missing; make it with: {fix}")
    print(f"> {arguments.prompt}\n\n-- one node --", flush=True)
    with Node(arguments.binary, arguments.model, ["up"]) as node:
        alone = answer_of(node, arguments)
    print(f"\n-- a hive of {NODES}, one of which is killed amid the answer --", flush=True)
    with Node(arguments.binary, arguments.model, ["hive", "--nodes", str(NODES)]) as hive:
        split = answer_of(hive, arguments, lambda: kill_one(hive))
    if split != alone:
        raise Trouble("the two answers differ, which must never be; please report this")
    print("\nThe hive's answer is that of one node, to the letter.")


def answer_of(node, arguments, amid=None):
    address = node.address()
    ready_s = wait_ready(node, address)
    print(f"{node.line}\n", flush=True)
    text, *answer = ask(address, arguments.prompt, arguments.tokens, amid)
    print("\n" + timings(node, arguments.model, *answer, ready_s), flush=True)
    return text


def kill_one(hive):
    """Kills the last of the hive's nodes, which computes layers for the first."""
    children = sorted(child.children(hive.process.pid))
    if len(children) < NODES:
        raise Trouble(f"{len(children)} of {NODES} nodes run; the hive said:\n{hive.said()}")
    # The first that was started is the one with the API, or the one that the others joined by.
    victim = children[1]
    os.kill(victim, signal.SIGKILL)
    print(f" [node {victim} killed] ", end="", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--binary", default="target/release/cadencia")
    parser.add_argument("--model", required=True)
    parser.add_argument("--prompt", default="What is the capital of France, and why is it famous?")
    parser.add_argument("--tokens", type=int, default=160, help="of the answer, at most")
    # An ordinary kill unwinds as Ctrl-C does, so that the node never outlives the demo.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        run(parser.parse_args())
    except Trouble as trouble:
        sys.exit(f"demo: {trouble}")
    except KeyboardInterrupt:
        sys.exit("demo: stopped")
    except OSError as error:
        sys.exit(f"demo: {error}")


if __name__ == "__main__":
    main()
