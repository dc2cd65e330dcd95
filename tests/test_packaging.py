"""What an installer reads: the version stands in one place, and a build finds it without importing torch."""

import ast
import re
import tomllib
from pathlib import Path

import supsup

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_the_version_is_a_plain_string_in_the_package_alone() -> None:
    """Anything computed there would make a build import the package, and with it torch."""
    assert "version" not in PROJECT["project"]
    assert PROJECT["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "supsup.__version__"}
    tree = ast.parse((ROOT / "src" / "supsup" / "__init__.py").read_text())
    values = [
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__version__"
    ]
    assert values == [supsup.__version__]


def test_the_changelog_knows_the_version() -> None:
    assert f"\n## [{supsup.__version__}]" in (ROOT / "CHANGELOG.md").read_text()


def test_few_packages_are_required() -> None:
    """What only some users need is an extra."""
    names = {package.partition(">")[0] for package in PROJECT["project"]["dependencies"]}
    assert names == {"torch", "numpy", "safetensors", "typer", "rich"}


def test_one_distribution_has_both_packages_and_the_page() -> None:
    """`pip install supsup` brings the library with its web page, and the reproduction of the paper."""
    assert PROJECT["tool"]["setuptools"]["packages"]["find"] == {"where": ["src"]}
    folders = {path.parent for path in (ROOT / "src").rglob("*.py")}
    assert {ROOT / "src" / "supsup", ROOT / "src" / "supsup_paper"} <= folders
    assert not [folder for folder in folders if not (folder / "__init__.py").exists()]
    kept = {path for path in (ROOT / "src").rglob("*") if path.is_file() and path.suffix != ".py"}
    listed = {
        path
        for package, patterns in PROJECT["tool"]["setuptools"]["package-data"].items()
        for pattern in patterns
        for path in (ROOT / "src" / package).glob(pattern)
    }
    assert {path for path in kept if not {"egg-info", "__pycache__"} & set(re.split(r"[./]", str(path)))} == listed
