#!/usr/bin/env python3
"""Runs the examples of README.md, and more, with real clients against the built program.

    scripts/clients.py --binary target/release/cadencia --model models/SOME.gguf

The examples are those between `<!-- clients` and `<!-- /clients -->`: blocks of `sh` and `python`,
in their order, the Python ones in one session. Needs curl and the `openai` package
(`pip install 'openai>=3.57,<4'`). Exit code 0 if everything held, 1 if not, 2 if it could not be
tried.

The node serves a copy of the model in which the template also knows tools, if its own does not.
"""

import argparse
import json
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import threading
import traceback

import child

READY_WITHIN_S = 180
STOP_WITHIN_S = 30
README_ADDRESS = "127.0.0.1:8080"

TOOLS_TEMPLATE = (
    "{%- if tools %}<|im_start|>system\n"
    "You may call these functions:\n<tools>\n"
    "{%- for tool in tools %}\n{{ tool | tojson }}{% endfor %}\n</tools>\n"
    "Call one like this:\n<tool_call>\n"
    '{"name": NAME, "arguments": OBJECT}\n</tool_call><|im_end|>\n{% endif %}'
    "{%- for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}"
    "{%- for call in message.tool_calls or [] %}\n<tool_call>\n"
    '{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}\n'
    "</tool_call>{% endfor %}<|im_end|>\n{% endfor %}"
    "{%- if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


class Untried(Exception):
    """Something that is needed is not there."""


# --- a model file with another template ---------------------------------------------------------

SCALARS = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
STRING, ARRAY = 8, 9
TEMPLATE_KEY = b"tokenizer.chat_template"


class Reader:
    """Walks through the head of a GGUF file."""

    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, count):
        self.at += count
        return self.data[self.at - count : self.at]

    def number(self, form):
        return struct.unpack("<" + form, self.take(struct.calcsize(form)))[0]

    def string(self):
        return self.take(self.number("Q"))

    def skip_value(self, kind):
        if kind == STRING:
            self.string()
        elif kind == ARRAY:
            inner, count = self.number("I"), self.number("Q")
            if inner in SCALARS:
                self.take(SCALARS[inner] * count)
            else:
                for _ in range(count):
                    self.skip_value(inner)
        else:
            self.take(SCALARS[kind])


def with_tools(model, folder):
    """A model file like `model` whose template knows tools: itself, or a copy in `folder`."""
    data = pathlib.Path(model).read_bytes()
    reader = Reader(data)
    magic, version = reader.take(4), reader.number("I")
    tensors, pairs = reader.number("Q"), reader.number("Q")
    if magic != b"GGUF" or version not in (2, 3):
        raise Untried(f"{model} is no GGUF file of version 2 or 3")
    kept, template, alignment = [], b"", 32
    for _ in range(pairs):
        start = reader.at
        key, kind = reader.string(), reader.number("I")
        value = reader.at
        reader.skip_value(kind)
        if key == TEMPLATE_KEY:
            template = data[value + 8 : reader.at]
        else:
            kept.append(data[start : reader.at])
        if key == b"general.alignment":
            alignment = struct.unpack_from("<I", data, value)[0]
    if re.search(rb"\btools\b", template):
        return str(model)
    start = reader.at
    for _ in range(tensors):
        reader.string()
        reader.take(8 * reader.number("I") + 4 + 8)
    infos = data[start : reader.at]
    weights = data[-(-reader.at // alignment) * alignment :]
    text = TOOLS_TEMPLATE.encode()
    string = lambda b: struct.pack("<Q", len(b)) + b
    kept.append(string(TEMPLATE_KEY) + struct.pack("<I", STRING) + string(text))
    head = magic + struct.pack("<IQQ", version, tensors, len(kept)) + b"".join(kept) + infos
    head += b"\0" * (-len(head) % alignment)
    copy = pathlib.Path(folder) / pathlib.Path(model).name
    copy.write_bytes(head + weights)
    return str(copy)


# --- a node -------------------------------------------------------------------------------------


class Node:
    """A running `cadencia up`; as a context manager it is stopped however the block ends."""

    def __init__(self, binary, model, home, flags=()):
        port_file = pathlib.Path(home) / "port"
        command = [binary, "up", "--model", model, "--api", "127.0.0.1:0"]
        command += ["--port-file", str(port_file), *flags]
        self.log = open(pathlib.Path(home) / "log", "w+")
        self.process = subprocess.Popen(
            command, env=child.surroundings(home), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=self.log, text=True,
        )
        # A node that hangs while it loads is ended, which ends its output, too.
        watch = threading.Timer(READY_WITHIN_S, self.process.kill)
        watch.start()
        ready = any("listening on http://" in line for line in self.process.stdout)
        watch.cancel()
        if not ready:
            self.__exit__()
            raise Untried("the node did not come up; it said:\n" + self.said())
        threading.Thread(target=self.process.stdout.read, daemon=True).start()
        self.address = f"127.0.0.1:{int(port_file.read_text())}"

    def said(self):
        self.log.seek(0)
        return self.log.read()[-4000:]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        child.stop(self.process, STOP_WITHIN_S)


# --- the README ---------------------------------------------------------------------------------


def examples(readme):
    """The (language, code) of each example, in order."""
    text = pathlib.Path(readme).read_text()
    part = re.search(r"<!-- clients.*?-->(.*?)<!-- /clients -->", text, re.S)
    if not part:
        raise Untried(f"{readme} has no examples between the marks")
    return re.findall(r"^```(sh|python)\n(.*?)^```$", part.group(1), re.S | re.M)


def run_examples(readme, address):
    session = {"__name__": "readme"}
    found = examples(readme)
    for number, (language, code) in enumerate(found, 1):
        assert README_ADDRESS in code or language == "python", code
        code = code.replace(README_ADDRESS, address)
        print(f"\n== README example {number} of {len(found)} ({language})", flush=True)
        if language == "python":
            exec(compile(code, f"README example {number}", "exec"), session)
        else:
            failing = 'curl() { command curl --fail-with-body --max-time 300 "$@"; }\n'
            subprocess.run(["bash", "-euo", "pipefail", "-c", failing + code], check=True)
    print(flush=True)


# --- what else must hold ------------------------------------------------------------------------

CHECKS = []


def check(function):
    CHECKS.append(function)
    return function


def said(client, model, **more):
    more = {"model": model, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 24, **more}
    return client.chat.completions.create(extra_body=more.pop("extra", {}), **more)


def streamed(client, model, **more):
    """The texts of a stream's choices, why they ended, and the usage."""
    texts, ends, usage = {}, {}, None
    for event in said(client, model, stream=True, stream_options={"include_usage": True}, **more):
        usage = event.usage or usage
        for choice in event.choices:
            texts[choice.index] = texts.get(choice.index, "") + (choice.delta.content or "")
            ends[choice.index] = choice.finish_reason or ends.get(choice.index)
    return [texts[n] for n in sorted(texts)], [ends[n] for n in sorted(ends)], usage


@check
def streams_say_what_whole_replies_say(client, model):
    for prompt in ("Write an emoji family: 👩‍👩‍👧", "写一句话。", "Écris é, o\u0308 et שלום."):
        messages = [{"role": "user", "content": prompt}]
        whole = said(client, model, messages=messages, seed=5, max_tokens=48)
        texts, ends, usage = streamed(client, model, messages=messages, seed=5, max_tokens=48)
        assert texts == [whole.choices[0].message.content], (prompt, texts)
        assert ends == [whole.choices[0].finish_reason]
        assert usage.completion_tokens == whole.usage.completion_tokens


@check
def what_the_model_repeats_keeps_every_letter(client, model):
    text = "👩‍👩‍👧 漢字 é o\u0308 שלום"
    reply = client.completions.create(model=model, prompt=text, echo=True, max_tokens=4, seed=1)
    assert reply.choices[0].text.startswith(text), reply.choices[0].text


@check
def choices_have_the_next_seeds(client, model):
    several = said(client, model, seed=3, n=3, temperature=1.2)
    texts, _, _ = streamed(client, model, seed=3, n=3, temperature=1.2)
    for n, choice in enumerate(several.choices):
        alone = said(client, model, seed=3 + n, temperature=1.2).choices[0].message.content
        assert choice.index == n and choice.message.content == alone == texts[n]


@check
def a_stop_string_ends_the_answer_and_never_shows(client, model):
    whole = said(client, model, temperature=0, max_tokens=40).choices[0].message.content
    stop = whole[len(whole) // 2 :][:4]
    reply = said(client, model, temperature=0, max_tokens=40, stop=[stop])
    assert reply.choices[0].message.content == whole.split(stop)[0]
    assert reply.choices[0].finish_reason == "stop"
    assert streamed(client, model, temperature=0, max_tokens=40, stop=[stop])[0] == [whole.split(stop)[0]]


@check
def log_probs_are_of_the_tokens_of_the_answer(client, model):
    reply = said(client, model, logprobs=True, top_logprobs=5, temperature=0)
    tokens = reply.choices[0].logprobs.content
    data = b"".join(bytes(token.bytes) for token in tokens)
    assert data.decode() == reply.choices[0].message.content
    assert all(len(t.top_logprobs) == 5 and t.top_logprobs[0].token == t.token for t in tokens)
    reply = client.completions.create(model=model, prompt="Once", logprobs=2, max_tokens=6, seed=1)
    lists = reply.choices[0].logprobs
    assert "".join(lists.tokens) == reply.choices[0].text
    assert len(lists.tokens) == len(lists.token_logprobs) == len(lists.top_logprobs)


@check
def forms_are_kept_to(client, model):
    value = json.loads(said(
        client, model, response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": {
            "type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"],
            "additionalProperties": False}}}, max_tokens=60, seed=1,
    ).choices[0].message.content)
    assert isinstance(value["a"], bool) and len(value) == 1
    choice = said(client, model, extra={"guided_choice": ["red", "blue"]}, seed=2)
    assert choice.choices[0].message.content in ("red", "blue")
    number = said(client, model, extra={"guided_regex": "[0-9]{3}-[0-9]{4}"}, seed=2)
    assert re.fullmatch("[0-9]{3}-[0-9]{4}", number.choices[0].message.content)


TOOLS = [
    {"type": "function", "function": {"name": name, "description": name, "parameters": {
        "type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}},
        "required": ["city"], "additionalProperties": False}}}
    for name in ("weather", "time")
]


@check
def calls_are_the_same_whole_and_streamed(client, model):
    named = {"type": "function", "function": {"name": "time"}}
    wish = {"tools": TOOLS, "tool_choice": named, "seed": 4, "max_tokens": 64}
    message = said(client, model, **wish).choices[0]
    call = message.message.tool_calls[0]
    assert call.function.name == "time" and message.finish_reason == "tool_calls"
    assert json.loads(call.function.arguments)["city"] in ("Paris", "Rome")
    assert message.message.content is None
    parts = [
        part
        for event in said(client, model, stream=True, **wish)
        for choice in event.choices
        for part in choice.delta.tool_calls or []
    ]
    assert {part.index for part in parts} == {0} and parts[0].function.name == "time"
    assert "".join(p.function.arguments or "" for p in parts) == call.function.arguments


@check
def vectors_have_length_one(client, model):
    reply = client.embeddings.create(model=model, input=["one", "two"])
    for one in reply.data:
        assert abs(sum(x * x for x in one.embedding) - 1) < 1e-3
    floats = client.embeddings.create(model=model, input="one", encoding_format="float")
    assert max(abs(a - b) for a, b in zip(floats.data[0].embedding, reply.data[0].embedding)) < 1e-6


@check
def errors_have_their_names(client, model):
    import openai

    for more, kind, param in [
        ({"temperature": 9}, openai.BadRequestError, "temperature"),
        ({"max_tokens": -1}, openai.BadRequestError, "max_tokens"),
        ({"extra": {"min_tokens": 5}}, openai.BadRequestError, "min_tokens"),
        ({"messages": [{"role": "user", "content": "x " * 99999}]}, openai.BadRequestError, "messages"),
    ]:
        try:
            said(client, model, **more)
        except kind as error:
            assert error.param == param and error.type == "invalid_request_error", error
        else:
            raise AssertionError(f"{more} was not refused")
    try:
        client.chat.completions.create(model="gpt-x", messages=[{"role": "user", "content": "x"}])
    except openai.NotFoundError as error:
        assert error.code == "model_not_found"
    else:
        raise AssertionError("an unknown model was served")


def run_checks(address):
    import openai

    client = openai.OpenAI(base_url=f"http://{address}/v1", api_key="none", max_retries=0)
    model = client.models.list().data[0].id
    failed = 0
    for one in CHECKS:
        try:
            one(client, model)
            print(f"ok      {one.__name__}", flush=True)
        except Exception:
            failed += 1
            print(f"FAILED  {one.__name__}\n{traceback.format_exc()}", flush=True)
    return failed


def run_key_checks(address, key):
    import openai

    client = openai.OpenAI(base_url=f"http://{address}/v1", api_key="wrong", max_retries=0)
    try:
        client.models.list()
    except openai.AuthenticationError as error:
        assert error.code == "invalid_api_key"
    else:
        raise AssertionError("a wrong key was taken")
    assert openai.OpenAI(base_url=f"http://{address}/v1", api_key=key).models.list().data
    # curl, once more, for what no client library shows: headers.
    shown = subprocess.run(
        ["curl", "-sSi", "--max-time", "60", f"http://{address}/v1/chat/completions",
         "-H", f"Authorization: Bearer {key}",
         "-d", '{"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}'],
        check=True, capture_output=True, text=True,
    ).stdout.lower()
    assert shown.startswith("http/1.1 200") and "server-timing: queue;dur=" in shown, shown
    assert "x-request-id: " in shown and "access-control" not in shown, shown
    print("ok      keys and headers", flush=True)


def main():
    here = pathlib.Path(__file__).resolve().parent.parent
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--binary", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--readme", default=here / "README.md")
    options = parser.parse_args()
    try:
        import openai  # noqa: F401
    except ImportError:
        raise Untried("the openai package is missing: pip install 'openai>=3.57,<4'") from None
    if not shutil.which("curl"):
        raise Untried("curl is missing")
    with tempfile.TemporaryDirectory(prefix="cadencia-clients-") as home:
        model = with_tools(options.model, home)
        with Node(options.binary, model, home) as node:
            try:
                run_examples(options.readme, node.address)
                failed = run_checks(node.address)
            except Exception:
                print(f"the node said:\n{node.said()}", file=sys.stderr)
                raise
        with Node(options.binary, model, home, ["--api-key", "sesame"]) as node:
            run_key_checks(node.address, "sesame")
    print(f"clients: {len(CHECKS) - failed} of {len(CHECKS)} checks held")
    return 1 if failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Untried as error:
        print(f"clients: {error}", file=sys.stderr)
        sys.exit(2)
    except (AssertionError, subprocess.CalledProcessError) as error:
        traceback.print_exc()
        sys.exit(1)
