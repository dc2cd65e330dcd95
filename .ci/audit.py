"""`make audit`: known vulnerabilities of the locked packages, by pip-audit, which asks a public database.

Exit code 0: none is known. 1: there are some, and pip-audit names them. 2: the database could not be asked, so nothing
is known. It is no part of the tests: what it says changes without any change here.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
TOOL = "pip-audit==2.10.1"
LOCKS = ("requirements.lock", "torch.lock", "cuda.lock")
PATIENCE = 600  # seconds


def main() -> int:
    """Install the tool into a folder of its own, and run it on the lock files."""
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        programs = Path(folder) / "bin"
        try:
            subprocess.run([programs / "pip", "install", "--quiet", TOOL], check=True, timeout=PATIENCE)
        except (subprocess.SubprocessError, OSError) as error:
            return not_done(f"{TOOL} could not be installed: {error}")
        locks = [option for name in LOCKS for option in ("--requirement", str(ROOT / name))]
        command = [str(programs / "pip-audit"), "--disable-pip", "--progress-spinner=off", *locks]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
        except (subprocess.SubprocessError, OSError) as error:
            return not_done(str(error))
    print(done.stdout, end="")
    said = done.stderr.strip()
    found = done.returncode == 1 and "known vulnerabilit" in said
    if done.returncode == 0 or found:
        print(said, file=sys.stderr)
        return done.returncode
    return not_done(said.splitlines()[-1] if said else f"pip-audit ended with {done.returncode}")


def not_done(reason: str) -> int:
    """Say plainly that nothing was checked."""
    print(f"NOT AUDITED: the database of vulnerabilities could not be asked ({reason[:300]})", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
