"""What `butler eval` says of its progress on a terminal."""
import os
import pty
import re
import subprocess

from cli import BUTLER, GQA


def on_a_terminal(*words):
    """What `eval passkey` says on a terminal, and its rows."""
    main, side = pty.openpty()
    process = subprocess.Popen([BUTLER, "eval", "passkey", "-m", GQA, "--json", *words], stdout=subprocess.PIPE, stderr=side)
    os.close(side)
    said = b""
    try:
        while chunk := os.read(main, 4096):
            said += chunk
    except OSError:
        pass
    os.close(main)
    assert process.wait() == 0
    return said, process.stdout.read().splitlines()


def test_progress_on_a_terminal():
    said, rows = on_a_terminal("--length", "200", "--limit", "4")
    assert b"100 %" in said and b"remaining" in said and len(rows) == 1


def test_progress_goes_by_time():
    """The first of six policies reads the prompt, which takes nearly all of the time; the others share it."""
    policies = [word for name in ("full", "quest", "fier", "streaming", "random", "oracle") for word in ("--kv", name)]
    said, rows = on_a_terminal("--length", "4000", "--limit", "1", "--set", "compare=0", *policies)
    done = [int(share) for share in re.findall(rb"(\d+) %", said)]
    assert len(rows) == 6 and done[-1] == 100 and min(share for share in done if share > 0) > 40, done
