"""The Python package of python/: its wheel is built and installed into a fresh environment, where its own tests and its example run."""
import importlib.util
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

import pytest

from cli import BUTLER, GQA, ROOT

# What the package, its tests and its example need, from PyPI.
PACKAGES = ["cffi==2.1.1", "numpy==2.4.6", "setuptools==84.2.1", "wheel==0.48.0", "pytest==9.2.0", "matplotlib==3.11.2"]
NO_INDEX = re.compile("Could not find a version|No matching distribution|Connection|Temporary failure|Network is unreachable|timed out|SSL")
pytestmark = pytest.mark.skipif(not importlib.util.find_spec("pip"), reason="python3-pip is absent (./setup --tests)")


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """The interpreter of the environment. Debian's has no pip of its own without python3-venv: the system's works on it."""
    folder = tmp_path_factory.mktemp("python")
    interpreter = folder / "venv" / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True, timeout=60)
    environment = {k: v for k, v in os.environ.items() if not k.startswith("MAKE")} | {"BUTLER_BUILD": str(ROOT / "build")}

    def files():  # which a build must not add to: the clone may be read-only
        return {f for f in [*ROOT.iterdir(), *(ROOT / "python").rglob("*")] if f.name != "__pycache__"}

    def pip(*words):
        return subprocess.run([sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", interpreter, *words], env=environment,
                              capture_output=True, text=True, timeout=300)
    done = pip("install", "--retries", "1", "--no-compile", "--only-binary", ":all:", *PACKAGES)
    if done.returncode and NO_INDEX.search(done.stderr):
        pytest.skip(f"pip cannot get {', '.join(PACKAGES)}: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    before = files()
    for words in (["wheel", "--no-deps", "--no-build-isolation", "-w", folder, ROOT / "python"],
                  ["install", "--no-deps", "--no-index", "--find-links", folder, "butler-python"]):
        done = pip(*words)
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert files() == before
    wheel, = folder.glob("*.whl")
    assert re.fullmatch(r"butler_python-[\d.]+-py3-none-linux_\w+\.whl", wheel.name)
    return interpreter


def test_the_package_s_tests(python, tmp_path):
    environment = {**os.environ, "BUTLER": BUTLER}
    environment.pop("PYTHONPATH", None)
    done = subprocess.run([python, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", f"--junitxml={tmp_path}/report.xml",
                           ROOT / "python" / "tests"], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    print(done.stdout)
    suite = ElementTree.parse(tmp_path / "report.xml").getroot()[0]
    assert int(suite.get("tests")) > 50
    assert all("smollm2.gguf" in skipped.get("message") for skipped in suite.iter("skipped"))


def test_the_example(python, tmp_path):
    """A table and a picture. The small model's heads have 16 channels: with 16 the metric's scores are exact."""
    (tmp_path / "text").write_text("It was the best of times, it was the worst of times, it was the age of wisdom. " * 4)
    done = subprocess.run([python, ROOT / "examples/python/own_metric.py", GQA, tmp_path / "text", "-o", tmp_path / "plot.png", "--length", "200",
                           "--steps", "6", "--budgets", "0.1,0.3"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    found = {}
    for line in done.stdout.splitlines()[1:]:
        name, budget, recall, read = re.fullmatch(r"(.+?) +([\d.]+) +([\d.]+) +([\d.]+) %", line).groups()
        found[name, float(budget)] = float(recall), float(read)
    assert len(found) == 6
    for budget in (0.1, 0.3):
        exact, fewer = found["few_channels, 16", budget], found["few_channels, 8", budget]
        assert exact[0] > 0.97 and exact[0] > fewer[0] and exact[1] > fewer[1]
    assert all(found[name, 0.1][1] < found[name, 0.3][1] for name, _ in found)
    picture = (tmp_path / "plot.png").read_bytes()
    assert picture.startswith(b"\x89PNG") and len(picture) > 10000
