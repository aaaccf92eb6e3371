"""
Prints docs/python.md from the docstrings of loam.py:

    python3 src/cli/python/reference.py > docs/python.md
"""

from __future__ import annotations

import ast
import inspect
import pathlib
from collections.abc import Iterator
from typing import Union

SOURCE = pathlib.Path(__file__).with_name("loam.py")
MAX_LINE = 100

HEADER = """<!-- Generated from src/cli/python/loam.py by reference.py beside it. -->

# Python

{module}

Each server has the file of its version:

```sh
curl -O $LOAM/sdk/loam.py
```
"""

Function = Union[ast.FunctionDef, ast.AsyncFunctionDef]


def reference(source: str) -> str:
    """The page. It has every class and function without a leading underscore; exceptions and plain data come last."""
    module = ast.parse(source)
    classes = {node.name: node for node in module.body if isinstance(node, ast.ClassDef)}
    parts = [HEADER.format(module=docstring(module))]
    for node in sorted(
        module.body, key=lambda node: isinstance(node, ast.ClassDef) and bool(node.bases)
    ):
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            parts += describe_class(node, classes)
        elif isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            parts.append(f"## {node.name}\n\n{signature(node.name, node)}\n{docstring(node)}\n")
    return "\n".join(parts)


def describe_class(node: ast.ClassDef, classes: dict[str, ast.ClassDef]) -> Iterator[str]:
    yield f"## {node.name}\n"
    methods = [
        member
        for member in node.body
        if isinstance(member, (ast.FunctionDef, ast.AsyncFunctionDef))
    ]
    for method in methods:
        # Programs create clients only; other objects come from a client.
        if method.name == "__init__" and node.name.endswith("Client"):
            yield signature(node.name, method)
    yield f"{docstring(node)}\n"
    shown = [*fields(node, classes)]
    if shown:
        yield f"Fields: {', '.join(f'`{field}`' for field in shown)}.\n"
    for method in methods:
        # The methods for asyncio are those of the other classes, and say so.
        if method.name.startswith("_") or docstring(method).startswith("As `"):
            continue
        if any(ast.unparse(decorator) == "property" for decorator in method.decorator_list):
            yield f"### {node.name}.{method.name}\n\n{docstring(method)}\n"
        else:
            yield f"### {node.name}.{method.name}\n\n{signature(method.name, method)}\n{docstring(method)}\n"


def fields(node: ast.ClassDef, classes: dict[str, ast.ClassDef]) -> Iterator[str]:
    """The fields of a class and of its bases in this file."""
    for base in node.bases:
        if isinstance(base, ast.Name) and base.id in classes:
            yield from fields(classes[base.id], classes)
    for member in node.body:
        if isinstance(member, ast.AnnAssign):
            yield ast.unparse(member)


def signature(name: str, node: Function) -> str:
    """In one line if it is short, otherwise with a line for each parameter."""
    arguments = [
        f"{argument.arg}: {ast.unparse(argument.annotation)}"
        for argument in [*node.args.posonlyargs, *node.args.args]
        if argument.annotation
    ]
    first_default = len(arguments) - len(node.args.defaults)
    for index, default in enumerate(node.args.defaults, first_default):
        arguments[index] += f" = {ast.unparse(default)}"
    if node.args.posonlyargs:
        arguments.insert(len(node.args.posonlyargs), "/")
    if node.args.kwonlyargs:
        arguments.append("*")
    for argument, value in zip(node.args.kwonlyargs, node.args.kw_defaults):
        annotation = f": {ast.unparse(argument.annotation)}" if argument.annotation else ""
        arguments.append(argument.arg + annotation + (f" = {ast.unparse(value)}" if value else ""))
    if node.args.kwarg and node.args.kwarg.annotation:
        arguments.append(f"**{node.args.kwarg.arg}: {ast.unparse(node.args.kwarg.annotation)}")
    answer = f" -> {ast.unparse(node.returns)}" if node.returns and node.name != "__init__" else ""
    line = f"{name}({', '.join(arguments)}){answer}"
    if len(line) > MAX_LINE:
        rows = "".join(f"    {argument},\n" for argument in arguments)
        line = f"{name}(\n{rows}){answer}"
    return f"```python\n{line}\n```\n"


def docstring(node: Union[ast.Module, ast.ClassDef, Function]) -> str:
    text = ast.get_docstring(node, clean=False)
    if text is None:
        raise SystemExit(f"{getattr(node, 'name', 'loam.py')} has no docstring")
    return inspect.cleandoc(text)


if __name__ == "__main__":
    print(reference(SOURCE.read_text(encoding="utf-8")), end="")
