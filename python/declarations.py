"""What Python knows of the library, made from include/butler.h and butler_plugin.h when the package is built: declarations for cffi, and a C program that
compiles only if cffi and the compiler lay out every struct alike."""
import re
import shlex
import subprocess


def version_of(header):
    return re.search(r'^#define BUTLER_VERSION "(.*)"$', header, re.M)[1]


def declarations(header, cc):
    """The header's text without comments, conditions and includes, and its constants. cc: the compiler's command."""
    own = re.sub(r"^#include.*$", "", header, flags=re.M)
    text = subprocess.run([*shlex.split(cc), "-E", "-P", "-x", "c", "-"], input=own, capture_output=True, text=True, check=True).stdout
    text = re.sub(r"^#.*$", "", text, flags=re.M)  # pragmas
    constants = re.findall(r"^#define (BUTLER_\w+) (\d+)$", header, re.M)
    return text + "".join(f"#define {name} {value}\n" for name, value in constants)


def layout_check(ffi, text):
    """The C program. cffi computes offsets itself; a field that it placed elsewhere than the compiler would be misread."""
    lines = ["#include <butler_plugin.h>"]
    for name in re.findall(r"\b((?:struct|enum) butler_\w+)\s*\{", text):
        lines.append(f'_Static_assert(sizeof({name}) == {ffi.sizeof(name)}, "{name}");')
        if name.startswith("struct"):
            for field, place in ffi.typeof(name).fields:
                same = f"offsetof({name}, {field}) == {place.offset} && sizeof((({name} *)0)->{field}) == {ffi.sizeof(place.type)}"
                lines.append(f'_Static_assert({same}, "{name}: {field}");')
    return "\n".join(lines) + "\n"


def check_layout(ffi, text, include, cc):
    subprocess.run([*shlex.split(cc), "-std=c11", "-fsyntax-only", f"-I{include}", "-x", "c", "-"], input=layout_check(ffi, text), text=True,
                   check=True)
