"""Small wrong changes to the code, one at a time: how many the tests notice.

    python -m benchmarks mutants --count 300 --seed 0 --jobs 2 --json results/mutants.json
    python -m benchmarks mutants --modules supsup/masks/bank --count 20

A mutant flips a comparison, an operator, `and` and `or`, `min` and `max`, True and False, doubles or shifts a number,
takes away a `not`, or leaves out a statement. It is written into a temporary copy of src, and the tests run on that
copy. A mutant takes as long as its tests, 10 to 60 seconds on one core. benchmarks/trust/mutants.toml lists the
packages with their tests, and explains survivors that change no answer.

The file is written after each mutant, so a campaign can be interrupted. A mutant in the file is not tried again while
its module and the test that noticed it (for a survivor: all tests) are unchanged. So after a new test only survivors
are tried again; their first outcome stays in the file. At the end survivors are printed, and every test that
noticed a mutant must pass on the unchanged code; if it fails, what it noticed is left out.
"""

from __future__ import annotations

import argparse
import ast
import compileall
import copy
import hashlib
import json
import multiprocessing
import os
import queue
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from py_compile import PycInvalidationMode
from typing import Any

import pytest
import torch
from hypothesis import Phase, settings

from supsup.runtime import progress
from supsup_paper.provenance import provenance

ROOT = Path(__file__).resolve().parents[2]
TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
PACKAGES: dict[str, list[str]] = TABLE["tests"]  # by package of src: its tests, files or folders
MODULES: dict[str, list[str]] = {
    path.relative_to(ROOT / "src").with_suffix("").as_posix(): tests
    for package, tests in PACKAGES.items()
    for path in sorted((ROOT / "src" / package).rglob("*.py"))
    if path.name != "__init__.py" and not path.name.startswith("triton_")  # kernels for a GPU
}
WHY: dict[str, str] = TABLE.get("why", {})  # a piece of a line, and why changing it changes no answer
_COMPARED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
_CALCULATED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult, ast.LShift: ast.RShift, ast.RShift: ast.LShift, ast.BitAnd: ast.BitXor,
}  # fmt: skip
_OTHERS = {"min": "max", "max": "min", "argmin": "argmax", "argmax": "argmin", "amin": "amax", "amax": "amin"}
_LIMIT, _LONGEST = 240, 7200  # seconds of computing that the tests of a module may take, and any others
_PROFILE = "mutants"  # of hypothesis
# What pytest's exit status says of a mutant; 4: the package cannot be imported with it.
_MEANING = {0: "survived", 1: "caught", 2: "caught", 3: "caught", 4: "caught"}
_PROCESSES = multiprocessing.get_context("forkserver")  # what takes long to import is there already
_PROCESSES.set_forkserver_preload(["numba", "pytest", "torch"])


@dataclass(frozen=True)
class Mutant:
    """One change: the bytes start … stop of a module become `after`."""

    module: str
    line: int
    start: int
    stop: int
    before: str
    after: str

    def applied(self, source: bytes) -> bytes:
        return source[: self.start] + self.after.encode() + source[self.stop :]


class Finder(ast.NodeVisitor):
    """Every mutant of a module, in the order of its source.

    Left alone: types, decorators, messages (f-strings, what is raised) and assertions, which only help a type checker.
    """

    def __init__(self, module: str, source: bytes) -> None:
        self.module, self.source, self.found = module, source, list[Mutant]()
        self._starts = [0]
        for line in source.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))

    def add(self, node: ast.expr | ast.stmt, after: str) -> None:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        start = self._starts[node.lineno - 1] + node.col_offset
        stop = self._starts[node.end_lineno - 1] + node.end_col_offset
        self.found.append(Mutant(self.module, node.lineno, start, stop, self.source[start:stop].decode(), after))

    def add_changed(self, node: ast.expr, **fields: Any) -> None:
        changed = copy.copy(node)
        for name, value in fields.items():
            setattr(changed, name, value)
        self.add(node, f"({ast.unparse(changed)})")

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        for default in (*node.args.defaults, *(value for value in node.args.kw_defaults if value is not None)):
            self.visit(default)
        for statement in node.body:
            self.visit(statement)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        for statement in node.body:
            self.visit(statement)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def leave_alone(self, node: ast.AST) -> None:
        """Its parts are not changed either."""

    visit_JoinedStr = visit_Raise = visit_Assert = visit_Import = visit_ImportFrom = visit_MatchValue = leave_alone

    def visit_Subscript(self, node: ast.Subscript) -> None:
        if not (isinstance(node.value, ast.Name) and node.value.id[0].isupper() and not node.value.id.isupper()):
            self.generic_visit(node)  # a name such as Literal or TypeVar begins a type

    def visit_Compare(self, node: ast.Compare) -> None:
        for i, operator in enumerate(node.ops):
            other = _COMPARED[type(operator)]()
            self.add_changed(node, ops=[*node.ops[:i], other, *node.ops[i + 1 :]])
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        joins = any(isinstance(side, ast.List | ast.Tuple | ast.JoinedStr) for side in (node.left, node.right))
        if type(node.op) in _CALCULATED and not joins:  # lists have one operator only: any test would notice
            self.add_changed(node, op=_CALCULATED[type(node.op)]())
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        self.add_changed(node, op=ast.Or() if isinstance(node.op, ast.And) else ast.And())
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not | ast.USub | ast.Invert):
            self.add(node, f"({ast.unparse(node.operand)})")
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, bool):
            self.add(node, str(not node.value))
        elif isinstance(node.value, int | float):
            if isinstance(node.value, int) or not node.value:
                self.add(node, repr(node.value + 1))
            if node.value:
                self.add(node, "0" if node.value == 1 else f"({node.value!r} * 2)")

    def visit_Name(self, node: ast.Name) -> None:
        if node.id in _OTHERS:
            self.add(node, _OTHERS[node.id])

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if node.attr in _OTHERS:
            self.add_changed(node, attr=_OTHERS[node.attr])
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self.add(node, "pass")
        self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        if all(isinstance(target, ast.Subscript) for target in node.targets):
            self.add(node, "pass")
        self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Call):
            self.add(node, "pass")
        self.generic_visit(node)


def mutants_of(module: str, source: bytes) -> list[Mutant]:
    """All mutants of a module."""
    finder = Finder(module, source)
    finder.visit(ast.parse(source))
    return sorted(set(finder.found), key=lambda one: (one.start, one.stop, one.after))


class Workshop:
    """Tests that run on a copy of src, in which one module at a time is another, or on src itself."""

    def __init__(self, folder: Path, *, copied: bool = True) -> None:
        self.src, self._said, self._copied = folder / "src" if copied else ROOT / "src", folder / "said", copied
        if copied:
            shutil.copytree(ROOT / "src", self.src, ignore=shutil.ignore_patterns("__pycache__"))
            by_content = PycInvalidationMode.CHECKED_HASH  # size and second, by default, are too little here
            compileall.compile_dir(self.src, quiet=1, invalidation_mode=by_content)
        self.environment = os.environ | {
            "PYTHONPATH": str(self.src),
            "HYPOTHESIS_STORAGE_DIRECTORY": str(folder / "hypothesis"),
        }
        self.environment.setdefault("OMP_NUM_THREADS", "1")

    def outcome(self, mutant: Mutant) -> tuple[str, str]:
        """What became of a mutant, and the first test that failed."""
        path = self.src / f"{mutant.module}.py"
        source, times = path.read_bytes(), (path.stat().st_atime_ns, path.stat().st_mtime_ns)
        path.write_bytes(mutant.applied(source))
        try:
            outcome, failed = self.tested(tests_of(mutant.module), "-x")
        finally:
            path.write_bytes(source)
            os.utime(path, ns=times)  # what numba has compiled stays valid
        return outcome, failed[0] if failed else ""

    def tested(self, tests: Sequence[Path | str], *more: str, limit: int = _LIMIT) -> tuple[str, list[str]]:
        """What became of tests, files or single ones, and which failed."""
        options = ["-q", "-p", "no:cacheprovider", "--hypothesis-seed=0", f"--hypothesis-profile={_PROFILE}"]
        options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # hypothesis is there before pytest
        options += ["-o", f"pythonpath={self.src}", *more]
        child = _PROCESSES.Process(
            target=run_tests, args=([*options, *map(str, tests)], self.environment, limit, str(self._said))
        )
        child.start()
        child.join(_LONGEST)
        if child.exitcode is None:
            os.killpg(child.pid or 0, signal.SIGKILL)
            child.join()
        if child.exitcode in (-signal.SIGXCPU, -signal.SIGKILL):
            return "timed out", []
        said = self._said.read_text(encoding="utf-8")
        if child.exitcode is None or child.exitcode > (4 if self._copied else 3):
            raise SystemExit(f"pytest could not run {list(map(str, tests))}:\n{said[-2000:]}")
        failed = [line for line in said.splitlines() if line.startswith(("FAILED", "ERROR"))]
        names = [line.partition(" ")[2].partition(" - ")[0].rpartition("tests/")[2] for line in failed]
        return _MEANING.get(child.exitcode, "caught"), names


def run_tests(options: list[str], environment: dict[str, str], limit: int, said: str) -> None:
    """pytest, in a process of its own that has no module of supsup yet."""
    os.setsid()
    os.chdir(ROOT)
    os.environ.update(environment)
    resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 10))
    with open(said, "wb") as out:
        for stream in (1, 2):
            os.dup2(out.fileno(), stream)
    for name in [name for name in sys.modules if name.partition(".")[0] in ("supsup", "supsup_paper")]:
        del sys.modules[name]
    phases = (Phase.explicit, Phase.reuse, Phase.generate)  # a failure is enough, it need not be the smallest
    settings.register_profile(_PROFILE, deadline=None, phases=phases)
    status = int(pytest.main(options))
    sys.stdout.flush()
    os._exit(status)


def tests_of(module: str) -> list[Path]:
    places = [ROOT / "tests" / name for name in MODULES[module]]
    return [file for place in places for file in (sorted(place.rglob("test_*.py")) if place.is_dir() else [place])]


def digest_of(module: str, by: str) -> str:
    """Of a module, and of the test that noticed its mutant or of all its tests: another one where that was changed."""
    test = _source_of_test(by)
    tests = [path.read_bytes() for path in tests_of(module)] if test is None else [test.encode()]
    source = (ROOT / "src" / f"{module}.py").read_bytes()
    return hashlib.sha256(b"\0".join([source, *tests])).hexdigest()[:12]


def _source_of_test(by: str) -> str | None:
    """The function, with what it is given, of a test such as "search/test_exact.py::test_few[3]"."""
    file, _, name = by.partition("::")
    path = ROOT / "tests" / file
    if not name or not path.is_file():
        return None
    functions = [node for node in ast.parse(path.read_bytes()).body if isinstance(node, ast.FunctionDef)]
    return next((ast.unparse(node) for node in functions if node.name == name.partition("[")[0]), None)


def record_of(mutant: Mutant, outcome: str, by: str, seconds: float) -> dict[str, Any]:
    """A mutant as the file has it."""
    source = (ROOT / "src" / f"{mutant.module}.py").read_text(encoding="utf-8")
    place = {"source": source.splitlines()[mutant.line - 1].strip(), "digest": digest_of(mutant.module, by)}
    return asdict(mutant) | place | {"outcome": outcome, "by": by, "seconds": round(seconds, 1)}


def is_valid(record: dict[str, Any]) -> bool:
    """Whether what it says would be said again."""
    return record["module"] in MODULES and record["digest"] == digest_of(record["module"], record["by"])


def main() -> None:
    options = parse()
    sources = {name: (ROOT / "src" / f"{name}.py").read_bytes() for name in options.modules}
    everything = [mutant for name, source in sources.items() for mutant in mutants_of(name, source)]
    chosen = everything
    if options.count is not None and options.count < len(everything):
        chosen = random.Random(options.seed).sample(everything, options.count)
    before = json.loads(options.json.read_text(encoding="utf-8"))["mutants"] if options.json.exists() else []
    known = {_key(record): record for record in before if is_valid(record)}
    at_first = {_key(record): record.get("at first", record["outcome"]) for record in before}
    keys = {mutant: _key(asdict(mutant)) for mutant in chosen}
    done = [known[key] for key in keys.values() if key in known]
    waiting = [mutant for mutant, key in keys.items() if key not in known]
    print(f"{len(everything)} mutants of {len(sources)} modules; {len(chosen)} chosen, {len(done)} known", flush=True)
    asked = {"modules": options.modules, "seed": options.seed, "possible": len(everything)}
    with progress.bar("mutants", len(waiting), "mutants") as advance:
        for record in tried(waiting, options.jobs):
            earlier = at_first.get(_key(record), record["outcome"])
            done.append(record | ({"at first": earlier} if earlier != record["outcome"] else {}))
            write(options.json, asked, done)
            advance(1)
    wrong = failing([record for record in done if record["outcome"] != "survived"])
    if wrong:
        print(f"left out, since these fail as things are: {', '.join(sorted(wrong))}")
    done = [record for record in done if not wrong & {record["by"] or record["module"]}]
    write(options.json, asked, done)
    for record in done:
        if record["outcome"] == "survived":
            place, change = f"{record['module']}.py:{record['line']}", f"{record['before']} → {record['after']}"
            print(f"survived: {place}: {change}  {why(record)}")
    print(json.dumps(summary(done)))


def tried(mutants: Sequence[Mutant], jobs: int) -> Iterator[dict[str, Any]]:
    """The record of each mutant, in order."""
    if not mutants:
        return
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(jobs) as pool:
        shops = queue.SimpleQueue[Workshop]()
        for number in range(jobs):
            shops.put(Workshop(Path(folder) / str(number)))

        def trial(mutant: Mutant) -> dict[str, Any]:
            shop, begin = shops.get(), time.perf_counter()
            try:
                outcome, by = shop.outcome(mutant)
            finally:
                shops.put(shop)
            return record_of(mutant, outcome, by, time.perf_counter() - begin)

        try:
            yield from pool.map(trial, mutants)
        finally:
            pool.shutdown(cancel_futures=True)


def failing(noticed: Sequence[dict[str, Any]]) -> set[str]:
    """Of the tests that noticed mutants those that fail on the source as it is; of modules, where no test is known."""
    with tempfile.TemporaryDirectory() as folder:
        shop = Workshop(Path(folder), copied=False)
        functions = sorted({record["by"].partition("[")[0] for record in noticed if record["by"]})
        tests = [str(ROOT / "tests" / function) for function in functions]
        _, failed = shop.tested(tests, limit=_LONGEST) if tests else ("", [])
        found = {record["by"] for record in noticed if any(one in record["by"] for one in failed)}
        unknown = sorted({record["module"] for record in noticed if not record["by"]})
        return found | {module for module in unknown if shop.tested(tests_of(module))[0] != "survived"}


def why(record: dict[str, Any]) -> str:
    """Why a survivor changes no answer, where somebody has read it."""
    return next((text for piece, text in WHY.items() if piece in record["source"]), "")


def summary(records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """How many were tried and noticed; one that never ends is noticed too. Explained survivors are not taken out.

    At first: by the tests that were there when the mutants were drawn.
    """
    outcomes = Counter(record["outcome"] for record in records)
    survived = [record for record in records if record["outcome"] == "survived"]
    unnoticed = {
        "noticed %": len(survived),
        "noticed at first %": sum(record.get("at first", record["outcome"]) == "survived" for record in records),
    }
    shares = {name: round(100 - 100 * count / len(records), 1) for name, count in unnoticed.items() if records}
    return {"tried": len(records), **outcomes, "explained": sum(bool(why(record)) for record in survived)} | shares


def write(path: Path, asked: dict[str, Any], records: Sequence[dict[str, Any]]) -> None:
    """The file, whole or as it was."""
    path.parent.mkdir(parents=True, exist_ok=True)
    ordered = sorted(records, key=lambda record: (record["module"], record["start"], record["after"]))
    explained = [record | ({"why": why(record)} if why(record) else {}) for record in ordered]
    modules = {name: [one for one in ordered if one["module"] == name] for name in asked["modules"]}
    content = asked | {
        "summary": summary(ordered),
        "by module": {name: summary(found) for name, found in modules.items() if found},
        "mutants": explained,
        "made by": provenance(torch.device("cpu")),
    }
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    partial.replace(path)


def _key(record: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(record[name] for name in ("module", "start", "stop", "before", "after"))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--modules", nargs="+", choices=list(MODULES), default=list(MODULES), metavar="MODULE")
    parser.add_argument("--count", type=int, default=None, help="so many, drawn at random; all by default")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1, help="mutants at a time")
    parser.add_argument("--json", type=Path, default=Path("results/mutants.json"))
    return parser.parse_args()


if __name__ == "__main__":
    main()
