"""Run the tests of the adapters together with the engines themselves, in one command.

    python -m tests.adapters.heavy [PYTEST ARGUMENTS]

Creates a virtual environment in `tests/adapters/.engines`, installs the engines there with the packages that they
import for parsing, and keeps it for the next time. No model is loaded, so their other requirements, above all CUDA, are
left out: some 3 GB. llama-cpp-python is built, which takes some minutes and a compiler. Needs Python 3.11 on Linux.
"""

import subprocess
import sys
import venv
from pathlib import Path

HERE = Path(__file__).parent
ENVIRONMENT = HERE / ".engines"
WHOLE = (
    ("transformers>=5.16.1,<5.21", "sympy", "networkx", "fsspec", "filelock", "setuptools<81"),
    ("fastapi", "openai", "regex", "orjson", "partial-json-parser", "ijson", "jsonschema", "uvloop", "llguidance"),
    ("cachetools", "psutil", "sentencepiece", "blake3", "py-cpuinfo", "protobuf", "aiohttp", "pillow", "tiktoken"),
    ("lark", "pyzmq", "msgspec", "pyyaml", "einops", "cloudpickle", "python-json-logger", "pybase64", "cbor2"),
    ("prometheus-client", "setproctitle", "ipython", "pydantic-extra-types", "pycountry", "jinja2", "gguf"),
    ("mlx[cpu]",),
    ("pytest>=8.3", "pytest-timeout", "pytest-trio", "pytest-xdist", "hypothesis", "trio", "httpx"),
    ("llama-cpp-python[server]==0.3.36",),
)
"""Packages installed with all their dependencies."""
ALONE = (
    ("torch==2.13.0",),
    ("triton", "apache-tvm-ffi", "xgrammar==0.2.8"),
    ("mistral-common", "lm-format-enforcer==0.11.3", "outlines-core==0.2.14", "oss-harmony", "anthropic", "depyf"),
    ("compressed-tensors==0.17.0", "mcp"),
    ("vllm==0.33.0",),
    ("sglang==0.5.23",),
    ("mlx-lm==0.32.2",),
)
"""Packages installed without dependencies."""


def python() -> Path:
    """Return the interpreter of the environment, with all supported packages installed."""
    found = ENVIRONMENT / "bin" / "python"
    done = ENVIRONMENT / "installed.txt"
    if not done.exists():
        venv.create(ENVIRONMENT, with_pip=True, clear=True)
        pip = [str(found), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        lines = [("-e", f"{HERE.parents[1]}[serve]"), *WHOLE, *(("--no-deps", *names) for names in ALONE)]
        for wanted in lines:
            print("installing", *wanted, flush=True)
            if subprocess.run(
                [*pip, *wanted], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False
            ).returncode:
                print("  cannot be installed here; its tests are skipped", flush=True)
        done.write_text(subprocess.check_output([*pip[:3], "list"], text=True), encoding="utf-8")
    return found


def main(arguments: list[str]) -> int:
    """Run the tests, and return the exit code of pytest."""
    tests = sorted(str(path) for path in HERE.glob("test_*.py") if "mark.engines" in path.read_text(encoding="utf-8"))
    command = [str(python()), "-m", "pytest", "-q", "-m", "engines", "-W", "ignore", *(arguments or tests)]
    return subprocess.run(command, cwd=HERE.parents[1], check=False).returncode


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
