#!/usr/bin/env python3
"""How one node serves many: users at once, long prompts again, guessing, load, hang-ups.

    benches/serving.py --model FILE [--binary FILE] [--only SECTION,...] [--under 'chrt -f 10']

Sections: users (8 streams against one), versus (the same 8 at llama-server's parallel slots),
prefix (a long prompt whose beginning comes again), speculation (with and without guessing), load
(more streams than may be here, for --seconds) and disconnects (clients that hang up at random).

Everything is measured from outside, through HTTP, on this machine. A ratio comes from one run in
which both sides take turns; the table has medians of rounds. What other work took meanwhile is
told as cores: a figure with more than a few hundredths there is rough.

llama-server is built for this processor from the sources inside the same release of
llama-cpp-python that versus-llama-cpp.py measures, under target/ (the first time takes long).
Nothing outside target/ is written. Nothing is needed beyond Python's standard library.
"""

import argparse
import json
import os
import pathlib
import shlex
import signal
import sys
import time

from serving import sections, storms
from serving.client import Trouble

ROOT = pathlib.Path(__file__).resolve().parent.parent
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
LLAMA_CPP = "llama-cpp-python==0.3.36"
SECTIONS = {
    "users": sections.users,
    "versus": sections.versus,
    "prefix": sections.prefix,
    "speculation": sections.speculation,
    "load": storms.load,
    "disconnects": storms.disconnects,
}


def keep_up(under):
    """Where servers run under real-time priority, this client has one more: it does little, and
    one that is not heard would look like a server that is slow."""
    if under[:1] == ["chrt"] and under[-1:] and under[-1].isdigit():
        own = os.sched_param(int(under[-1]) + 1)
        os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, own)


def table(rows):
    lines = ["| section | what | ratio | goal | |", "|---|---|---|---|---|"]
    for row in rows:
        value = "" if row.value is None else f"**{row.value:.2f}{row.unit}**"
        word = "at most" if row.at_most else "at least"
        goal = "" if row.goal is None else f"{word} {row.goal:g}{row.unit}"
        figures = "; ".join(f"{name}: {figure}" for name, figure in row.figures.items())
        missed = "**missed** " if row.missed else ""
        lines.append(f"| {row.section} | {row.title} | {value} | {missed}{goal} | {figures} |")
    return "\n".join(lines)


def parse():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", type=pathlib.Path, default=TARGET / "release" / "cadencia")
    parser.add_argument("--model", type=pathlib.Path, required=True)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", default=",".join(SECTIONS), metavar="SECTION,...",
                        help="of " + ", ".join(SECTIONS))
    parser.add_argument("--rounds", type=int, default=3, help="of users and versus")
    parser.add_argument("--repetitions", type=int, default=5, help="of each prompt of speculation")
    parser.add_argument("--seconds", type=float, default=60, help="of load")
    parser.add_argument("--streams", type=int, default=64, help="of load")
    parser.add_argument("--hang-ups", type=int, default=200, help="of disconnects")
    parser.add_argument("--seed", type=int, default=1, help="of the texts that are asked")
    parser.add_argument("--flags", type=shlex.split, default=[], metavar="FLAGS",
                        help="more flags for the node, such as '--guessing off'")
    parser.add_argument("--under", type=shlex.split, default=[], metavar="COMMAND",
                        help="run servers under it, such as 'chrt -f 10'")
    parser.add_argument("--llama-server", type=pathlib.Path, metavar="FILE",
                        help="this one, instead of building it")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a goal is missed")
    options = parser.parse_args()
    options.target, options.llama_cpp = TARGET, LLAMA_CPP
    options.only = [name for name in options.only.split(",") if name]
    unknown = [name for name in options.only if name not in SECTIONS]
    if unknown:
        parser.error(f"there is no section {unknown[0]}; there are {', '.join(SECTIONS)}")
    for path in (options.binary, options.model):
        if not path.is_file():
            parser.error(f"{path} is missing")
    return options


def main():
    options = parse()
    # An ordinary kill unwinds as Ctrl-C does, so that no server outlives this.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    bench, rows = sections.Bench(options), []
    try:
        if "versus" in options.only and options.llama_server is None:
            options.llama_server = sections.llama_server(TARGET, LLAMA_CPP)
        keep_up(options.under)
        for name in options.only:
            bench.note(f"{name}:")
            rows += SECTIONS[name](bench)
    except Trouble as trouble:
        sys.exit(f"serving: {trouble}")
    except KeyboardInterrupt:
        sys.exit("serving: stopped")
    if options.json:
        print(json.dumps({"date": time.strftime("%Y-%m-%d"), "threads": options.threads,
                          "rows": [row.json() for row in rows]}, indent=1))
    else:
        print(table(rows))
    missed = [row for row in rows if row.missed]
    sys.exit(1 if missed and options.check else 0)


if __name__ == "__main__":
    main()
