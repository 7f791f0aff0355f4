"""The sections of benches/serving.py that strain a node: more streams than may be here, and clients
that hang up."""

import collections
import random
import statistics
import time

from .client import Crowd, Trouble, converse
from .sections import Row, Watch, warm_up
from .servers import Node

# A node that has answered each kind of request has taken what it needs; after that it may grow by
# this much, since allocators keep some of what they get.
GROWTH_MAX_PERCENT = 5.0
WARM_UP_SHARE = 0.25
# KV caches so small that what is kept for prompts that come again fills them at once: until then
# memory grows because it may.
LITTLE_MEMORY = ["--ctx", "2048", "--kv-mb", "64"]
SAMPLE_S = 0.5
# How long a node may take to give back what a client held that is gone.
SETTLE_S = 5
HANG_UPS_AT_ONCE = 12
MOMENTS = ["before the first token", "at the first token", "amid the answer"]


def load(bench):
    """More clients than places, all the time; each asks again as soon as it is answered."""
    options = bench.options
    statuses, faults, samples = collections.Counter(), [], []
    dice = random.Random(options.seed)
    texts = [bench.fresh(dice.randrange(20, 200), n) for n in range(40)]

    def body_of():
        return bench.body(dice.choice(texts), dice.choice([8, 16, 32, 48]))

    with Node(options, "--parallel", "16", "--queue", "16", *LITTLE_MEMORY) as node:
        warm_up(node)
        idle = node.rss()
        fill(bench, node, texts)
        with Watch(node) as watch, Crowd(node.address, options.streams, body_of) as crowd:
            end, next_sample = watch.began + options.seconds, watch.began
            last = end + 60
            while time.monotonic() < end or crowd.present():
                now = time.monotonic()
                if now < end:
                    crowd.ask()
                elif now > last:
                    raise Trouble(f"{len(crowd.present())} streams did not end within a minute")
                if now >= next_sample:
                    samples.append((now - watch.began, node.rss()))
                    next_sample += SAMPLE_S
                for answer in crowd.turn(0.05):
                    statuses[answer.status] += 1
                    faults += faults_of(answer)
        after = node.rss()
    warm = [rss for at, rss in samples if at > WARM_UP_SHARE * options.seconds]
    part = max(1, len(warm) // 4)
    early, late = (statistics.median(part_) for part_ in (warm[:part], warm[-part:]))
    growth = 100 * (late - early) / early
    wrong = sum(count for status, count in statuses.items() if status not in (200, 429))
    figures = {
        "streams at once": options.streams, "for, s": options.seconds,
        **{f"status {status}": count for status, count in sorted(statuses.items())},
        "others, cores": round(watch.others, 2),
    }
    for fault in faults[:5]:
        bench.note(f"  load: {fault}")
    megabytes = {name: round(rss / 1e6, 1) for name, rss in
                 [("idle", idle), ("early", early), ("late", late), ("after", after),
                  ("most", max(rss for _, rss in samples))]}
    return [
        Row("load", "streams cut short, other statuses, 429 without Retry-After", figures,
            len(faults) + wrong, 0, True, ""),
        Row("load", "streams that were answered", {}, statuses[200], 1, unit=""),
        Row("load", "growth of resident memory after warming up",
            {f"{name}, MB": value for name, value in megabytes.items()},
            growth, GROWTH_MAX_PERCENT, True, " %"),
    ]


def fill(bench, node, texts):
    """Lets the node keep what it can of `texts`."""
    for first in range(0, len(texts), 8):
        for answer in converse(node.address, [bench.body(t, 2) for t in texts[first : first + 8]]):
            answer.check()


def faults_of(answer):
    """What is wrong with a response under load: nothing, or a line."""
    if answer.status == 200:
        try:
            answer.check()
        except Trouble as trouble:
            return [str(trouble)]
    if answer.status == 429 and not answer.headers.get("retry-after", "").isdigit():
        return ["429 without Retry-After"]
    return []


def disconnects(bench):
    """Clients that hang up at random moments; then what they held must be free."""
    dice = random.Random(bench.options.seed)
    used = "cadencia_engine_kv_used_bytes"
    moments = collections.Counter()
    texts = [bench.fresh(dice.choice([30, 200, 1200]), n) for n in range(24)]
    with Node(bench.options, *LITTLE_MEMORY) as node:
        fill(bench, node, texts)
        before, rss_before = node.metrics(), node.rss()
        with Watch(node) as watch:
            hang_ups(bench, node, dice, texts, moments)
        after, waited = settle(node, used)
        answer = converse(node.address, [bench.body(texts[0], 8)])[0].check()
        rss_after = node.rss()
    figures = {**moments, "then answered, tokens": answer.tokens,
               "RSS before, MB": round(rss_before / 1e6, 1),
               "RSS after, MB": round(rss_after / 1e6, 1), "others, cores": round(watch.others, 2)}
    if used in after:
        figures["kept for prompts, MB"] = round(after["cadencia_engine_kv_kept_bytes"] / 1e6, 1)
        figures["settled after, s"] = round(waited, 2)
        rest = after[used] - before[used]
        return [Row("disconnects", "KV bytes held by nobody", figures, rest, 0, True, "")]
    growth = 100 * (rss_after - rss_before) / rss_before
    return [Row("disconnects", "growth of resident memory (this build has no /metrics)", figures,
                growth, 2 * GROWTH_MAX_PERCENT, True, " %")]


def hang_ups(bench, node, dice, texts, moments):
    """Clients, a dozen at a time, that leave while they wait, at the first token or later."""
    left = bench.options.hang_ups
    leaves = {}
    with Crowd(node.address, 0, lambda: bench.body(dice.choice(texts), 128)) as crowd:
        while left > 0:
            crowd.idle = [0.0] * (min(HANG_UPS_AT_ONCE, left) - len(crowd.present()))
            for exchange in crowd.ask():
                leaves[exchange] = dice.choice(MOMENTS), dice.random()
            for answer in crowd.turn(0.005):
                moments[f"status {answer.status} and complete"] += 1
                left -= 1
            for exchange in crowd.present():
                moment, chance = leaves[exchange]
                if moment_is_here(moment, chance, exchange):
                    crowd.leave(exchange)
                    moments[f"left {moment}"] += 1
                    left -= 1


def moment_is_here(moment, chance, exchange):
    if moment == "before the first token":
        waited = time.monotonic() - exchange.sent
        return waited > 1.5 * chance or exchange.texts() > 0
    return exchange.texts() > (0 if moment == "at the first token" else 4 + 60 * chance)


def settle(node, used):
    """Waits until nothing is held any more; returns (metrics, seconds it took)."""
    began = time.monotonic()
    while True:
        metrics = node.metrics()
        took = time.monotonic() - began
        if metrics.get(used, 0) == 0 or took > SETTLE_S:
            return metrics, took
        time.sleep(0.02)
