"""Run llama.cpp's server (from the package xllamacpp) with the random model, as a program.

    python tests/engines/llama_server.py FOLDER

Writes the model to FOLDER, prints the address, and exits at the end of its input.

It computes with a single thread: several would busy-wait for each other and make no progress on a busy machine.
"""

import sys
from pathlib import Path

import xllamacpp

sys.path.append(str(Path(__file__).resolve().parent.parent))

from support.gguf_model import CONTEXT, write_model

SLOTS = 2


def main(folder: Path) -> None:
    model = folder / "noise.gguf"
    write_model(model)
    params = xllamacpp.CommonParams()
    params.model.path = str(model)
    params.n_ctx = CONTEXT
    params.n_parallel = SLOTS
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.n_threads_http = 8
    params.endpoint_metrics = True
    params.verbosity = 1
    server = xllamacpp.Server(params)
    print(server.listening_address, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
