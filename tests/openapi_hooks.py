"""What schemathesis shall not send, because docs/openapi.yaml says so in words and not by a schema (SCHEMATHESIS_HOOKS of test_openapi.py)."""
import json

import schemathesis


def fits(body):
    """In the context of the server of test_openapi.py, whatever its bytes are tokens of."""
    return len(json.dumps(body, ensure_ascii=False, default=str).encode(errors="replace")) < 3500


def is_free(body):
    """Without a grammar or a schema: which texts are grammars, and that these fields exclude each other, no JSON schema can say.
    test_schema.py and test_serve_llama.py have those."""
    body = body if isinstance(body, dict) else {}
    text = body.get("text")
    fields = [body.get(name) for name in ("grammar", "json_schema", "response_format")] + [text.get("format") if isinstance(text, dict) else None]
    return not any(field not in (None, "") for field in fields)


def requires_call(body):
    """tool_choice that goes together with tools, and with a template whose form of calls is known: test_serve_tool_choice.py."""
    choice = body.get("tool_choice") if isinstance(body, dict) else None
    return choice in ("required", "any") or isinstance(choice, dict) and choice.get("type") not in ("auto", "none", None)


@schemathesis.hook
def filter_case(context, case):
    return fits(case.body) and is_free(case.body) and not requires_call(case.body)
