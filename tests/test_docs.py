"""The pages stay short, and what they link to or name exists."""
import re

import pytest

from cli import ROOT

LIMITS = {"README.md": 900, "docs/results.md": 1500, "docs/gate.md": 900, "docs/receipt.md": 500, "docs/design.md": 1500, "docs/policies.md": 1500, "docs/eval.md": 1500, "docs/eval-sets.md": 1500, "docs/predictor.md": 1500,
          "docs/speed.md": 1500, "docs/prompts.md": 900, "docs/tiers.md": 1000, "docs/lossless.md": 900, "docs/models.md": 1500, "docs/serve/server.md": 1500, "docs/deploy.md": 600, "docs/serve/structured.md": 1300, "docs/serve/tools.md": 1050, "docs/first.md": 600, "docs/serve/page.md": 480, "docs/plugins.md": 700, "docs/serve/surfaces.md": 900, "docs/serve/security.md": 900, "docs/serve/README.md": 200, "docs/testing.md": 900, "docs/kernels.md": 900, "docs/gpu.md": 600, "python/README.md": 600}
PAGES = sorted(str(path.relative_to(ROOT)) for path in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "bench").glob("*.md"), ROOT / "python/README.md"])
FOLDERS = "apps|bench|deploy|docs|examples|fuzz|include|models|python|src|tests|tools"
MADE = re.compile(r"^(build/|bench/bench_\w+$|models/(smollm2|gemma3-270m|qwen2\.5-coder-[01]\.5b)\.gguf$)")  # what make builds and setup fetches


def text_of(page):
    return (ROOT / page).read_text(encoding="utf-8")


@pytest.mark.parametrize("page", LIMITS)
def test_length(page):
    assert len(text_of(page).split()) <= LIMITS[page]


@pytest.mark.parametrize("page", PAGES)
def test_links_resolve(page):
    links = re.findall(r"\]\(([^)\s]+)\)", text_of(page))
    for link in links:
        if not re.match(r"[a-z]+:", link):
            path, _, anchor = link.partition("#")
            target = (ROOT / page).parent / path if path else ROOT / page
            assert target.exists(), f"{page} links to {link}"
            if anchor:
                headings = re.findall(r"^#+ (.*)$", target.read_text(encoding="utf-8"), re.M)
                slugs = [re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings]
                assert anchor in slugs, f"{page} links to {link}"


@pytest.mark.parametrize("page", PAGES)
def test_named_files_exist(page):
    """Every path below a folder of sources, in code or in text, but for files that a recipe of the page makes."""
    made = re.findall(r"^New file `([^`]+)`", text_of(page), re.M)
    named = re.findall(rf"(?<![\w/.-])(?:\./)?((?:{FOLDERS})/[\w./-]*[\w/])", text_of(page))
    for name in named:
        assert name in made or MADE.match(name) or (ROOT / name).exists(), f"{page} names {name}"


def test_no_page_is_left_out():
    """A page or picture in docs/ that nothing links to is not found by a reader."""
    everything = "".join(text_of(page) for page in PAGES)
    for path in (ROOT / "docs").rglob("*"):
        assert path.name in everything, path


def test_null_is_tried_of_every_function():
    declared = set(re.findall(r"\b(butler_\w+)\(", "".join(text_of(f"include/{name}.h") for name in ("butler", "butler_plugin", "butler_tools")))) - {"butler_plugin_metric", "butler_plugin_step"}
    functions = {name for name in declared if not name.endswith("_fn")}
    assert len(functions) > 50
    assert not functions - set(re.findall(r"\bbutler_\w+", text_of("tests/test_null.c")))
