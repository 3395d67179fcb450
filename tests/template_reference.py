"""What a chat template must render: Python's jinja2 set up as transformers sets it up; and a pipe to tests/render_chat.c."""
import datetime
import json
import os
import subprocess
from pathlib import Path

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from cli import GQA, ROOT

BUILD = Path(os.environ.get("BUILD", "build"))
DRIVER = BUILD / "tests" / "render_chat"
BOS, EOS = "<s>", "</s>"  # of the small model
NOW = 1753920000          # 31 July 2025


class Generation(Extension):
    """`generation` blocks render as their body."""
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.If(jinja2.nodes.Const(True), body, [], []).set_lineno(line)


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def to_json(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def strftime_now(form):
    return datetime.datetime.fromtimestamp(NOW, datetime.timezone.utc).strftime(form)


def environment():
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
    env.filters["tojson"] = to_json
    env.globals.update(raise_exception=raise_exception, strftime_now=strftime_now)
    return env


ENVIRONMENT = environment()


def reference(template, messages, tools=None, prompt=True, variables=None):
    """The text, or None where the template fails."""
    context = {"messages": messages, "tools": tools, "documents": None, "bos_token": BOS, "eos_token": EOS, "add_generation_prompt": prompt,
               **(variables or {})}
    try:
        return ENVIRONMENT.from_string(template).render(context)
    except (jinja2.exceptions.TemplateError, TypeError, ValueError, OverflowError, AttributeError, KeyError, ZeroDivisionError, SyntaxError):
        return None


class Rendered:
    def __init__(self, code, text, segments, ids, parsed):
        self.code, self.bytes, self.parsed = int(code), text, parsed.decode()
        self.text = text.decode(errors="surrogateescape")
        self.segments = [tuple(map(int, line.split())) for line in segments.decode().splitlines()]
        self.ids = [int(line) for line in ids.decode().splitlines()]


class Driver:
    def __init__(self, model=GQA):
        subprocess.run(["make", "-s", f"BUILD={BUILD}", str(DRIVER)], cwd=ROOT, check=True)
        self.process = subprocess.Popen([str(ROOT / DRIVER), str(model)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def _read(self):
        n = int(self.process.stdout.readline())
        return self.process.stdout.read(n)

    def _ask(self, fields):
        for field in fields:
            raw = None if field is None else field.encode()
            self.process.stdin.write(b"-1\n" if raw is None else b"%d\n" % len(raw) + raw)
        self.process.stdin.flush()
        return Rendered(*[self._read() for _ in range(5)])

    def render(self, template, messages, tools=None, prompt=True, variables=None):
        fields = [template, str(NOW), "1" if prompt else "0", None if tools is None else json.dumps(tools),
                  None if variables is None else json.dumps(variables), str(len(messages))]
        for message in messages:
            rest = {k: v for k, v in message.items() if k not in ("role", "content")}
            content = message.get("content")
            if content is not None and not isinstance(content, str):
                rest["content"], content = content, None
            fields += [message["role"], content, json.dumps(rest) if rest else None]
        return self._ask(fields)

    def render_raw(self, template, variables):
        """Without messages; variables: the text that should be JSON."""
        return self._ask([template, str(NOW), "0", None, variables, "0"])

    def cpu_seconds(self):
        """That it has used so far: a bound on wall time would depend on what else the machine does."""
        with open(f"/proc/{self.process.pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def close(self):
        self.process.stdin.close()
        assert self.process.wait(timeout=60) == 0
