"""Adds to the documentation site: pages of the root, files that pages link to, and the generated reference pages.

mkdocs calls the functions that begin with `on_`. The README is the start page. The reference of commands comes from
their help texts, the reference of Python names from docstrings.
"""

from __future__ import annotations

import inspect
import os.path
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
MORE = ("REPRODUCTION.md", "results/ROWS.md", "CONTRIBUTING.md", "CHANGELOG.md")  # pages outside docs/
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """All files of the site."""
    pages = {"index.md": ROOT / "README.md"} | {name: ROOT / name for name in MORE}
    pages |= {path.name: path for path in (ROOT / "docs").glob("*.md")}
    linked: set[Path] = set()
    for name, path in pages.items():
        files.remove(found) if (found := files.get_file_from_path(name)) else None
        text, more = _relink(path, name)
        linked |= more
        files.append(File.generated(config, name, content=text))
    for path in sorted(linked):
        name = path.relative_to(ROOT).as_posix()
        if files.get_file_from_path(name) is None:
            files.append(File.generated(config, name, abs_src_path=str(path)))
    for name, made in (("commands.md", commands), ("api.md", api)):
        files.append(File.generated(config, name, content="\n".join(made())))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Add the empty line before a list that Python-Markdown needs and GitHub does not."""
    return re.sub(r"^((?![-*|>#\s]).+)\n(- )", r"\1\n\n\2", markdown, flags=re.MULTILINE)


def _relink(path: Path, name: str) -> tuple[str, set[Path]]:
    """The page with links as the site needs them (docs/ is its root), and the other files that it links to."""
    linked: set[Path] = set()

    def place(found: re.Match[str]) -> str:
        picture, words, target = found.groups()
        where, _, heading = target.partition("#")
        if not where or re.match(r"[a-z]+:", where):
            return found[0]
        there = (path.parent / where).resolve()
        if there.is_dir():
            return words
        if not there.exists():
            return found[0]  # the build fails on it
        inside = there.relative_to(ROOT)
        if inside.as_posix() == "README.md":
            on_site = "index.md"
        elif inside.parts[0] == "docs":
            on_site = Path(*inside.parts[1:]).as_posix()
        else:
            on_site = inside.as_posix()
            if on_site not in MORE:
                linked.add(there)
        link = os.path.relpath(on_site, os.path.dirname(name) or ".")
        return f"{picture}[{words}]({link}{'#' + heading if heading else ''})"

    return LINK.sub(place, path.read_text()), linked


def commands() -> Iterator[str]:
    """Every command with its arguments and options, from its help text."""
    from supsup.cli.commands import COMMANDS, load_command

    yield "# Commands\n"
    yield "`supsup --version` prints the version, `supsup --install-completion` adds completion to your shell.\n"
    for name, place in COMMANDS.items():
        command = load_command(place)
        yield from _command(f"supsup {name}", command)
        for sub, one in getattr(command, "commands", {}).items():
            yield from _command(f"supsup {name} {sub}", one)


def _command(title: str, command: Any) -> Iterator[str]:
    own = [parameter for parameter in command.params if parameter.name != "help"]
    words = [
        f"{parameter.name.upper()}{'…' if parameter.nargs < 0 else ''}" for parameter in own if _argument(parameter)
    ]
    yield f"## {title}\n\n```sh\n{' '.join([title, *words, '[OPTIONS]'] if own else [title])}\n```\n"
    yield _plain(inspect.cleandoc(command.help or "")) + "\n"
    if own:
        yield "| | purpose | default |\n|---|---|---|"
    for parameter in own:
        names = [parameter.name.upper()] if _argument(parameter) else [*parameter.opts, *parameter.secondary_opts]
        default = getattr(parameter, "show_default", None)
        value = default if isinstance(default, str) else parameter.default
        shown = "" if parameter.required or value is None or value is False or callable(value) else f"`{value}`"
        yield f"| {', '.join(f'`{name}`' for name in names)} | {_cell(parameter.help or '')} | {_cell(shown)} |"
    yield ""


def _argument(parameter: Any) -> bool:
    return bool(parameter.param_type_name == "argument")


def _plain(text: str) -> str:
    return text.replace("\\[", "[").replace("<", "&lt;")


def _cell(text: str) -> str:
    return _plain(" ".join(text.split())).replace("|", "\\|")


def api() -> Iterator[str]:
    """The public names with their docstrings, each once."""
    import supsup
    from supsup import evaluation
    from supsup.evaluation import promises

    yield "# Python\n\nThe public names. The how-to pages show how to use them.\n"
    described: set[int] = set()
    for module in (supsup, supsup.data, supsup.nets, evaluation, promises):
        yield f"## {module.__name__}\n\n{inspect.cleandoc(module.__doc__ or '').splitlines()[0]}\n"
        for name in sorted(_public(module), key=str.casefold):
            if id(value := getattr(module, name)) not in described:
                described.add(id(value))
                yield from _described(f"{module.__name__}.{name}", name, value)


def _public(module: ModuleType) -> list[str]:
    """What the module exports; without `__all__`, what it or its own modules define."""
    names: list[str] = getattr(module, "__all__", None) or [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", "").startswith(module.__name__)
    ]
    return [name for name in names if callable(getattr(module, name))]


def _described(path: str, name: str, value: Any) -> Iterator[str]:
    yield f"### {path}\n\n```python\n{'class ' if inspect.isclass(value) else ''}{name}{_signature(value)}\n```\n"
    yield from _docstring(value)
    if not inspect.isclass(value) or issubclass(value, Exception):
        return
    for member, found in vars(value).items():
        if member.startswith("_") or not (callable(found) or isinstance(found, property | classmethod | staticmethod)):
            continue
        function = found.fget if isinstance(found, property) else getattr(value, member)
        if not inspect.getdoc(function):
            continue
        signature = "" if isinstance(found, property) else _signature(function)
        yield f"```python\n{name}.{member}{signature}\n```\n"
        yield from _docstring(function)


def _signature(value: Callable[..., Any]) -> str:
    try:
        return str(inspect.signature(value)).replace("(self, ", "(").replace("(self)", "()")
    except (TypeError, ValueError):
        return ""


def _docstring(value: Any) -> Iterator[str]:
    """The first paragraph as text; the rest preformatted, since it has columns."""
    text = inspect.getdoc(value) or ""
    summary, _, rest = text.partition("\n\n")
    if summary and not summary.startswith(getattr(value, "__name__", "") + "("):  # of a dataclass
        yield _plain(summary) + "\n"
    if rest.strip():
        yield f"```text\n{rest.rstrip()}\n```\n"
