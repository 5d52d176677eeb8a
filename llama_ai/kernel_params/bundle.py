"""Join the modules of this package into ``scripts/kernel-params``, one plain Python file.

The helper runs under sudo and must import nothing that a user can write, so it cannot import this
package. It is the same code all the same: this module copies the sources one below the other,
leaves out the imports between them, and changes nothing else. ``python -m
llama_ai.kernel_params.bundle`` writes the file; with ``--check`` it only says whether the file is
what it would write.
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from pathlib import Path

from llama_ai.errors import LlamaAiError

PACKAGE = "llama_ai.kernel_params"
MODULES = (
    "cmdline",
    "parameters",
    "tree",
    "modprobe",
    "facts",
    "wanted",
    "merge",
    "routes.base",
    "routes.initramfs",
    "routes.modprobe_d",
    "routes.shell_words",
    "routes.grub",
    "routes.entries",
    "routes.systemd_boot",
    "routes.uki",
    "routes.limine",
    "routes.grubby",
    "routes.rpm_ostree",
    "routes.steamos",
    "routes.choose",
    "state",
    "planning",
    "files",
    "images",
    "execute",
    "verify",
    "report",
    "esp",
    "helper",
)
ERRORS = ("LlamaAiError", "UsageError")
HEADER = """\
#!/usr/bin/env -S python3 -I
# Let the GPU of an AMD APU use more of the system's memory: kernel-params show|apply|revert|verify
#
# This file stands alone: it uses Python's standard library and nothing else, so that it can be read
# and run as root. It is written by `python -m llama_ai.kernel_params.bundle` from the modules that
# the section headings name; change those, not this file.
#
# Whatever the rest decides, every write goes through Writer (section files.py), which knows the
# paths that may be written, and every command through run_command (section execute.py), which knows
# the commands that may be run. It never reboots.
"""
GUARD = """\

import os
import sys

if __name__ == "__main__" and not sys.flags.isolated:
    # Without -I, Python would import from the directory of this file and from PYTHONPATH. The two
    # modules above are in memory before any of that is looked at.
    again = [sys.executable, "-I", os.path.realpath(__file__), *sys.argv[1:]]
    os.execv(sys.executable, again)  # noqa: S606

"""
FOOTER = """\
if __name__ == "__main__":
    sys.exit(main())
"""


def bundle() -> str:
    """The text of the helper; raises :class:`~llama_ai.errors.LlamaAiError` on a doubled name."""
    here = Path(__file__).resolve().parent
    imports: dict[str, set[str]] = defaultdict(set)
    typing_only: dict[str, set[str]] = defaultdict(set)
    owners: dict[str, str] = {}
    sections: list[str] = [_errors(here.parent / "errors.py")]
    for name in MODULES:
        path = here / f"{name.replace('.', '/')}.py"
        source = path.read_text(encoding="utf-8")
        tree = ast.parse(source)
        for defined in _top_names(tree):
            if defined in owners:
                raise LlamaAiError(
                    f"{defined} is defined in {owners[defined]} and in {name}",
                    hint="names at the top of these modules must differ",
                )
            owners[defined] = name
        sections.append(_section(name, source, tree, imports, typing_only))
    for module in list(typing_only):
        typing_only[module] -= imports.get(module, set())
        if not typing_only[module]:
            del typing_only[module]
    for module in ("os", "sys"):
        del imports[module]
    head = HEADER + "\nfrom __future__ import annotations\n" + GUARD + _import_lines(imports, "")
    head += "\nif TYPE_CHECKING:\n" + _import_lines(typing_only, "    ")
    return "\n\n".join([head, *sections, FOOTER])


def _section(
    name: str,
    source: str,
    tree: ast.Module,
    imports: dict[str, set[str]],
    typing_only: dict[str, set[str]],
) -> str:
    lines = source.splitlines(keepends=True)
    dropped: set[int] = set()
    docstring = ast.get_docstring(tree, clean=False) or ""
    for index, node in enumerate(tree.body):
        is_docstring = index == 0 and isinstance(node, ast.Expr)
        is_guard = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        if is_guard:
            assert isinstance(node, ast.If)  # noqa: S101 - for the type checker
            for inner in node.body:
                _note_import(inner, typing_only)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            _note_import(node, imports)
        elif not is_docstring:
            continue
        dropped.update(range(node.lineno - 1, node.end_lineno or node.lineno))
    body = "".join(line for number, line in enumerate(lines) if number not in dropped).strip("\n")
    title = f"# ==== {name.replace('.', '/')}.py "
    comment = "".join(f"# {line}".rstrip() + "\n" for line in docstring.strip().splitlines())
    gap = "\n\n" if body.startswith(("@", "def ", "class ")) else "\n"
    return f"{title:=<100}\n{comment}{gap}{body}\n"


def _note_import(node: ast.stmt, into: dict[str, set[str]]) -> None:
    if isinstance(node, ast.Import):
        for alias in node.names:
            into[alias.name].add("")
    elif isinstance(node, ast.ImportFrom) and not (node.module or "").startswith(
        ("llama_ai.", "__future__")
    ):
        into[node.module or ""].update(alias.name for alias in node.names)


def _import_lines(imports: dict[str, set[str]], indent: str) -> str:
    plain = sorted(module for module, names in imports.items() if "" in names)
    lines = [f"{indent}import {module}\n" for module in plain]
    for module in sorted(imports):
        names = sorted(imports[module] - {""}, key=lambda n: (not n.isupper(), n[0].islower(), n))
        if names:
            lines.append(f"{indent}from {module} import {', '.join(names)}\n")
    return "".join(lines)


def _errors(path: Path) -> str:
    """The error classes that the modules use, from the application's own tree of errors."""
    source = path.read_text(encoding="utf-8")
    found = [
        ast.get_source_segment(source, node) or ""
        for node in ast.parse(source).body
        if isinstance(node, ast.ClassDef) and node.name in ERRORS
    ]
    return f"{'# ==== errors.py ':=<100}\n\n\n" + "\n\n\n".join(found) + "\n"


def _top_names(tree: ast.Module) -> list[str]:
    names: list[str] = []
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.append(node.name)
        elif isinstance(node, ast.Assign):
            names += [target.id for target in node.targets if isinstance(target, ast.Name)]
    return names


def main() -> int:
    """Write the helper, or with ``--check`` compare it; 1 when it differs."""
    target = Path(__file__).resolve().parents[2] / "scripts" / "kernel-params"
    text = bundle()
    if "--check" in sys.argv[1:]:
        same = target.is_file() and target.read_text(encoding="utf-8") == text
        if not same:
            sys.stderr.write(f"{target} differs: run python -m llama_ai.kernel_params.bundle\n")
        return 0 if same else 1
    target.write_text(text, encoding="utf-8")
    target.chmod(0o755)
    return 0


if __name__ == "__main__":
    sys.exit(main())
