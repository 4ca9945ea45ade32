"""Runs commands outside the checkout, as for a user, and builds the wheel."""

import os
import subprocess
import sys
from pathlib import Path

UV = [sys.executable, "-m", "uv"]


def env_of(folder: Path, **more: str) -> dict[str, str]:
    """Return an environment that neither the checkout nor this interpreter's packages can be seen from."""
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "STREAMTOOL_", "VIRTUAL"))
    }
    return {**kept, "HOME": str(folder), "UV_CACHE_DIR": CACHE, "PYTHONDONTWRITEBYTECODE": "1", **more}


CACHE = os.environ.get("UV_CACHE_DIR") or str(Path.home() / ".cache" / "uv")


def run(*argv: str | Path, cwd: Path, given: str = "", code: int = 0, **env: str) -> str:
    """Run a command, check its exit code, and return its output."""
    done = subprocess.run(
        [str(one) for one in argv],
        cwd=cwd,
        env=env_of(cwd, **env),
        input=given,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == code, (argv, done.stdout[-2000:], done.stderr[-2000:])
    return done.stdout + (done.stderr if code else "")


def build(source: Path, out: Path, *how: str) -> Path:
    """Build a wheel and return its path."""
    run(*UV, "build", "-q", *how, "-o", out, source, cwd=source)
    (found,) = out.glob("*.whl")
    return found
