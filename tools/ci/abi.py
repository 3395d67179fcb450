#!/usr/bin/env python3
"""The binary interface of the public headers: sizes and offsets of every struct, values of every constant, every function's declaration.
abi/VERSION.json records it for each release. Prints how the headers differ from the latest release in a way that a program built
against that release could notice, then "N passed, N failed".

    tools/ci/abi.py                 what ./check runs: headers with the soname of the latest release must be compatible with it
    tools/ci/abi.py --write         records abi/VERSION.json for the headers' own version: a step of a release
    tools/ci/abi.py --include DIR   other headers than include/

Compatible is: structs that begin with struct_size have the same fields at the same places, and more behind them; all other structs are
the same; constants have their values; functions are declared alike. What plug-ins are built against may change with BUTLER_METRIC_ABI
and BUTLER_STEP_ABI, which refuse older ones. All else needs a new soname: a new minor number while the major
one is 0 (Makefile)."""
import argparse
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
RECORDS = ROOT / "abi"
# The number that changes with a struct of plug-ins.
PLUGIN = dict.fromkeys(("butler_metric", "butler_metric_shape", "butler_metric_scan", "butler_param", "butler_param_form", "butler_block_weights", "butler_score_request"), "BUTLER_METRIC_ABI") | \
    dict.fromkeys(("butler_step_view", "butler_step_action", "butler_step_plugin"), "BUTLER_STEP_ABI")
HEADERS = ("butler.h", "butler_plugin.h", "butler_tools.h")


def plain_text(include):
    """The headers' declarations without comments, includes, conditions and pragmas, and their text."""
    source = "".join((include / name).read_text() for name in HEADERS if (include / name).exists())
    own = re.sub(r'^#\s*(?:include|pragma).*$', "", source, flags=re.M)
    text = subprocess.run(["cc", "-E", "-P", "-x", "c", "-"], input=own, capture_output=True, text=True, check=True).stdout
    return re.sub(r"\s+", " ", text), source


def names_of(body):
    """The fields of a struct's body, in order."""
    names = []
    for declaration in filter(str.strip, body.split(";")):
        pointer = re.search(r"\(\*\s*(\w+)\)\s*\(", declaration)
        if pointer:
            names.append(pointer[1])
        else:
            names += [re.search(r"(\w+)\s*(?:\[[^\]]*\]\s*)*$", part.strip())[1] for part in declaration.split(",")]
    return names


def read(include):
    """{"version", "structs": {name: {"size", "sized", "fields": {name: [offset, size]}}}, "constants", "functions"}"""
    text, source = plain_text(include)
    structs = {name: names_of(body) for name, body in re.findall(r"struct (butler_\w+) \{(.*?)\};", text)}
    constants = [word for body in re.findall(r"enum butler_\w+ \{(.*?)\}", text) for word in re.findall(r"\b(BUTLER_\w+)", body)]
    constants += re.findall(r"^#define (BUTLER_\w+) \d+\b", source, re.M)
    outside = re.sub(r"(?:struct|enum) butler_\w+ \{.*?\};", "", text)
    functions = {re.search(r"(butler_\w+)\(", part)[1]: " ".join(part.split()) for part in outside.split(";") if re.search(r"butler_\w+\(", part)}
    lines = ["#include <stdio.h>"] + [f"#include <{name}>" for name in HEADERS if (include / name).exists()] + ["int main(void) {"]
    for name, fields in structs.items():
        lines.append(f'printf("struct {name} %zu\\n", sizeof(struct {name}));')
        lines += [f'printf("field {name} {f} %zu %zu\\n", offsetof(struct {name}, {f}), sizeof(((struct {name} *)0)->{f}));' for f in fields]
    lines += [f'printf("constant {name} %lld\\n", (long long){name});' for name in constants] + ["return 0;", "}"]
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "abi.c").write_text("\n".join(lines))
        subprocess.run(["cc", "-std=c11", f"-I{include}", "-o", f"{folder}/abi", f"{folder}/abi.c"], check=True)
        said = subprocess.run([f"{folder}/abi"], capture_output=True, text=True, check=True).stdout
    out = {"version": re.search(r'^#define BUTLER_VERSION "(.*)"$', source, re.M)[1], "structs": {}, "constants": {}, "functions": functions}
    for line in said.splitlines():
        kind, name, *rest = line.split()
        if kind == "struct":
            out["structs"][name] = {"size": int(rest[0]), "sized": structs[name][0] == "struct_size", "fields": {}}
        elif kind == "field":
            out["structs"][name]["fields"][rest[0]] = [int(rest[1]), int(rest[2])]
        else:
            out["constants"][name] = int(rest[0])
    return out


def soname(version):
    """As the Makefile makes it."""
    major, minor, *_ = version.split(".")
    return f"0.{minor}" if major == "0" else major


def differences(old, new):
    """What a program built against `old` would notice of a library of `new`."""
    found = []
    for name, struct in old["structs"].items():
        now = new["structs"].get(name)
        if now and name in PLUGIN and old["constants"][PLUGIN[name]] != new["constants"][PLUGIN[name]]:
            continue
        if not now:
            found.append(f"struct {name} is gone")
            continue
        moved = [field for field, place in struct["fields"].items() if now["fields"].get(field) != place]
        found += [f"struct {name}: {field} has moved, has another size or is gone" for field in moved]
        padded = [f for f, (at, _) in now["fields"].items() if f not in struct["fields"] and at < struct["size"]]
        if struct["sized"] and padded:
            found.append(f"struct {name}: {', '.join(padded)} lies in the padding, which programs count as theirs")
        elif not moved and (now["size"] < struct["size"] or (now["size"] != struct["size"] or now["fields"] != struct["fields"]) and not struct["sized"]):
            found.append(f"struct {name} has no struct_size, so nothing can be added" if not struct["sized"] else f"struct {name} is smaller")
    found += [f"{name} is {new['constants'].get(name)}, was {value}" for name, value in old["constants"].items()
              if new["constants"].get(name) != value and not re.search(r"_N_|_ABI$", name)]
    found += [f"{name}() is declared otherwise, or gone" for name, text in old["functions"].items() if new["functions"].get(name) != text]
    return found


def latest(records):
    """The record of the newest release."""
    files = sorted(records.glob("*.json"), key=lambda f: tuple(map(int, f.stem.split("."))))
    return json.loads(files[-1].read_text()) if files else None


def main():
    parser = argparse.ArgumentParser(prog="abi", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--include", type=Path, default=ROOT / "include", metavar="DIR")
    parser.add_argument("--records", type=Path, default=RECORDS, metavar="DIR")
    args = parser.parse_args()
    now = read(args.include)
    if args.write:
        (args.records / f"{now['version']}.json").write_text(json.dumps(now, indent=0, sort_keys=True) + "\n")
        return 0
    then = latest(args.records)
    found = differences(then, now) if soname(then["version"]) == soname(now["version"]) else []
    for line in found:
        print(f"{line}: this needs a new soname; raise BUTLER_VERSION beyond {then['version']}")
    total = len(now["structs"]) + len(now["functions"])
    print(f"{total - len(found)} passed, {len(found)} failed")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
