"""An HTTP client for many streamed answers at once, in one thread.

A client that is slow, or that has a thread for each stream, would measure itself. This one only
notes what arrived and when; bytes are taken apart after the last has come.
"""

import json
import random
import selectors
import socket
import time

RECEIVE_BYTES = 1 << 16
# Longer than any answer that the sections ask for takes on a busy machine.
SILENCE_MAX_S = 120


class Trouble(Exception):
    """What went wrong, and what to do about it."""


class Exchange:
    """One request and all that came back, with times (time.monotonic)."""

    def __init__(self, address, path, body, headers=()):
        payload = b"" if body is None else json.dumps(body).encode()
        lines = [
            f"{'GET' if body is None else 'POST'} {path} HTTP/1.1",
            f"Host: {address[0]}:{address[1]}",
            "Content-Type: application/json",
            f"Content-Length: {len(payload)}",
            # Its end is then the end of the connection, which is simple to see.
            "Connection: close",
            *(f"{name}: {value}" for name, value in headers),
        ]
        self.pieces = []
        self.broken = None
        self.socket = socket.create_connection(address, timeout=SILENCE_MAX_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sent = time.monotonic()
        self.ended = None
        self.socket.sendall("\r\n".join([*lines, "", ""]).encode() + payload)
        self.socket.setblocking(False)

    def receive(self):
        """Takes what is there; returns whether the exchange is over."""
        try:
            piece = self.socket.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return False
        except OSError as error:
            self.broken, piece = error, b""
        if piece:
            self.pieces.append((time.monotonic(), piece))
            return False
        return True

    def hang_up(self):
        """Closes the connection, whether all has come or not."""
        self.ended = time.monotonic()
        self.socket.close()

    def texts(self):
        """About how many pieces of text have come."""
        # The first event of a chat has an empty text.
        return max(0, sum(piece.count(b'"content":') for _, piece in self.pieces) - 1)

    def answer(self):
        """What came, taken apart."""
        return Answer(self)


class Answer:
    """A response: status, headers, body, and for a stream its events with their times."""

    def __init__(self, exchange):
        self.sent, self.ended, self.broken = exchange.sent, exchange.ended, exchange.broken
        raw = b"".join(piece for _, piece in exchange.pieces)
        head, _, body = raw.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        words = first.split(" ")
        self.status = int(words[1]) if len(words) > 1 and words[1].isdigit() else 0
        pairs = (line.partition(":") for line in lines)
        self.headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
        arrivals = list(arrival_times(exchange.pieces))
        chunked = self.headers.get("transfer-encoding", "").lower() == "chunked"
        parts = chunks(body) if chunked else [(len(body), body)]
        self.events, self.times, self.done = [], [], False
        self.body = b"".join(part for _, part in parts)
        if self.headers.get("content-type", "").startswith("text/event-stream"):
            self.read_events(parts, len(head) + 4, arrivals)

    def read_events(self, parts, head_len, arrivals):
        text, at = b"", 0
        for end, part in parts:
            text += part
            while at < len(arrivals) and arrivals[at][0] < head_len + end:
                at += 1
            when = arrivals[min(at, len(arrivals) - 1)][1]
            *whole, text = text.split(b"\n\n")
            for event in whole:
                if event == b"data: [DONE]":
                    self.done = True
                elif event.startswith(b"data: "):
                    self.events.append(json.loads(event[6:]))
                    self.times.append(when)

    def choices(self):
        for event, when in zip(self.events, self.times):
            for choice in event.get("choices") or []:
                yield choice, when

    @property
    def text(self):
        parts = (choice.get("delta", {}).get("content") or "" for choice, _ in self.choices())
        return "".join(parts)

    @property
    def text_times(self):
        """When each piece of its text came."""
        return [t for choice, t in self.choices() if choice.get("delta", {}).get("content")]

    @property
    def first(self):
        """When its first text came."""
        return next(iter(self.text_times), None)

    @property
    def finish(self):
        reasons = (choice.get("finish_reason") for choice, _ in self.choices())
        return next((reason for reason in reasons if reason), None)

    def of(self, member):
        """The last event's `member` that says something, such as usage or timings."""
        found = (event[member] for event in reversed(self.events) if event.get(member))
        return next(found, {})

    @property
    def tokens(self):
        return self.of("usage").get("completion_tokens", 0)

    def check(self):
        """Raises unless it is a whole answer."""
        if self.status != 200:
            raise Trouble(f"status {self.status}: {self.body[:500].decode(errors='replace')}")
        errors = [event["error"] for event in self.events if "error" in event]
        if errors or self.broken or not (self.done and self.finish):
            raise Trouble(f"an answer broke off: {errors or self.broken or self.body[-300:]}")
        return self


def arrival_times(pieces):
    """For each piece how many bytes had come with it, and when."""
    total = 0
    for when, piece in pieces:
        total += len(piece)
        yield total, when


def chunks(body):
    """The parts of a chunked body, each with where it ended in the body as it was sent."""
    parts, at = [], 0
    while True:
        end = body.find(b"\r\n", at)
        size = int(body[at:end], 16) if end > at else 0
        if size == 0:
            return parts
        start = end + 2
        at = start + size + 2
        parts.append((at - 2, body[start : start + size]))


def converse(address, bodies, path="/v1/chat/completions"):
    """Sends all `bodies` at once; returns their answers in order."""
    exchanges = [Exchange(address, path, body) for body in bodies]
    with selectors.DefaultSelector() as selector:
        for exchange in exchanges:
            selector.register(exchange.socket, selectors.EVENT_READ, exchange)
        while selector.get_map():
            ready = selector.select(SILENCE_MAX_S)
            if not ready:
                raise Trouble(f"{len(selector.get_map())} streams said nothing for "
                              f"{SILENCE_MAX_S} s")
            for key, _ in ready:
                if key.data.receive():
                    selector.unregister(key.fileobj)
                    key.data.hang_up()
    return [exchange.answer() for exchange in exchanges]


def fetch(address, path):
    """One GET."""
    return converse(address, [None], path)[0]


class Crowd:
    """Clients that each ask, hear the answer to its end and ask again; told no, they wait."""

    # A client that is told to come back in a minute would not come back within the test.
    PAUSE_MAX_S = 2

    def __init__(self, address, count, body_of):
        self.address, self.body_of = address, body_of
        self.selector = selectors.DefaultSelector()
        # When each client asks next.
        self.idle = [time.monotonic()] * count

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for exchange in self.present():
            self.leave(exchange)
        self.selector.close()

    def present(self):
        """Exchanges that go on."""
        return [key.data for key in self.selector.get_map().values()]

    def ask(self):
        """Lets those ask whose pause is over; returns their exchanges."""
        now = time.monotonic()
        count = sum(when <= now for when in self.idle)
        self.idle = [when for when in self.idle if when > now]
        asked = []
        for _ in range(count):
            asked.append(Exchange(self.address, "/v1/chat/completions", self.body_of()))
            self.selector.register(asked[-1].socket, selectors.EVENT_READ, asked[-1])
        return asked

    def leave(self, exchange):
        """A client hangs up, and does not come back."""
        self.selector.unregister(exchange.socket)
        exchange.hang_up()

    def turn(self, wait_s):
        """Waits for a moment; yields the answers that are complete."""
        for key, _ in self.selector.select(wait_s):
            if key.data.receive():
                self.leave(key.data)
                answer = key.data.answer()
                after = answer.headers.get("retry-after", "0")
                pause = min(float(after) if after.isdigit() else 1, self.PAUSE_MAX_S)
                # Not all at the same moment.
                pause *= random.uniform(0.5, 1) if answer.status != 200 else 0
                self.idle.append(time.monotonic() + pause)
                yield answer
