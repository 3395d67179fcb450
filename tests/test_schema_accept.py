"""What JSON schemas and grammars accept, against others: the package jsonschema, llguidance, and the test suite that JSON Schema's
authors publish (./setup --tests fetches both into build/python)."""
import json
import os
import random
import re
import sys
from pathlib import Path

import pytest

from accept import ACCEPTED, Acceptor, Refused
from cli import ROOT
from test_schema import schema_of

sys.path.append(str(ROOT / "build" / "python"))
N_SCHEMAS = int(os.environ.get("N_SCHEMAS", 200))  # random ones; 1,000 take 10 s
SUITE = ROOT / "build" / "python" / "json_schema_suite"


@pytest.fixture(scope="module")
def acceptor():
    a = Acceptor()
    yield a
    a.close()


# ---------------------------------------------------------------------------------------------- values of a schema

PATTERNS = {"^[a-c]{2,4}$": lambda draw: letters(draw, "abc", 2, 4),
            "^(x|yz)+-[0-9]{3}$": lambda draw: "".join(draw.choice(["x", "yz"]) for _ in range(draw.randint(1, 4))) + "-" + letters(draw, "0123456789", 3, 3),
            "^[A-Z][a-z]{1,9}( [A-Z][a-z]{1,9})?$": lambda draw: " ".join(letters(draw, "AMZ", 1, 1) + letters(draw, "abz", 1, 9)
                                                                          for _ in range(draw.randint(1, 2)))}
FORMATS = {"date": lambda draw: draw.choice(["2024-02-29", "1999-12-31", "0001-01-01", "2000-02-29", "2023-04-30"]),
           "time": lambda draw: draw.choice(["00:00:00Z", "23:59:59.999+23:59", "12:30:00-08:00"]),
           "date-time": lambda draw: FORMATS["date"](draw) + "T" + FORMATS["time"](draw),
           "uuid": lambda draw: "-".join(letters(draw, "0123456789abcdefABCDEF", n, n) for n in (8, 4, 4, 4, 12)),
           "ipv6": lambda draw: draw.choice(["::", "::1", "1::", "fe80::1:2", "1:2:3:4:5:6:7:8", "1:2:3:4:5:6:7::", "ABCD:0:0::12", "1:2::4:5:6:7:8"]),
           "hostname": lambda draw: draw.choice(["a", "a-b.example.org", "x1.y2.z3.de", "localhost", "A" * 32]),
           "uri": lambda draw: draw.choice(["https://example.org", "http://a.b:80/c/d%20e?x=1&y=?#z", "ftp://h/(x)", "urn+x.y-z://a#"]),
           "duration": lambda draw: draw.choice(["P1W", "P1Y2M3D", "P3D", "PT1H2M3S", "P1YT30M", "PT5S", "P1M2DT1H"]),
           "email": lambda draw: draw.choice(["a@b.de", "a.b+c@x-y.example.org", "A_1@1.2"]),
           "ipv4": lambda draw: ".".join(str(draw.choice([0, 9, 10, 99, 100, 199, 200, 249, 250, 255])) for _ in range(4))}


def letters(draw, alphabet, least, most):
    return "".join(draw.choice(alphabet) for _ in range(draw.randint(least, most)))


def value_of(draw, schema):
    """A random value that the schema accepts, its members in the schema's order; None where it may have none."""
    if "enum" in schema:
        return draw.choice(schema["enum"])
    if "const" in schema:
        return schema["const"]
    for key in ("anyOf", "oneOf"):
        if key in schema:
            return value_of(draw, draw.choice(schema[key]))
    kind = schema["type"]
    if kind in ("null", "boolean"):
        return None if kind == "null" else draw.choice([True, False])
    if kind == "integer":
        low = schema.get("minimum", schema.get("exclusiveMinimum", -10**6 - 1) + 1)
        high = schema.get("maximum", schema.get("exclusiveMaximum", 10**6 + 1) - 1)
        low, high = (low, max(high, low)) if "maximum" in schema or "exclusiveMaximum" in schema else (low, low + 10**6)
        low = min(low, high)
        return draw.choice([low, high, draw.randint(low, high)])
    if kind == "number":
        return draw.choice([0, -1, 1.5, -0.001, 1e20, 2.5e-7, draw.uniform(-1e6, 1e6)])
    if kind == "string":
        if "pattern" in schema:
            return PATTERNS[schema["pattern"]](draw)
        if "format" in schema:
            return FORMATS[schema["format"]](draw)
        return letters(draw, "ab \"\\\n/\u00e9\u20ac\U0001f600{}[],:", schema.get("minLength", 0), schema["maxLength"])
    if kind == "array":
        return [value_of(draw, schema["items"]) for _ in range(draw.randint(schema.get("minItems", 0), schema["maxItems"]))]
    return {name: value_of(draw, of) for name, of in schema["properties"].items() if name in schema["required"] or draw.random() < 0.5}


def write(draw, value, escapes):
    """JSON text of a value, written in one of the ways that are allowed; escapes: of any character."""
    if draw.random() < 0.5:
        return compact(value)
    indent = draw.choice([None, 1, 2])
    return json.dumps(value, ensure_ascii=escapes, indent=indent, separators=("," if indent else draw.choice([",", ", "]), draw.choice([":", ": "])))


def compact(value):
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def mutate(draw, text):
    """The text with one to three characters replaced, removed or added."""
    for _ in range(draw.randint(1, 3)):
        at = draw.randint(0, len(text))
        text = text[:at] + draw.choice(["", "", *"0123456789-.eE{}[],:\"\\ntab\u00e9 "]) + text[at + draw.randint(0, 1):]
    return text


def schemas():
    for seed in range(N_SCHEMAS):
        yield seed, schema_of(random.Random(seed), 3), random.Random(seed + 10**6)


def strict(text):
    """The value of JSON text; ValueError for what only Python reads, and for members that come twice."""
    def members(pairs):
        if len(dict(pairs)) < len(pairs):
            raise ValueError("a member twice")
        return dict(pairs)

    def constant(name):
        raise ValueError(name)
    return json.loads(text, object_pairs_hook=members, parse_constant=constant)


# ------------------------------------------------------------------------------------------------------ tests

def test_valid_texts_are_accepted(acceptor):
    """In the direction that test_schema.py does not look: no value of a schema is out of reach."""
    jsonschema = pytest.importorskip("jsonschema")
    n_texts = 0
    for seed, schema, draw in schemas():
        values = [value_of(draw, schema) for _ in range(10)]
        for value in values:
            jsonschema.validate(value, schema)
        text = json.dumps(schema)  # values of enum and const are written compactly, names of members as they are
        texts = [compact(value) if "enum" in text or "const" in text else write(draw, value, "object" not in text) for value in values]
        for text, verdict in zip(texts, acceptor.verdicts(texts, schema=schema)):
            assert verdict == ACCEPTED, f"{seed}: {json.dumps(schema)}\n{text}"
        n_texts += len(texts)
    assert n_texts == 10 * N_SCHEMAS


def test_accepted_texts_are_valid(acceptor):
    """Of texts that differ by some characters from valid ones, those that are accepted are valid."""
    jsonschema = pytest.importorskip("jsonschema")
    n_accepted = n_refused = 0
    for seed, schema, draw in schemas():
        texts = [mutate(draw, write(draw, value_of(draw, schema), False)) for _ in range(20)]
        check = jsonschema.Draft202012Validator(schema)
        for text, verdict in zip(texts, acceptor.verdicts(texts, schema=schema)):
            n_accepted += verdict == ACCEPTED
            n_refused += verdict != ACCEPTED
            assert verdict != ACCEPTED or check.is_valid(strict(text)), f"{seed}: {json.dumps(schema)}\n{text}"
    assert n_accepted > N_SCHEMAS / 2 and n_refused > 10 * N_SCHEMAS


class Peer:
    """llguidance: what it accepts of a schema or grammar."""

    def __init__(self):
        self.llguidance = pytest.importorskip("llguidance")
        self.tokenizer = self.llguidance.LLTokenizer("byte")

    def accepts(self, grammar, text):
        matcher = self.llguidance.LLMatcher(self.tokenizer, grammar, log_level=0)
        assert not matcher.is_error(), matcher.get_error()
        ids = self.tokenizer.tokenize_bytes(text.encode())
        return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()

    def of_schema(self, schema):
        return self.llguidance.LLMatcher.grammar_from_json_schema(json.dumps({**schema, "x-guidance": {"whitespace_flexible": False, "item_separator": ",",
                                                                                                     "key_separator": ":"}}))

    def of_gbnf(self, gbnf):
        return self.llguidance.grammar_from("grammar", self.llguidance.gbnf_to_lark.any_to_lark(gbnf))


# A space behind a comma or colon, which is allowed here, and exponents of three digits, which are not.
LEFT_OUT = "[,:] |[eE][+-]?[0-9]{3}"
NARROWER = "hostname|email|uri"  # formats of which llguidance knows more forms


def test_schemas_against_llguidance(acceptor):
    peer, different = Peer(), []
    for seed, schema, draw in schemas():
        values = [compact(value_of(draw, schema)) for _ in range(5)]
        texts = values + [mutate(draw, text) for text in values for _ in range(3)]
        texts = [text for text in texts if not re.search(LEFT_OUT, text)]
        grammar = peer.of_schema(schema)
        for text, verdict in zip(texts, acceptor.verdicts(texts, schema=schema)):
            accepted = peer.accepts(grammar, text)
            if verdict == ACCEPTED and not accepted or verdict != ACCEPTED and accepted and not re.search(NARROWER, json.dumps(schema)):
                different.append((verdict, text, schema))
    assert not different, f"{len(different)}: {different[:10]}"


FORMS = ["date", "time", "date-time", "uuid", "ipv4", "ipv6", "hostname", "email", "uri", "duration"]
def suite(acceptor):
    """(file, group, test, verdict) of all tests whose schemas are supported."""
    for path in sorted(SUITE.glob("*.json")) + [SUITE / "optional" / "format" / f"{form}.json" for form in FORMS]:
        for group in json.loads(path.read_text()):
            try:
                verdicts = acceptor.verdicts([compact(test["data"]) for test in group["tests"]], schema=group["schema"])
            except Refused:
                continue
            yield from ((path.name, group["description"], test, verdict == ACCEPTED) for test, verdict in zip(group["tests"], verdicts))


def test_the_published_suite(acceptor):
    if not SUITE.is_dir():
        pytest.skip("JSON Schema's test suite is absent (./setup --tests)")
    tests = list(suite(acceptor))
    # Of oneOf more than one alternative may hold, as docs/serve/structured.md says.
    wrong = [row[:3] for row in tests if row[3] and not row[2]["valid"] and row[0] != "oneOf.json"]
    assert not wrong, wrong
    n_invalid = sum(not test["valid"] and not accepted for _, _, test, accepted in tests)
    n_valid = sum(test["valid"] and accepted for _, _, test, accepted in tests)
    n_refused = sum(test["valid"] and not accepted for _, _, test, accepted in tests)
    assert n_invalid >= 357 and n_valid >= 288 and n_refused <= 213


# ---------------------------------------------------------------------------------------------- what a review found

SPACES = [chr(c) for c in (*range(9, 14), 28, 29, 30, 31, 32, 0x85, 0xa0, 0x1680, *range(0x2000, 0x200b), 0x2028, 0x2029, 0x202f, 0x205f, 0x3000, 0xfeff)]


CLASSES = {r"\s": lambda space, c: space, r"\S": lambda space, c: not space, r"[\s]": lambda space, c: space, r"[^\s]": lambda space, c: not space,
           r"[\S]": lambda space, c: not space, r"[^\S]": lambda space, c: space, r"[^\s@]": lambda space, c: not space and c != "@",
           r"[^\Sa]": lambda space, c: space, r"[\s@]": lambda space, c: space or c == "@"}


@pytest.mark.parametrize("pattern", CLASSES)
def test_white_space_of_patterns(acceptor, pattern):
    """Nothing is accepted that Python or ECMAScript refuses: they differ in U+001C to U+001F, U+0085 and U+FEFF."""
    texts = [*SPACES, "a", "@", "0", "\u00e9"]
    verdicts = acceptor.verdicts([json.dumps(text, ensure_ascii=False) for text in texts], schema={"type": "string", "pattern": f"^{pattern}$"})
    for text, verdict in zip(texts, verdicts):
        python, ecma = text in SPACES and text != "\ufeff", text in SPACES and text not in "\x1c\x1d\x1e\x1f\x85"
        assert bool(re.fullmatch(pattern, text)) == CLASSES[pattern](python, text)
        assert verdict != ACCEPTED or CLASSES[pattern](python, text) and CLASSES[pattern](ecma, text), (pattern, text)
    assert ACCEPTED in verdicts


def test_large_integers_are_not_rounded(acceptor):
    near = {"allOf": [{"enum": [9007199254740993]}, {"enum": [9007199254740992]}]}
    with pytest.raises(Refused, match="no JSON value"):
        acceptor.verdicts(["9007199254740993"], schema=near)
    assert acceptor.verdicts(["1"], schema={"allOf": [{"enum": [1]}, {"enum": [1.0, 2]}]}) == [ACCEPTED]


def test_ids_below_the_root(acceptor):
    """#/... within a schema that has an $id of its own begins there."""
    inner = {"$id": "http://x/inner", "definitions": {"a": {"type": "string"}}, "$ref": "#/definitions/a"}
    with pytest.raises(Refused, match=r"\$id"):
        acceptor.verdicts(['"a"'], schema={"definitions": {"a": {"type": "integer"}}, "properties": {"x": inner}})
    plain = {"$id": "http://x/", "properties": {"x": {"$id": "http://x/y", "type": "integer"}, "y": {"const": {"$id": "z", "$ref": "#/a"}}}}
    assert acceptor.verdicts(['{"x": 1}'], schema=plain) == [ACCEPTED]


def cpu_seconds(pid):
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_large_alternatives_end_soon(acceptor):
    """The same alternatives twice, and others that are as large, differing in their last property."""
    def alternatives(n, size, last):
        return {"anyOf": [{"properties": {**{f"p{k}": True for k in range(size)}, last: {"const": i}}} for i in range(n)]}
    for schema in ({"allOf": [alternatives(200, 500, "z")] * 2}, {"allOf": [alternatives(200, 500, "z"), alternatives(200, 500, "y")]}):
        begin = cpu_seconds(acceptor.process.pid)
        try:
            acceptor.verdicts(["{}"], schema=schema)
        except Refused as error:
            assert "large" in str(error) or "bytes" in str(error)
        assert cpu_seconds(acceptor.process.pid) - begin < 3
