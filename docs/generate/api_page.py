"""Writes docs/api.md from the docstrings of the client and of Spark.

    python docs/generate/api_page.py [--check]

Sources are read as syntax trees, so Spark need not be installed. The page has every name of
`holdfast.client.__all__` exactly once. `--check` writes nothing, and exits with 1 if the page
differs.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import holdfast.client
import holdfast.client.sync
from holdfast.protocol.errors import HoldfastError

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = ROOT / "docs" / "api.md"

#: All names of the client except the errors, in the order of the page.
CLIENT: Final = {
    "Connecting": ("connect", "TlsFiles", "Client"),
    "Streams": ("Stream", "StreamTransaction", "PendingAck", "ValueReader"),
    "Key-value stores": ("KV", "KVTransaction"),
    "Work queues": ("Consumer", "Delivery", "DeadLetter", "ConsumerConfig", "ConsumerInfo"),
    "Following stores": (
        *("Subscription", "Change", "ChangeKind", "RemovalReason"),
        *("PatternSubscription", "StoreChange"),
    ),
    "Live replicas": (
        *("LiveKV", "DELETE", "EntryChange", "LiveStream", "LiveMessage", "MessageChange"),
        *("MessageChangeKind", "Origin", "Rejection"),
    ),
    "Values and answers": (
        *("Message", "WrittenMessage", "Entry", "WrittenEntry", "LargeValue", "Ack", "Durability"),
        *("Deleted", "Head", "Codec"),
        *("SubjectInfo", "HeaderBlock"),
        *("ChainLink", "ChainReport", "check_chain", "leaf_of_message", "leaf_of_entry"),
        *("StoreConfig", "Discard", "ServerInfo", "StoreInfo", "StoreKind", "StoreState"),
        "StoreFork",
        "StoreHead",
        *("PartStatistics", "Sample", "HistogramValue"),
        *("quote", "unquote"),
    ),
}
#: Types in signatures of the client that it does not export.
TYPES: Final = (
    *("AnyDurability", "CodecName", "ConfigSettings", "ConsumerSettings", "Headers"),
    *("MergeFunction", "Source", "StrPath", "Value"),
)
#: Public names of Spark, by what they are for.
SPARK: Final = {
    "Sessions": ("session", "register_sources"),
    "Export and compaction": ("export", "ExportReport", "compact", "CompactionReport"),
    "Reading the table": ("state_sql", "read_table", "latest", "typed_values"),
    "Import": ("import_table", "Target", "ImportReport"),
}
#: Methods that only other parts of holdfast call.
INTERNAL: Final = frozenset(
    (
        *("from_wire", "to_wire", "to_json", "changed", "dedupe_ms", "ack_wait_ms", "letter"),
        *("set_result", "give_up", "readable", "of", "send_now", "serving_stream"),
        "tell_statistics",
    )
)
INTRODUCTION: Final = """\
# API reference

`make generate` writes this page from the docstrings. [guide.md](guide.md) shows how the parts are
used together.

The page describes the asyncio API, `holdfast.client`. [The blocking API](#the-blocking-api),
`holdfast.client.sync`, has the same names. [Spark](#spark) has functions of its own.
"""
TYPES_TITLE: Final = """\
### Types in signatures

`V` is the type of a handle's values: bytes, or what its codec returns.
"""
ERRORS: Final = """\
## Errors

All errors are in `holdfast.client`. Each has a stable `code` and a map of `fields`, which are
attributes too. If *retry* is "yes", the same call can succeed later. The client retries such errors
itself until the timeout of the call, except RateLimitedError.
"""
BLOCKING: Final = """\
## The blocking API

`holdfast.client.sync` has the same functions, classes and methods as `holdfast.client`, with the
same arguments, results and errors. Leave out `await` and `async`, and call `close` instead of
`aclose`:

| `holdfast.client` | `holdfast.client.sync` |
|---|---|
| `async with connect(...) as hf:` | `with connect(...) as hf:` |
| `ack = await stream.append(b"...")` | `ack = stream.append(b"...")` |
| `async for message in stream.get_all():` | `for message in stream.get_all():` |
| `ack = await pending` | `ack = pending.result()` |
| `await subscription.aclose()` | `subscription.close()` |

A client may be used from any number of threads. These exist only here:
"""


class Module:
    """One source file."""

    def __init__(self, name: str, path: Path) -> None:
        self.name = name
        self.lines = path.read_text().splitlines()
        self.tree = ast.parse("\n".join(self.lines))
        self.definitions: dict[str, ast.stmt] = {}
        for node in self.tree.body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                self.definitions[node.name] = node
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                self.definitions[node.target.id] = node
            elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                self.definitions[node.targets[0].id] = node

    def shown(self, default: ast.expr) -> str:
        """Return a default as readers see it."""
        value = ast.unparse(default)
        return self.constant(value) if value.isidentifier() and value.isupper() else value

    def comment(self, line: int) -> str:
        """Return the text of the `#:` comment that ends above a line."""
        found: list[str] = []
        while line >= 2 and (text := self.lines[line - 2].strip()).startswith("#: "):
            found.insert(0, text.removeprefix("#: "))
            line -= 1
        return " ".join(found)

    def constant(self, name: str) -> str:
        """Return the source of a constant, or its name if the source is elsewhere or long."""
        for node in self.tree.body:
            if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == name:
                value = ast.unparse(node.value) if node.value else name
                return value if len(value) <= 40 else name
            imported = node.names if isinstance(node, ast.ImportFrom) else []
            if name in [each.name for each in imported] and isinstance(node, ast.ImportFrom):
                file = ROOT / Path(*str(node.module).split(".")[1:]).with_suffix(".py")
                return Module(str(node.module), file).constant(name) if file.is_file() else name
        return name


def module_of(defined: Any) -> Module:
    file = Path(str(sys.modules[defined.__module__].__file__))
    return Module(defined.__module__, file)


def client_module(name: str) -> Module:
    """Return the module that defines a public name of the client."""
    defined = getattr(holdfast.client, name)
    return module_of(type(defined) if name == "DELETE" else defined)


def defining(wanted: Iterable[str], folder: str, *, errors: bool = False) -> dict[str, Module]:
    """Return the modules in a folder that define names; with `errors`, also those of all errors
    but such as no user sees: they have no class but Exception above them."""
    found: dict[str, Module] = {}
    for path in sorted((ROOT / folder).rglob("*.py")):
        name = ".".join(("holdfast", *path.relative_to(ROOT).with_suffix("").parts))
        module = Module(name, path)
        for each, node in module.definitions.items():
            is_error = (
                errors
                and isinstance(node, ast.ClassDef)
                and each.endswith("Error")
                and [ast.unparse(base) for base in node.bases] != ["Exception"]
            )
            if each in wanted or is_error:
                assert each not in found, f"{each} is in {name} and in {found[each].name}"
                found[each] = module
    return found


def type_table() -> str:
    """Return the table of the types in signatures."""
    modules = defining(TYPES, "protocol") | defining(TYPES, "client")
    rows = []
    for name in TYPES:
        module = modules[name]
        node = module.definitions[name]
        if isinstance(node, ast.Assign):
            rows.append((code(name), code(ast.unparse(node.value)), module.comment(node.lineno)))
        else:
            rows.append((code(name), code("TypedDict"), " ".join(prose(node).split())))
    return table(rows, "type", "is", "")


# Rendering


def prose(node: ast.AST) -> str:
    """Return a docstring as Markdown, with its indented examples fenced."""
    assert isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
    text = ast.get_docstring(node) or ""
    parts: list[str] = []
    for part in re.split(r"\n\n(?=    )|(?<=\S)\n\n(?! )", text):
        if part.startswith("    "):
            code = "\n".join(line.removeprefix("    ") for line in part.splitlines())
            parts.append(f"```python\n{code}\n```")
        else:
            parts.append(part)
    return "\n\n".join(parts).replace("\n```\n\n```python\n", "\n\n")


def is_public(name: str) -> bool:
    return not name.startswith("_") and name not in INTERNAL


def is_overload(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any(isinstance(each, ast.Name) and each.id == "overload" for each in node.decorator_list)


def is_property(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any(isinstance(each, ast.Name) and each.id == "property" for each in node.decorator_list)


def signature(module: Module, node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """Return `name(parameters) -> result`, in several lines if it is long."""
    arguments = node.args

    def shown(argument: ast.arg, default: ast.expr | None) -> str:
        annotation = f": {ast.unparse(argument.annotation)}" if argument.annotation else ""
        if default is None:
            return f"{argument.arg}{annotation}"
        return f"{argument.arg}{annotation} = {module.shown(default)}"

    positional = [*arguments.posonlyargs, *arguments.args]
    defaults = [None] * (len(positional) - len(arguments.defaults)) + list(arguments.defaults)
    parts = [
        shown(argument, default)
        for argument, default in zip(positional, defaults, strict=True)
        if argument.arg not in ("self", "cls")
    ]
    if arguments.kwonlyargs:
        parts.append("*")
    parts += map(shown, arguments.kwonlyargs, arguments.kw_defaults)
    if arguments.kwarg is not None:
        parts.append(f"**{shown(arguments.kwarg, None)}")
    start = "async def" if isinstance(node, ast.AsyncFunctionDef) else "def"
    end = f") -> {ast.unparse(node.returns)}" if node.returns else ")"
    line = f"{start} {node.name}({', '.join(parts)}{end}"
    if len(line) <= 100:
        return line
    return "\n".join([f"{start} {node.name}(", *(f"    {part}," for part in parts), end])


def methods(node: ast.ClassDef) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for each in node.body:
        is_function = isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
        if is_function and is_public(each.name) and not is_overload(each):
            yield each


def fields(module: Module, node: ast.ClassDef) -> Iterator[tuple[str, str, str, str]]:
    """Yield name, type, default and meaning of each public attribute."""
    is_enum = any("Enum" in ast.unparse(base) for base in node.bases)
    for each in node.body:
        if is_enum and isinstance(each, ast.Assign):
            name = ast.unparse(each.targets[0])
            yield name, "", ast.unparse(each.value), module.comment(each.lineno)
        elif isinstance(each, ast.AnnAssign) and "ClassVar" not in ast.unparse(each.annotation):
            name = ast.unparse(each.target)
            default = module.shown(each.value) if each.value else ""
            default = "" if default.startswith("field(") else default
            if not name.startswith("_"):
                yield name, ast.unparse(each.annotation), default, module.comment(each.lineno)
        elif isinstance(each, ast.FunctionDef) and each.name == "__init__":
            for made in ast.walk(each):
                if isinstance(made, ast.Assign | ast.AnnAssign):
                    target = made.target if isinstance(made, ast.AnnAssign) else made.targets[0]
                    name = ast.unparse(target).removeprefix("self.")
                    meaning = module.comment(made.lineno)
                    if meaning and name.isidentifier() and not name.startswith("_"):
                        kind = made.annotation if isinstance(made, ast.AnnAssign) else None
                        yield name, ast.unparse(kind) if kind else "", "", meaning
    for function in methods(node):
        if is_property(function):
            kind = ast.unparse(function.returns) if function.returns else ""
            yield function.name, kind, "", " ".join((ast.get_docstring(function) or "").split())


def table(rows: Sequence[Sequence[str]], *header: str) -> str:
    """Return a Markdown table without empty columns."""
    used = [i for i, title in enumerate(header) if any(row[i] for row in rows)]
    lines = ["| " + " | ".join(header[i] for i in used) + " |", "|" + "---|" * len(used)]
    for row in rows:
        lines.append("| " + " | ".join(row[i].replace("|", "\\|") for i in used) + " |")
    return re.sub(r"\|  (?=\|)", "| ", "\n".join(lines))


def code(text: str) -> str:
    return f"`{text}`" if text else ""


def rendered(module: Module, name: str, bases: Sequence[tuple[Module, ast.ClassDef]] = ()) -> str:
    """Return the section of one function, class or constant."""
    node = module.definitions[name]
    if isinstance(node, ast.AnnAssign):
        return f"### {name}\n\n{module.comment(node.lineno)}"
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return f"### {name}\n\n```python\n{signature(module, node)}\n```\n\n{prose(node)}"
    assert isinstance(node, ast.ClassDef)
    parts = [f"### {name}", prose(node)]
    owners = [(module, node), *bases]
    seen: set[str] = set()
    rows = []
    for owner, each in owners:
        for field, kind, default, meaning in fields(owner, each):
            if field not in seen:
                seen.add(field)
                rows.append((code(field), code(kind), code(default), meaning))
    if rows:
        is_enum = any("Enum" in ast.unparse(base) for base in node.bases)
        titles = (
            ("member", "type", "value", "") if is_enum else ("attribute", "type", "default", "")
        )
        parts.append(table(rows, *titles))
    for owner, each in owners:
        for function in methods(each):
            if function.name not in seen and not is_property(function):
                seen.add(function.name)
                parts.append(f"#### {name}.{function.name}")
                parts.append(f"```python\n{signature(owner, function)}\n```")
                parts.append(prose(function))
    return "\n\n".join(parts)


def inherited(name: str) -> list[tuple[Module, ast.ClassDef]]:
    """Return the classes of holdfast that a class of the client inherits from."""
    defined = getattr(holdfast.client, name)
    if not isinstance(defined, type):
        return []
    found = []
    for base in defined.__mro__[1:]:
        if base.__module__.startswith("holdfast."):
            module = module_of(base)
            node = module.definitions[base.__name__]
            assert isinstance(node, ast.ClassDef)
            found.append((module, node))
    return found


def errors() -> list[type[HoldfastError]]:
    """Return the public errors, each after its base class."""

    def below(cls: type[HoldfastError]) -> Iterator[type[HoldfastError]]:
        if cls.__name__ in holdfast.client.__all__:
            yield cls
            for each in cls.__subclasses__():
                yield from below(each)

    return list(below(HoldfastError))


def error_table() -> str:
    rows = []
    for cls in errors():
        meaning = " ".join((cls.__doc__ or "").split())
        names = ", ".join(code(each) for each in sorted(set(re.findall(r"\{(\w+)", cls.template))))
        base = code(cls.__base__.__name__) if cls.__base__ is not Exception else ""
        retry = "yes" if cls.retryable else ""
        rows.append((code(cls.__name__), base, code(cls.code), retry, names, meaning))
    return table(rows, "error", "is a", "code", "retry", "fields", "raised if")


def only_blocking() -> str:
    """Return the table of the names that `holdfast.client.sync` has and `holdfast.client` lacks."""
    rows = []
    renamed = {"close": "aclose", "result": "__await__"}
    for name in holdfast.client.sync.__all__:
        here, there = getattr(holdfast.client.sync, name), getattr(holdfast.client, name, None)
        if there is None:
            rows.append((code(name), summary(here)))
        if not isinstance(here, type):
            continue
        # A class does not have the attributes of its instances.
        bases = inherited(name) if there else []
        instance = {field for owner, node in bases for field, *_ in fields(owner, node)}
        for base in here.__mro__:
            if not base.__module__.startswith("holdfast."):
                continue
            for each, member in vars(base).items():
                known = there is not None and (
                    hasattr(there, each) or hasattr(there, renamed.get(each, each))
                )
                if is_public(each) and not known and each not in instance:
                    rows.append((code(f"{name}.{each}"), summary(member)))
    return table(rows, "name", "")


def summary(documented: Any) -> str:
    """Return the first paragraph of a docstring in one line."""
    text = " ".join((documented.__doc__ or "").split("\n\n")[0].split())
    assert text, documented
    return text


def contents(groups: Sequence[tuple[str, Sequence[str]]]) -> str:
    rows = [
        (f"[{title}](#{anchor(title)})", ", ".join(f"[{each}](#{anchor(each)})" for each in names))
        for title, names in groups
    ]
    return table(rows, "part", "names")


def anchor(title: str) -> str:
    return re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")


def page() -> str:
    """Return the whole page."""
    listed = [name for names in CLIENT.values() for name in names]
    listed += [cls.__name__ for cls in errors()]
    assert sorted(listed) == sorted(holdfast.client.__all__), (
        set(listed) ^ set(holdfast.client.__all__)
    )
    spark = defining([name for names in SPARK.values() for name in names], "spark", errors=True)
    parts = [
        INTRODUCTION,
        contents(
            [*CLIENT.items(), ("Errors", ()), ("The blocking API", ()), ("Spark", ())]
        ),
    ]
    for title, names in CLIENT.items():
        parts.append(f"## {title}")
        for name in names:
            parts.append(rendered(client_module(name), name, inherited(name)))
    parts += [
        TYPES_TITLE + "\n" + type_table(),
        ERRORS + "\n" + error_table(),
        BLOCKING + "\n" + only_blocking(),
        "## Spark",
        "[analytics.md](analytics.md) describes the table and the data source, with its options.",
    ]
    for title, names in SPARK.items():
        parts.append(f"### {title}")
        for name in names:
            module = spark[name]
            text = rendered(module, name)
            parts.append(re.sub(r"^###", "####", text, flags=re.MULTILINE))
    rows = []
    for name, module in spark.items():
        if name.endswith("Error"):
            rows.append((code(name), " ".join(prose(module.definitions[name]).split())))
    parts += ["### Errors of Spark", table(rows, "error", "raised if")]
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def main(arguments: Sequence[str]) -> int:
    text = page()
    if arguments == ["--check"]:
        if PAGE.is_file() and PAGE.read_text() == text:
            return 0
        print("docs/api.md differs from the docstrings. Try: make generate", file=sys.stderr)
        return 1
    PAGE.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
