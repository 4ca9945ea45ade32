"""Run llama.cpp's server with the random model, as a program.

    python tests/engines/llama_server.py FOLDER

Writes the model to FOLDER, prints the address, and exits at the end of its input.
"""

import sys
from pathlib import Path

import model_server

sys.path.append(str(Path(__file__).resolve().parent.parent))

from support.gguf_model import CONTEXT, write_model

SLOTS = 2


def main(folder: Path) -> None:
    model = folder / "noise.gguf"
    write_model(model)
    model_server.main(str(model), CONTEXT, SLOTS)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
