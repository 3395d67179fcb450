"""Markdown of answers on the server's page, in headless Chromium: what it becomes, what it never becomes, and how long it takes."""
import json

import pytest

import browser
from test_serve import pytestmark  # noqa: F401  without libevent all are skipped
from test_serve_page_chat import Chat, chat

pytestmark = [pytestmark, pytest.mark.skipif(not browser.CHROMIUM, reason="chromium is absent (./setup --tests)")]


def html(page: Chat, text):
    return page.browser.run(f"import('/page/markdown.js').then(m => {{ const e = document.createElement('div'); e.append(m.render({json.dumps(text)}));"
                            " return e.innerHTML; })")


LINK = ' target="_blank" rel="noopener noreferrer nofollow"'
CASES = {
    "One.\nTwo.\n\nThree.": "<p>One.\nTwo.</p><p>Three.</p>",
    "**b** *i* ***bi*** ~~d~~ __b__ _i_": "<p><strong>b</strong> <em>i</em> <strong><em>bi</em></strong> <del>d</del> <strong>b</strong> <em>i</em></p>",
    "**a *b* c** and *a **b** c*": "<p><strong>a <em>b</em> c</strong> and <em>a <strong>b</strong> c</em></p>",
    "2 * 3 * 4, snake_case_name, **open, a ~ b": "<p>2 * 3 * 4, snake_case_name, **open, a ~ b</p>",
    r"\*no\* `a*b*` ``a`b``": "<p>*no* <code>a*b*</code> <code>a`b</code></p>",
    "# One\n## Two\ntext": "<h3>One</h3><h4>Two</h4><p>text</p>",
    "vec![1, 2] and a ![b](c) [d]": "<p>vec![1, 2] and a ![b](c) [d]</p>",
    "a\n\n---\n\nb": "<p>a</p><hr><p>b</p>",
    "> a\n> > b": "<blockquote><p>a</p><blockquote><p>b</p></blockquote></blockquote>",
    "- a\n- b\n  - c\n\n  d\n- e": "<ul><li><p>a</p></li><li><p>b</p><ul><li><p>c</p></li></ul><p>d</p></li><li><p>e</p></li></ul>",
    "3. a\n4. b\n* c": '<ol start="3"><li><p>a</p></li><li><p>b</p></li></ol><ul><li><p>c</p></li></ul>',
    "1. a\n   ```\n   x\n     y\n   ```\n2. b": None,
    "| a | b |\n|---|--:|\n| 1 | **2** |\n| x \\| y | |": None,
    "[a](https://b.c/d_(e)) <https://f.g/>, https://h.i/j_k_l.": None,
}


def test_what_it_becomes():
    with chat() as page:
        for text, expected in CASES.items():
            if expected:
                assert html(page, text) == expected, text
        code = html(page, "1. a\n   ```\n   x\n     y\n   ```\n2. b")
        assert code.startswith('<ol start="1"><li><p>a</p><figure class="code">') and "<code>x\n  y</code></pre></figure></li><li><p>b</p>" in code
        table = html(page, "| a | b |\n|---|--:|\n| 1 | **2** |\n| x \\| y | |")
        assert '<thead><tr><th>a</th><th class="right">b</th></tr></thead>' in table
        assert '<tr><td>1</td><td class="right"><strong>2</strong></td></tr><tr><td>x | y</td><td class="right"></td></tr>' in table
        links = html(page, "[a](https://b.c/d_(e)) <https://f.g/>, https://h.i/j_k_l.")
        assert links == (f'<p><a href="https://b.c/d_(e)"{LINK}>a</a> &lt;<a href="https://f.g/"{LINK}>https://f.g/</a>&gt;, '
                         f'<a href="https://h.i/j_k_l"{LINK}>https://h.i/j_k_l</a>.</p>')
        # Every beginning of an answer is drawn while it is written: no text is lost, whatever is still open.
        text = "\n".join(CASES)
        words = page.browser.run(f"import('/page/markdown.js').then(m => {{ const text = {json.dumps(text)}; const bad = [];"
                                 "for (let i = 0; i < text.length; i++) { const seen = m.render(text.slice(0, i)).textContent;"
                                 "  for (const word of text.slice(0, i).match(/[A-Za-z]{4,}/g) || []) if (!seen.includes(word)) bad.push([i, word]); }"
                                 "return bad; })")
        assert all(word in ("https",) for _, word in words), words  # an address of a link is not its text


HOSTILE = """<script>document.title = 'stolen'</script> <img src=x onerror="document.title='stolen'"> <svg onload=alert(1)>
<iframe src="javascript:alert(1)"></iframe><a href="javascript:alert(1)" onclick="alert(1)">html</a>

[one](javascript:alert(1)) [two](JaVaScRiPt:alert(1)) [three](data:text/html,<script>alert(1)</script>) [four](vbscript:x)
[five](java&#10;script:alert(1)) [six](\x01javascript:alert(1)) [seven](//evil.example/x) [eight](/kv/map) [nine](file:///etc/passwd)
![ten](https://evil.example/pixel.png) [eleven](https://ok.example/?"onmouseover="alert(1)) [twelve](blob:https://evil.example/y)
<javascript:alert(1)> https://ok.example/"><script>alert(1)</script>

```html" onclick="alert(1)
</code></pre><script>document.title = 'stolen'</script>
```

| <b onmouseover=alert(1)>x</b> | y |
|---|---|
| <script>alert(1)</script> | [z](javascript:alert(1)) |
"""


def test_hostile_text():
    """Nothing of it runs, loads or leads where a web page may not lead: as an answer, as reasoning, and after a reload."""
    with chat() as page:
        page.answer("Hello?", [{"reasoning_content": HOSTILE}, HOSTILE[:100], HOSTILE[100:]], "done")
        for _ in range(2):
            assert page.browser.run("[...new Set([...document.querySelectorAll('#log .message *')].map(e => e.localName))].sort()") == sorted(
                ["a", "button", "code", "details", "div", "figcaption", "figure", "p", "pre", "span", "summary", "table", "tbody", "td", "th",
                 "thead", "tr"])
            links = page.browser.run("[...document.querySelectorAll('#log a')].map(e => [e.protocol, e.host, e.getAttributeNames().sort().join()])")
            assert links and all(link[0] == "https:" and link[2] == "href,rel,target" for link in links)
            assert {link[1] for link in links} == {"ok.example", "evil.example"}  # the image is a link that nobody followed
            names = page.browser.run("[...new Set([...document.querySelectorAll('#log .text *')].flatMap(e => e.getAttributeNames()))]")
            assert set(names) <= {"class", "href", "rel", "target", "tabindex", "type"} and page.browser.run("document.title") == "butler"
            assert "<script>document.title = 'stolen'</script>" in page.text(".assistant .text")
            page.reload()
        assert not any("evil" in url or "ok.example" in url for url in page.browser.requests)


def test_time_is_in_proportion():
    """Signs that open and never close, and deep nesting: 200,000 characters of each take less than two seconds."""
    with chat() as page:
        n = 200000
        for unit in ("*", "_a ", "**a *b ", "[", "[a](", "![", "`", "` `` ``` ", ">", "> ", "- ", "1. ", "  - a\n", "|-", "a|b\n", "|-|\n", "```\n", "#",
                     "\\", "~~a", "https://", "(", "h", " ", "\n", "- a\n\n", "* ", "<", "][", "[]", "*a_b~~c", "```" + " " * 50, "\t- a\n"):
            text = unit * (n // len(unit))
            ms = page.browser.run(f"import('/page/markdown.js').then(m => {{ const t = {json.dumps(unit)}.repeat({n // len(unit)}), from = performance.now();"
                                  " m.render(t); return performance.now() - from; })")
            assert ms < 2000, (unit, ms, len(text))
        runs = " ".join("`" * n for n in range(1, 630))  # none of which closes another
        assert page.browser.run(f"import('/page/markdown.js').then(m => {{ const from = performance.now(); m.render({json.dumps(runs)});"
                                " return performance.now() - from; })") < 2000
        nested = "".join("  " * i + "- a\n" for i in range(300))
        assert html(page, nested).count("<ul>") <= 12
