"""Compares streamtool with other software in one command: call parsers, and proxies.

    python benchmarks/compare.py [--quick] [--only PART] [--plots DIR]
    python benchmarks/compare.py --redraw --plots DIR

Creates a virtual environment in `benchmarks/.compare`, installs the other software there, and keeps it for later runs.
Software that cannot be installed is listed with the reason. `--plots` draws the figures into a folder, as SVG and PNG,
next to `figures.json`; `--redraw` draws them again from that file. Needs an otherwise idle Linux machine, about 2 GB of
disk space for two of the packages, and half an hour. `--quick` measures once instead of several times. `--only`
(repeatable) selects parts: readers, flood, paced (100 streams), few (30, with the LiteLLM proxy), whole (the same, with
their requests), most, most_few.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ENVIRONMENT = HERE / ".compare"
PEERS = (
    ("-e", f"{HERE.parent}[serve]"),
    ("aiohttp", "httpx-aiohttp", "pyreqwest"),
    ("matplotlib",),
    ("jiter",),
    ("partial-json-parser",),
    ("openai-harmony",),
    ("litellm[proxy]",),
    # Only the detectors of these two packages are used. They are plain Python; their dependencies take up many GB.
    ("--no-deps", "sglang"),
    ("--no-deps", "vllm"),
    ("regex", "numpy", "orjson", "fastapi"),
)
"""Arguments to pip. Each set is installed separately, so that one failure does not affect the others."""
PARTS = ("readers", "flood", "paced", "few", "whole", "most", "most_few")
FEW = "30"
"""Number of streams that the LiteLLM proxy can handle on one core."""


def python() -> Path:
    """Install everything that can be installed into the environment, and return its interpreter."""
    found = ENVIRONMENT / "bin" / "python"
    done = ENVIRONMENT / "installed.json"
    if not done.exists():
        venv.create(ENVIRONMENT, with_pip=True, clear=True)
        for wanted in PEERS:
            print("installing", *wanted, flush=True)
            command = [str(found), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *wanted]
            if subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode:
                print("  cannot be installed here", flush=True)
        listed = subprocess.check_output([str(found), "-m", "pip", "list", "--format", "json"], text=True)
        done.write_text(listed, encoding="utf-8")
    return found


def run(name: str, *arguments: str) -> Any:
    """Run one of the benchmarks, letting it print its tables, and return its results."""
    file = ENVIRONMENT / "found.json"
    file.unlink(missing_ok=True)
    command = [str(python()), str(HERE / f"{name}.py"), *arguments, "--json", str(file)]
    subprocess.run(command, check=False)
    return json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}


def measured(found: dict[str, Any], only: list[str], *, quick: bool) -> dict[str, Any]:
    """Run the selected parts and return their results merged into the earlier results."""
    python()
    rounds, limit = ("1", "3") if quick else ("3", "20")
    listed = json.loads((ENVIRONMENT / "installed.json").read_text(encoding="utf-8"))
    litellm = ["litellm"] if any(one["name"] == "litellm" for one in listed) else []
    few = ["direct", "httpx", "streamtool", "streamtool/arguments", *litellm]
    parts = {
        "readers": ("readers", "--seconds", limit),
        "flood": ("flood", "--rounds", rounds, "httpx", "aiohttp", "streamtool", "streamtool/arguments", *litellm),
        "paced": ("paced", "--rounds", rounds),
        "few": ("paced", "--rounds", rounds, "--streams", FEW, *few),
        "whole": ("paced", "--whole", "--rounds", rounds, "--streams", FEW, "httpx", "aiohttp", *few[2:]),
        "most": ("paced", "--most", "httpx", "streamtool"),
        "most_few": ("paced", "--most", "--first", "4", *litellm) if litellm else (),
    }
    found["machine"] = {"python": platform.python_version(), "cores": os.cpu_count(), "system": platform.platform()}
    found["versions"] = {one["name"]: one["version"] for one in listed}
    for part in only or PARTS:
        found[part] = run(*parts[part]) if parts[part] else {}
    return found


def main() -> int:
    arguments = argparse.ArgumentParser(description="Compare streamtool with other software.")
    arguments.add_argument("--quick", action="store_true")
    arguments.add_argument("--only", action="append", choices=PARTS, default=[])
    arguments.add_argument("--redraw", action="store_true")
    arguments.add_argument("--plots", type=Path)
    given = arguments.parse_args()
    if given.redraw and given.plots is None:
        arguments.error("--redraw needs --plots DIR")
    if not given.redraw:
        figures = given.plots and given.plots / "figures.json"
        before = json.loads(figures.read_text(encoding="utf-8")) if figures and figures.exists() else {}
        found = measured(before, given.only, quick=given.quick)
        if figures:
            figures.parent.mkdir(parents=True, exist_ok=True)
            figures.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    if given.plots:
        return subprocess.run([str(python()), str(HERE / "plots.py"), str(given.plots)], check=False).returncode
    return 0


if __name__ == "__main__":
    sys.exit(main())
