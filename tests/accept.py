"""Which texts a grammar or a JSON schema accepts: a pipe to tests/accept_texts.c."""
import json
import os
import subprocess
from pathlib import Path

from cli import ROOT

BUILD = Path(os.environ.get("BUILD", "build"))
DRIVER = BUILD / "tests" / "accept_texts"
MODEL = ROOT / "models" / "butler-default.gguf"  # has a token for every byte
ACCEPTED, BEGINNING, REFUSED = 1, 0, -1


class Refused(Exception):
    """The schema or grammar has an error."""


class Acceptor:
    def __init__(self):
        subprocess.run(["make", "-s", f"BUILD={BUILD}", str(DRIVER)], cwd=ROOT, check=True)
        self.process = subprocess.Popen([str(ROOT / DRIVER), str(MODEL)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def verdicts(self, texts, **what):
        """Of each text ACCEPTED, BEGINNING (of an accepted one) or REFUSED. what: schema=... or grammar=..."""
        self.process.stdin.write(json.dumps({**what, "texts": texts}).encode() + b"\n")
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline())
        if "error" in answer:
            raise Refused(answer["error"])
        return answer["verdicts"]

    def close(self):
        self.process.stdin.close()
        assert self.process.wait(10) == 0
