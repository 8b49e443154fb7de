"""Writes the blocking API of the client, `client/blocking/`, from the syntax tree of the asyncio
one.

Signatures, overloads and docstrings are those of the asyncio classes, reworded for blocking code.
Bodies follow from the signature: a coroutine runs in the background, an async iterator becomes
`Rows`, and a result that has a blocking class is wrapped in it. Bodies that follow from no rule are
written by hand in `blocking_bodies.py` here, and in those modules of `client/blocking/` that do not
begin with `Generated`.

This folder is not a package, so it is not installed. `make generate` writes the modules. `make
check` runs `docs/generate/blocking_api.py --check`, which fails if they differ from its output.
"""

from __future__ import annotations

import ast
import builtins
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[2]
BLOCKING: Final = "holdfast.client.blocking"
LINE_LENGTH: Final = 100

#: The names of special methods in blocking code.
NAMES: Final = {
    "aclose": "close",
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "__aiter__": "__iter__",
    "__anext__": "__next__",
}
#: Words of asyncio docstrings and their replacements, in the order in which they are applied.
WORDS: Final = (
    ("an async iterator", "an iterator"),
    ("An async iterator", "An iterator"),
    ("async ", ""),
    ("await ", ""),
    ("aclose", "close"),
    ("the loop's body may await, and change", "the loop's body may change"),
    ("For one task", "For one thread"),
    ("may be used by many tasks", "may be used by many threads"),
    ("Acks of one turn of the event loop travel", "Acks of several threads travel"),
)
#: Words that no docstring of blocking code may contain.
ASYNC_WORDS: Final = re.compile(
    r"\b(async|await|awaits|awaited|aclose|asyncio|coroutines?|tasks?)\b"
)
#: How operators call special methods.
OPERATORS: Final = {
    "__getitem__": "{0}[{1}]",
    "__len__": "len({0})",
    "__contains__": "{1} in {0}",
    "__iter__": "iter({0})",
}
#: Methods for other parts of holdfast, which have no blocking form.
INTERNAL: Final = {"send_now", "serving_stream", "tell_statistics"}
#: Classes whose asyncio originals must be made on the event loop.
MADE_ON_LOOP: Final = {"Consumer", "LiveKV", "LiveStream", "PatternSubscription", "Subscription"}


class Twin(NamedTuple):
    """A class of the asyncio API, and the blocking class that has one as an attribute."""

    #: The module of the blocking class, and the module and name of the asyncio class.
    written: str
    module: str
    original: str
    attribute: str
    #: True if its methods must run on the event loop's thread, even those that do not wait;
    #: `anywhere` lists the exceptions.
    on_loop: bool = False
    anywhere: frozenset[str] = frozenset()

    @property
    def blocking(self) -> str:
        return "_LiveReplica" if self.original == "LiveReplica" else self.original

    @property
    def path(self) -> str:
        return f"client/{self.module.replace('.', '/')}.py"


_READ_ANYWHERE: Final = ("__getitem__", "__len__", "__contains__", "entry", "unsaved_count")
#: All generated classes, in the order in which they are written.
TWINS: Final = (
    Twin("client", "connection", "Client", "_client"),
    Twin("consumer", "handles.consumer", "Delivery", "_delivery"),
    Twin("consumer", "handles.consumer", "Consumer", "_consumer"),
    Twin("kv", "handles.kv", "KV", "_kv"),
    Twin("live", "live.live_replica", "LiveReplica", "_replica", True, frozenset({"connected"})),
    Twin("live", "live.live_kv", "LiveKV", "_kv", True, frozenset(_READ_ANYWHERE)),
    Twin(
        *("live", "live.live_stream", "LiveStream", "_stream", True),
        frozenset({"start_seq", "unsaved_count"}),
    ),
    Twin("stream", "handles.stream", "Stream", "_stream"),
    Twin("subscription", "following.subscription", "Subscription", "_subscription"),
    Twin("subscription", "following.pattern", "PatternSubscription", "_subscription"),
    Twin("transaction", "handles.transaction", "_Transaction", "_transaction"),
    Twin("transaction", "handles.transaction", "KVTransaction", "_transaction"),
    Twin("transaction", "handles.transaction", "StreamTransaction", "_transaction"),
)
#: The generated modules, and the docstring of each.
MODULES: Final = {
    "client": "The client, for blocking code.",
    "consumer": "A consumer, for blocking code.",
    "kv": "A kv, for blocking code.",
    "live": """Live replicas, for blocking code.

The replicas live on the background's thread, which alone changes them. Reads and writes run there,
take some tens of microseconds and never wait for a server; a single key of a kv is read in the
calling thread. Callbacks and merges run on that thread too. They may read and write any replica,
and must not block (BackgroundThreadError), because every client of the process waits meanwhile.""",
    "stream": "A stream, for blocking code.",
    "subscription": "Subscriptions, for blocking code.",
    "transaction": "Transactions, for blocking code.",
}
GENERATED: Final = {twin.blocking: twin.written for twin in TWINS}
#: Classes whose asyncio objects blocking code never hands out.
WRAPPED: Final = {name for name in GENERATED if not name.startswith("_")} | {"ValueReader"}

Function = ast.FunctionDef | ast.AsyncFunctionDef


class GenerationError(Exception):
    """No rule covers a part of the asyncio API."""


class Source:
    """A module as text and as a tree."""

    def __init__(self, text: str, name: str) -> None:
        self.name = name
        self.lines = text.splitlines()
        self.tree = ast.parse(text)
        self.classes = {
            node.name: node for node in self.tree.body if isinstance(node, ast.ClassDef)
        }
        #: The import of each name, including those that only types need.
        self.imports = dict(_imports(self.tree))
        self.assigned = dict(_assigned(self.tree))

    @property
    def defined(self) -> set[str]:
        functions = {node.name for node in self.tree.body if isinstance(node, Function)}
        return {*self.classes, *self.assigned, *functions}

    def text(self, node: ast.stmt) -> str:
        """Return the source of a statement, with its decorators and comments."""
        first = min([node.lineno, *(each.lineno for each in getattr(node, "decorator_list", []))])
        while self.lines[first - 2].strip().startswith("#"):
            first -= 1
        return textwrap.dedent("\n".join(self.lines[first - 1 : node.end_lineno]))

    def body(self, function: Function) -> str:
        """Return the source of a function's body, without its docstring."""
        assert function.end_lineno is not None
        begin = function.lineno
        if ast.get_docstring(function) is not None:
            assert function.body[0].end_lineno is not None
            begin = function.body[0].end_lineno
        return textwrap.dedent("\n".join(self.lines[begin : function.end_lineno]))


class BlockingClass:
    """Writes one class of the blocking API."""

    def __init__(self, twin: Twin, original: Source, bodies: Source) -> None:
        self._twin = twin
        self._original = original.classes[twin.original]
        self._bodies = bodies
        self._class = bodies.classes[twin.blocking]
        self._own = {node.name: node for node in self._class.body if isinstance(node, Function)}

    def text(self) -> str:
        """Return the class as Python, not formatted yet."""
        documented = self._original if ast.get_docstring(self._class) is None else self._class
        parts = [self._docstring(documented, "    ")]
        there = list(self._members())
        names = {name for name, _ in there}
        own = [
            node
            for node in self._class.body
            if not (isinstance(node, Function) and node.name in names)
            and not isinstance(node, ast.Pass | ast.Expr)
        ]
        parts += [self._bodies.text(node) for node in own if not _is_private(node)]
        for name, functions in there:
            overloads = [f"{self._head(name, each)} ..." for each in functions[:-1]]
            parts.append("\n".join([*overloads, self._method(name, functions[-1])]))
        parts += [self._bodies.text(node) for node in own if _is_private(node)]
        bases = ", ".join(map(ast.unparse, self._class.bases))
        head = (
            f"class {self._twin.blocking}({bases}):" if bases else f"class {self._twin.blocking}:"
        )
        return "\n\n".join([head, *(_indented(part) for part in parts if part)])

    def _members(self) -> Iterator[tuple[str, list[Function]]]:
        """Yield the members that the blocking class has too: their names there, and overloads."""
        found: dict[str, list[Function]] = {}
        for node in self._original.body:
            if isinstance(node, Function):
                name = NAMES.get(node.name, node.name)
                if name == "__init__" or name in INTERNAL:
                    continue
                if name.startswith("__") or not name.startswith("_"):
                    found.setdefault(name, []).append(node)
        yield from found.items()

    def _method(self, name: str, function: Function) -> str:
        own = self._own.get(name)
        body = self._body(name, function) if own is None else self._bodies.body(own)
        has_words = own is not None and ast.get_docstring(own) is not None
        docstring = self._docstring(own if has_words else function, "        ")
        parts = [_indented(part) for part in (docstring, body) if part]
        return "\n".join([self._head(name, function), *parts])

    def _head(self, name: str, function: Function) -> str:
        decorators = [f"@{ast.unparse(each)}" for each in function.decorator_list]
        returns = "" if function.returns is None else f" -> {self._returns(name, function)}"
        head = f"def {name}({ast.unparse(function.args)}){returns}:"
        return "\n".join([*decorators, head])

    def _returns(self, name: str, function: Function) -> str:
        assert function.returns is not None
        own = self._own.get(name)
        goes_on = own is not None and any(isinstance(each, ast.YieldFrom) for each in ast.walk(own))
        rows = "Rows[" if _is_generator(function) and not goes_on else "Iterator["
        return re.sub(r"^AsyncIterator\[", rows, ast.unparse(function.returns))

    def _body(self, name: str, function: Function) -> str:
        """Return the body of a method, by its kind."""
        if any(ast.unparse(each) == "abstractmethod" for each in function.decorator_list):
            return ""
        original = f"self.{self._twin.attribute}"
        if any(ast.unparse(each) == "property" for each in function.decorator_list):
            return self._returned(name, f"{original}.{name}", "", None)
        if function.name in ("__aenter__", "__aexit__", "__aiter__", "__repr__"):
            return self._translated(function)
        if _is_generator(function):
            return self._rows(function)
        call = _call(original, function)
        if isinstance(function, ast.AsyncFunctionDef):
            run = f"self._background.run({call})"
            if function.name == "aclose":
                return f"if not self._background.forked:\n    {run}"
            return self._wrapped(run, function.returns)
        if _classes_in(function.returns) & MADE_ON_LOOP:
            return self._wrapped(f"self._background.do(lambda: {call})", function.returns)
        if _classes_in(function.returns) & WRAPPED:
            return self._wrapped(call, function.returns)
        return self._returned(name, call, f"{original}.{name}", function)

    def _returned(self, name: str, call: str, bound: str, function: Function | None) -> str:
        """Return code that calls a method that does not wait."""
        returns = "" if function is None else _text(function.returns)
        if self._twin.on_loop and name not in self._twin.anywhere:
            takes_none = function is not None and len(function.args.args) == 1
            is_plain = takes_none and not name.startswith("__")
            call = f"self._do({bound})" if is_plain else f"self._do(lambda: {call})"
            if returns == "Callable[[], None]":
                call = f"self._ending({call})"
        return call if returns == "None" else f"return {call}"

    def _wrapped(self, call: str, returns: ast.expr | None) -> str:
        """Return code that wraps the result of `call` in its blocking class."""
        text = _text(returns)
        if text == "None":
            return call
        found = re.fullmatch(r"(list\[)?(\w+)\b(?:\[.*?\])?\]?( \| None)?", text)
        name = found[2] if found else ""
        if found is None or name not in WRAPPED:
            if _classes_in(returns) & WRAPPED:
                raise GenerationError(f"{self._twin.original}: no rule wraps {text}")
            return f"return {call}"
        if found[1]:
            return f"found = {call}\nreturn [{name}(self._background, each) for each in found]"
        if found[3]:
            return (
                f"found = {call}\nreturn None if found is None else {name}(self._background, found)"
            )
        return f"return {name}(self._background, {call})"

    def _rows(self, function: Function) -> str:
        """Return code that yields the rows of an async generator over pages."""
        pages = [
            node.value
            for node in function.body
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pages"
        ]
        loops = [
            (ast.unparse(node.target), statement.value.value)
            for node in ast.walk(function)
            if isinstance(node, ast.For)
            for statement in node.body
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Yield)
        ]
        if len(pages) != 1 or len(loops) != 1 or loops[0][1] is None:
            raise GenerationError(
                f"{self._twin.original}.{function.name} has no pages: give a body"
            )
        target, row = loops[0][0], loops[0][1]
        made = f", lambda {target}: {ast.unparse(row)}"
        if ast.unparse(row) == target:
            made = ""
        elif isinstance(row, ast.Call) and [ast.unparse(each) for each in row.args] == [target]:
            made = f", {ast.unparse(row.func)}"
        pages_there = ast.unparse(pages[0]).replace("self.", f"self.{self._twin.attribute}.", 1)
        return f"pages = {pages_there}\nreturn Rows(self._background, pages{made})"

    def _translated(self, function: Function) -> str:
        """Return the asyncio method's body without its awaits."""
        statements = function.body[ast.get_docstring(function) is not None :]
        text = "\n".join(ast.unparse(each).replace("await ", "") for each in statements)
        for name, there in NAMES.items():
            text = re.sub(rf"\b{name}\b", there, text)
        names = {
            node.attr
            for each in statements
            for node in ast.walk(each)
            if isinstance(node, ast.Attribute)
        }
        if any(name.startswith("_") for name in names):
            raise GenerationError(f"{self._twin.original}.{function.name}: give it a body")
        return text

    def _docstring(self, node: ast.ClassDef | Function | None, indent: str) -> str:
        text = None if node is None else ast.get_docstring(node)
        if not text:
            return ""
        if node is not self._class:
            text = in_blocking_words(text, LINE_LENGTH - len(indent))
        if "\\" in text:
            raise GenerationError(f"a backslash in a docstring of {self._twin.original}")
        last = "\n" if "\n" in text or len(text) + len(indent) + 6 > LINE_LENGTH else ""
        return f'"""{text}{last}"""'


def in_blocking_words(text: str, width: int) -> str:
    """Return a docstring reworded for blocking code. Raises GenerationError if a word of asyncio is
    left."""
    paragraphs = text.split("\n\n")
    for index, paragraph in enumerate(paragraphs):
        changed = paragraph
        for word, other in WORDS:
            pattern = r"\s+".join(map(re.escape, word.split(" ")))
            changed = re.sub(rf"(?<!\w){pattern}", other, changed)
        if changed != paragraph:
            paragraphs[index] = _filled(changed, width, 3 if index == 0 else 0)
    translated = "\n\n".join(paragraphs)
    left = ASYNC_WORDS.search(translated)
    if left:
        raise GenerationError(f"{left[0]!r} in a docstring does not fit blocking code: {text}")
    return translated


def _filled(paragraph: str, width: int, quotes: int = 0) -> str:
    """Return a paragraph, or each item of a list, wrapped again; examples of code stay as is."""
    if paragraph.startswith("    "):
        return paragraph
    items = re.split(r"\n(?=- )", paragraph)
    return "\n".join(
        textwrap.fill(
            " ".join(item.split()),
            width,
            initial_indent=" " * quotes,
            subsequent_indent="  " if item.startswith("- ") else "",
            break_long_words=False,
            break_on_hyphens=False,
        )[quotes:]
        for item in items
    )


def _imports(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for each in node.names:
                yield each.asname or each.name.partition(".")[0], ast.unparse(node)
        elif isinstance(node, ast.ImportFrom):
            for each in node.names:
                alias = f" as {each.asname}" if each.asname else ""
                text = f"from {node.module} import {each.name}{alias}"
                yield each.asname or each.name, text


def _assigned(tree: ast.Module) -> Iterator[tuple[str, ast.stmt]]:
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            yield node.targets[0].id, node
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id, node


def _call(original: str, function: Function) -> str:
    arguments = function.args
    passed = [each.arg for each in [*arguments.posonlyargs, *arguments.args][1:]]
    if function.name in OPERATORS:
        return OPERATORS[function.name].format(original, *passed)
    passed += [f"*{arguments.vararg.arg}"] if arguments.vararg else []
    passed += [f"{each.arg}={each.arg}" for each in arguments.kwonlyargs]
    passed += [f"**{arguments.kwarg.arg}"] if arguments.kwarg else []
    return f"{original}.{function.name}({', '.join(passed)})"


def _text(annotation: ast.expr | None) -> str:
    return "" if annotation is None else ast.unparse(annotation)


def _classes_in(annotation: ast.expr | None) -> set[str]:
    if annotation is None:
        return set()
    return {node.id for node in ast.walk(annotation) if isinstance(node, ast.Name)}


def _is_generator(function: Function) -> bool:
    return isinstance(function, ast.AsyncFunctionDef) and any(
        isinstance(node, ast.Yield) for node in ast.walk(function)
    )


def _is_private(node: ast.stmt) -> bool:
    return isinstance(node, Function) and node.name.startswith("_") and not node.name.endswith("__")


def _indented(text: str) -> str:
    return textwrap.indent(text, "    ")


def _names_used(tree: ast.Module) -> set[str]:
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


class Names:
    """Where the names in a generated module come from."""

    def __init__(self, module: str, bodies: Source, originals: Iterable[Source]) -> None:
        self._module = module
        self._bodies = bodies
        self._originals = list(originals)

    def origins(self, text: str) -> tuple[set[str], list[str]]:
        """Return the imports that `text` needs, and the type variables to be defined before it."""
        imports: set[str] = set()
        variables: dict[str, str] = {}
        wanted = [text]
        bound = _bound(ast.parse(text))
        seen: set[str] = set()
        while wanted:
            for name in sorted(_names_used(ast.parse(wanted.pop())) - seen):
                seen.add(name)
                if name in bound or hasattr(builtins, name):
                    continue
                statement = self._import(name)
                if statement is not None:
                    imports.add(statement)
                    continue
                variables[name] = self._variable(name)
                wanted.append(variables[name])
        return imports, [variables[name] for name in sorted(variables)]

    def _import(self, name: str) -> str | None:
        if GENERATED.get(name, self._module) != self._module:
            return f"from {BLOCKING}.blocking_{GENERATED[name]} import {name}"
        for source in [self._bodies, *self._originals]:
            if name in source.imports:
                return source.imports[name]
        for source in self._originals:
            if name in source.defined and not _is_type_variable(source.assigned.get(name)):
                return f"from {source.name} import {name}"
        return None

    def _variable(self, name: str) -> str:
        for source in [self._bodies, *self._originals]:
            if _is_type_variable(source.assigned.get(name)):
                return ast.unparse(source.assigned[name])
        raise GenerationError(f"{self._module}: where does {name} come from?")


def _is_type_variable(node: ast.stmt | None) -> bool:
    return isinstance(node, ast.Assign) and ast.unparse(node.value).startswith("TypeVar(")


def _bound(tree: ast.Module) -> set[str]:
    """Return all names that a module defines or assigns: parameters, variables, classes."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, Function):
            found |= {each.name for each in node.body if isinstance(each, Function)}
        elif isinstance(node, ast.arg):
            found.add(node.arg)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
    return found


def generated() -> Iterator[tuple[Path, str]]:
    """Yield the path and the text of each module of the blocking API."""
    bodies = Source((ROOT / "docs" / "generate" / "blocking_bodies.py").read_text(), "")
    for name, subject in MODULES.items():
        twins = [twin for twin in TWINS if twin.written == name]
        originals = {
            twin.path: Source((ROOT / twin.path).read_text(), f"holdfast.client.{twin.module}")
            for twin in twins
        }
        classes = [BlockingClass(each, originals[each.path], bodies).text() for each in twins]
        text = "\n\n\n".join(classes)
        imports, variables = Names(name, bodies, originals.values()).origins(text)
        made_of = f"Generated by `make generate` from {' and '.join(originals)}."
        parts = [
            f'"""{subject}\n\n{_filled(made_of, LINE_LENGTH)}\n"""',
            "from __future__ import annotations",
            "\n".join(sorted(imports)),
            "\n".join(variables),
            text,
        ]
        path = ROOT / "client" / "blocking" / f"blocking_{name}.py"
        yield path, _formatted("\n\n".join(part for part in parts if part) + "\n", path)


def _formatted(text: str, path: Path) -> str:
    for command in (["check", "--quiet", "--select", "I,F401", "--fix"], ["format"]):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *command, "--stdin-filename", str(path), "-"],
            input=text,
            capture_output=True,
            text=True,
            check=False,
            cwd=ROOT,
        )
        if done.returncode:
            raise GenerationError(f"{path.name}: {done.stderr or done.stdout}\n{text}")
        text = done.stdout
    return text


def main(arguments: list[str]) -> int:
    """Write the modules; with `--check`, only list those that differ from what it would write."""
    stale = [(path, text) for path, text in generated() if not _holds(path, text)]
    for path, text in stale:
        if arguments == ["--check"]:
            print(f"{path.relative_to(ROOT)} differs. Try: make generate", file=sys.stderr)
        else:
            path.write_text(text)
            print(f"wrote {path.relative_to(ROOT)}")
    return 1 if stale and arguments else 0


def _holds(path: Path, text: str) -> bool:
    return path.is_file() and path.read_text() == text


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
