"""The sections of benches/serving.py that measure speed. Each returns rows for the table."""

import contextlib
import json
import os
import random
import statistics
import subprocess
import sys
import time

from . import prompts
from .client import Trouble, converse
from .servers import LlamaServer, Node, llama_server

USERS = 8
ANSWER_TOKENS = 128
PREFIX_TOKENS = 4_000
# Names that families of models give to the tokens that end a turn or a text.
END_NAMES = ["<|im_end|>", "<|endoftext|>", "<end_of_turn>", "<eos>", "</s>", "<|eot_id|>",
             "<|end_of_text|>"]
# Shared pages and drafts aside, a request for a model's first words; wakes threads and caches.
WARM_UP = "Say hello."


class Row:
    """A line of the table: what was measured, and how it stands to its goal."""

    def __init__(self, section, title, figures, value=None, goal=None, at_most=False, unit="x"):
        self.section, self.title, self.figures = section, title, figures
        self.value, self.goal, self.at_most, self.unit = value, goal, at_most, unit

    @property
    def missed(self):
        if self.goal is None:
            return False
        return self.value > self.goal if self.at_most else self.value < self.goal

    def json(self):
        return {**vars(self), "missed": self.missed}


class Watch:
    """Time and the cores that other work took meanwhile, `servers` and this process apart."""

    def __init__(self, *servers):
        self.servers = servers

    def __enter__(self):
        self.load = os.getloadavg()[0]
        self.before = self.used()
        self.began = time.monotonic()
        return self

    def __exit__(self, *_):
        self.wall_s = time.monotonic() - self.began
        busy, own = (now - then for now, then in zip(self.used(), self.before))
        self.others = max(0.0, (busy - own) / self.wall_s)

    def used(self):
        own = sum(os.times()[:2]) + sum(server.cpu_s() for server in self.servers)
        try:
            with open("/proc/stat", encoding="ascii") as stat:
                # user nice system idle iowait irq softirq steal
                ticks = [int(n) for n in stat.readline().split()[1:9]]
        except OSError:
            return own, own
        return (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK"), own


class Bench:
    """What all sections need: options, a way to count tokens, and how to ask for long answers."""

    def __init__(self, options):
        self.options = options
        self.seeds = random.Random(options.seed)
        self.never_ends = None

    def count(self, text):
        return len(self.tokenize(text))

    def tokenize(self, text, *flags):
        command = [self.options.binary, "tokenize", "--model", self.options.model, *flags]
        done = subprocess.run([*map(str, command)], input=text, text=True, check=True,
                              stdout=subprocess.PIPE)
        return json.loads(done.stdout)

    def fresh(self, tokens, question=0):
        """A question of about `tokens` tokens that nobody has asked before."""
        seed = self.seeds.randrange(1 << 30)
        ask = prompts.QUESTIONS[question % len(prompts.QUESTIONS)]
        return prompts.of_length(self.count, tokens, seed, ask)

    def body(self, prompt, tokens=ANSWER_TOKENS, system=None, **more):
        messages = [{"role": "system", "content": system}] if system else []
        messages.append({"role": "user", "content": prompt})
        return {"messages": messages, "max_tokens": tokens, "temperature": 0, "stream": True,
                "stream_options": {"include_usage": True}, **more}

    def endless(self, node):
        """Fields that keep `node` from ending an answer early."""
        if self.never_ends is None:
            self.never_ends = {"ignore_eos": True}
            probe = self.body(WARM_UP, 1, **self.never_ends)
            if converse(node.address, [probe])[0].status == 400:
                ids = (self.tokenize(name, "--special") for name in END_NAMES)
                ends = {str(found[0]): -100 for found in ids if len(found) == 1}
                self.never_ends = {"logit_bias": ends}
        return self.never_ends

    def note(self, text):
        print(text, file=sys.stderr, flush=True)


def ask_all(server, bodies):
    """Asks all at once; returns (answers, tokens per second from the first byte to the last)."""
    answers = [answer.check() for answer in converse(server.address, bodies)]
    took = max(a.ended for a in answers) - min(a.sent for a in answers)
    return answers, sum(a.tokens for a in answers) / took


def together_tps(answers):
    """Tokens per second while all of `answers` grow: prompts are read by then."""
    times = [answer.text_times for answer in answers]
    begin, end = max(t[0] for t in times), min(t[-1] for t in times)
    tokens = sum(
        # Of an answer's tokens each piece of text has about an equal share.
        answer.tokens / len(own) * sum(begin < when <= end for when in own)
        for answer, own in zip(answers, times))
    return tokens / (end - begin) if end > begin else 0.0


def warm_up(server):
    body = {"messages": [{"role": "user", "content": WARM_UP}], "max_tokens": 4, "stream": True}
    converse(server.address, [body])[0].check()


def spread(values):
    return f"[{min(values):.2f}, {max(values):.2f}]"


def drafts(before, after):
    """What came of guessing between two looks at the metrics."""
    names = [f"cadencia_engine_{name}_tokens_total" for name in ("drafted", "accepted")]
    if names[0] not in after:
        return "not told by this build"
    drafted, accepted = (after[name] - before.get(name, 0) for name in names)
    return f"{accepted:.0f} of {drafted:.0f} accepted"


def users(bench):
    """Many users' tokens per second against one user's."""
    rounds = []
    with Node(bench.options) as node:
        warm_up(node)
        more = bench.endless(node)
        before = node.metrics()
        for number in range(bench.options.rounds):
            one = [bench.body(bench.fresh(prompts.MIX[i], i), **more) for i in prompts.AVERAGE]
            all_ = [bench.body(bench.fresh(n, i), **more) for i, n in enumerate(prompts.MIX)]
            tps = {}
            with Watch(node) as watch:
                # The order turns, so that neither is always the one on a warmer machine.
                for who in ("one", "all") if number % 2 == 0 else ("all", "one"):
                    if who == "all":
                        answers, tps[who] = ask_all(node, all_)
                    else:
                        alone = [ask_all(node, [body])[0][0] for body in one]
                        tps[who] = (sum(a.tokens for a in alone)
                                    / sum(a.ended - a.sent for a in alone))
            first = statistics.median(a.first - a.sent for a in answers)
            growing = statistics.median(together_tps([a]) for a in alone), together_tps(answers)
            rounds.append((tps["one"], tps["all"], tps["all"] / tps["one"], first, growing, watch))
            bench.note(f"  users, round {number + 1}: one {tps['one']:.1f}, {USERS} "
                       f"{tps['all']:.1f} tok/s, {rounds[-1][2]:.2f}x "
                       f"(others {watch.others:.2f} cores, load {watch.load:.1f})")
        guessed = drafts(before, node.metrics())
    one, many, ratios, firsts, growing, watches = zip(*rounds)
    one_grows, many_grow = (statistics.median(each) for each in zip(*growing))
    return [Row("users", f"{USERS} users against one", {
        "one user, tok/s": round(statistics.median(one), 1),
        f"{USERS} users, tok/s": round(statistics.median(many), 1),
        "range": spread(ratios),
        "while answers grow, tok/s": f"{many_grow:.1f} against {one_grows:.1f}, "
                                     f"{many_grow / one_grows:.2f}x",
        "first text, s": round(statistics.median(firsts), 2),
        "drafts": guessed,
        "others, cores": round(max(w.others for w in watches), 2),
    }, statistics.median(ratios), 2.5)]


def versus(bench):
    """The same users at this node and at llama-server's parallel slots, in turns."""
    options = bench.options
    binary = options.llama_server or llama_server(options.target, options.llama_cpp)
    rounds = []
    with contextlib.ExitStack() as stack:
        ours = stack.enter_context(Node(options))
        theirs = stack.enter_context(LlamaServer(options, binary, USERS))
        warm_up(ours)
        warm_up(theirs)
        fields = {ours: bench.endless(ours), theirs: {"ignore_eos": True}}
        for number in range(options.rounds):
            asked = [bench.fresh(n, i) for i, n in enumerate(prompts.MIX)]
            tps, growing, counts = {}, {}, {}
            with Watch(ours, theirs) as watch:
                for server in (ours, theirs) if number % 2 == 0 else (theirs, ours):
                    bodies = [bench.body(text, **fields[server]) for text in asked]
                    answers, tps[server] = ask_all(server, bodies)
                    growing[server] = together_tps(answers)
                    usages = [a.of("usage") for a in answers]
                    counts[server] = [(u["prompt_tokens"], u["completion_tokens"]) for u in usages]
            if counts[ours] != counts[theirs]:
                raise Trouble(f"not the same work: {counts[ours]} and {counts[theirs]} tokens of "
                              "prompts and answers")
            rounds.append((tps[ours], tps[theirs], tps[ours] / tps[theirs], growing[ours],
                           growing[theirs], watch))
            bench.note(f"  versus, round {number + 1}: {tps[ours]:.1f} and {tps[theirs]:.1f} tok/s, "
                       f"{rounds[-1][2]:.2f}x (others {watch.others:.2f} cores, "
                       f"load {watch.load:.1f})")
    mine, other, ratios, mine_grow, others_grow, watches = zip(*rounds)
    grow = [statistics.median(each) for each in (mine_grow, others_grow)]
    return [Row("versus", f"against llama-server -np {USERS} ({options.llama_cpp})", {
        "cadencia, tok/s": round(statistics.median(mine), 1),
        "llama-server, tok/s": round(statistics.median(other), 1),
        "while answers grow, tok/s": f"{grow[0]:.1f} against {grow[1]:.1f}, "
                                     f"{grow[0] / grow[1]:.2f}x",
        "range": spread(ratios),
        "others, cores": round(max(w.others for w in watches), 2),
    }, statistics.median(ratios), 1.2)]


def prefix(bench):
    """Time to the first token of a long prompt, and of a second that begins alike."""
    document = bench.fresh(PREFIX_TOKENS)
    asks = ["Who repaired an old clock? Answer in two sentences.",
            "What happened after the long storm? Answer in two sentences."]
    bodies = [bench.body(ask, 32, system=f"Answer from this text.\n\n{document}") for ask in asks]
    cold, warm, kept, watches = {}, {}, 0, []
    for order in ((0, 1), (1, 0)):
        # Each question is once the first of a fresh node and once the second.
        with Node(bench.options) as node:
            warm_up(node)
            with Watch(node) as watch:
                cold[order[0]] = converse(node.address, [bodies[order[0]]])[0].check()
                warm[order[1]] = converse(node.address, [bodies[order[1]]])[0].check()
        watches.append(watch)
        details = warm[order[1]].of("usage").get("prompt_tokens_details") or {}
        kept = details.get("cached_tokens", 0)
    equal = all(cold[n].text == warm[n].text != "" for n in (0, 1))
    times = {name: [a.first - a.sent for a in found.values()]
             for name, found in (("cold", cold), ("warm", warm))}
    ratio = 100 * statistics.median(times["warm"]) / statistics.median(times["cold"])
    figures = {
        "prompt tokens": cold[0].of("usage")["prompt_tokens"],
        "of them kept": kept,
        "cold, s": round(statistics.median(times["cold"]), 3),
        "warm, s": round(statistics.median(times["warm"]), 3),
        "others, cores": round(max(w.others for w in watches), 2),
    }
    return [
        Row("prefix", "time to first token, warm of cold", figures, ratio, 5.0, True, " %"),
        Row("prefix", "answers equal to a fresh node's", {}, 1.0 if equal else 0.0, 1.0, unit=""),
    ]


def decode_tps(answer):
    """Tokens per second after the first, by the server's clock where it tells."""
    told = answer.of("timings")
    seconds = told["predicted_ms"] / 1e3 if told else answer.ended - answer.first
    return (answer.tokens - 1) / seconds


def speculation(bench):
    """Each prompt with and without guessing, in turns; of several repetitions the best counts."""
    rows = []
    with contextlib.ExitStack() as stack:
        off = stack.enter_context(Node(bench.options, "--guessing", "off"))
        on = stack.enter_context(Node(bench.options, "--guessing", "on"))
        warm_up(off)
        warm_up(on)
        kinds = [("copying", prompts.COPYING, 1.3), ("ordinary", prompts.ORDINARY, 0.97)]
        for kind, asked, goal in kinds:
            for title, prompt in asked.items():
                body = bench.body(prompt, 256)
                best, texts, tokens = {on: 0, off: 0}, set(), 0
                before = on.metrics()
                with Watch(on, off) as watch:
                    for number in range(bench.options.repetitions):
                        for node in (off, on) if number % 2 == 0 else (on, off):
                            answer = converse(node.address, [body])[0].check()
                            best[node] = max(best[node], decode_tps(answer))
                            texts.add(answer.text)
                            tokens = answer.tokens
                if len(texts) != 1:
                    raise Trouble(f"{title}: guessing changed the answer: {texts}")
                row = Row("speculation", f"{kind}: {title}", {
                    "off, tok/s": round(best[off], 1),
                    "on, tok/s": round(best[on], 1),
                    "tokens": tokens,
                    "drafts of all repetitions": drafts(before, on.metrics()),
                    "others, cores": round(watch.others, 2),
                }, best[on] / best[off], goal)
                bench.note(f"  {row.title}: {row.value:.2f}x {row.figures} load {watch.load:.1f}")
                rows.append(row)
    return rows

