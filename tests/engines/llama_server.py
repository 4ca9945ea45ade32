"""llama.cpp's server (of the package xllamacpp) before the random model, as a program.

python tests/engines/llama_server.py FOLDER      writes the model there, prints the address, ends with its input

One thread computes: more of them wait for each other actively, and stand still on a busy machine.
"""

import sys
from pathlib import Path

import xllamacpp
from gguf_model import CONTEXT, write_model

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
