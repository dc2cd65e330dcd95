"""Writes the lock files anew: everything that `make` installs, with its version and the SHA-256 of its files.

    python .ci/lock.py [WHEEL…]     needs the public registry; installs pip-tools into a folder of its own

Versions that are locked already stay unless pyproject.toml forbids them; delete a line to have it chosen again. All is
resolved together and written to three files: torch.lock has torch alone, of which there are several builds (a WHEEL is
one from elsewhere, such as the build for CPUs: its hash is added); cuda.lock what the registry's build for Linux needs
of CUDA, which other builds do not; requirements.lock all the rest.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
NAMES = ("requirements.lock", "torch.lock", "cuda.lock")
TOOLS = "pip-tools==7.6.2"
OPTIONS = ["--quiet", "--generate-hashes", "--strip-extras", "--extra=dev", "--all-build-deps", "--allow-unsafe"]
BARE = ["--no-emit-index-url", "--no-emit-find-links", "--no-emit-options", "--no-header", "--no-annotate"]
HEADER = "# Made by .ci/lock.py; do not edit. pip install --require-hashes --no-deps --requirement {name}\n"


def main(wheels: list[str]) -> None:
    """Resolve everything together, from the public registry."""
    with tempfile.TemporaryDirectory() as folder:
        venv.create(Path(folder) / "venv", with_pip=True)
        programs = Path(folder) / "venv" / "bin"
        subprocess.run([programs / "pip", "install", "--quiet", TOOLS], check=True)
        whole = Path(folder) / "all.lock"
        whole.write_text("".join((ROOT / name).read_text() for name in NAMES if (ROOT / name).exists()))
        # The registry alone: a build of torch from elsewhere would be locked in place of the registry's.
        public = os.environ | {"PIP_CONFIG_FILE": os.devnull, "PIP_FIND_LINKS": "", "PIP_EXTRA_INDEX_URL": ""}
        command = [programs / "pip-compile", *OPTIONS, *BARE, f"--output-file={whole}", "pyproject.toml"]
        subprocess.run(command, check=True, cwd=ROOT, env=public)
        divide(whole.read_text(), wheels)


def divide(resolved: str, wheels: list[str]) -> None:
    """Write each package to its file."""
    divided: dict[str, list[str]] = {name: [] for name in NAMES}
    for package in re.findall(r"^\S+==.*(?:\n    --hash=.*)+\n", resolved, flags=re.MULTILINE):
        name = package.partition("==")[0]
        if name == "torch":
            found = (hashlib.sha256(Path(wheel).read_bytes()).hexdigest() for wheel in wheels)
            new = (digest for digest in found if digest not in package)
            package = package.rstrip() + "".join(f" \\\n    --hash=sha256:{digest}" for digest in new) + "\n"
        cuda = name.startswith(("cuda-", "nvidia-"))
        divided["torch.lock" if name == "torch" else "cuda.lock" if cuda else "requirements.lock"].append(package)
    for name, lines in divided.items():
        (ROOT / name).write_text(HEADER.format(name=name) + "".join(lines))


if __name__ == "__main__":
    main(sys.argv[1:])
