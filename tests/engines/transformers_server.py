"""Run `transformers serve` with the random model, as a program.

    python tests/engines/transformers_server.py FOLDER

Writes the model to FOLDER, prints the address, and exits at the end of its input.

The model is the one for llama.cpp, read from its file. It is named `noise`: the server identifies it only by its
folder.
"""

import os
import sys
import time
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent))

from support.gguf_model import write_model

NAME = "noise"


def main(folder: Path) -> None:
    (folder / "hub").mkdir()
    os.chdir(folder)
    os.environ |= {"HF_HOME": str(folder), "HF_HUB_OFFLINE": "1"}
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.cli.serve import Serve

    torch.set_num_threads(1)
    write_model(folder / "noise.gguf")
    read = AutoModelForCausalLM.from_pretrained(folder, gguf_file="noise.gguf")
    del read.config.quantization_config
    model = type(read)(read.config)
    model.load_state_dict(read.state_dict())
    model.save_pretrained(NAME)
    AutoTokenizer.from_pretrained(folder, gguf_file="noise.gguf").save_pretrained(NAME)
    address, sys.stdout = sys.stdout, sys.stderr  # standard output is only for the address
    serving = Serve(NAME, device="cpu", host="127.0.0.1", port=0, non_blocking=True)
    while not serving.server.started:
        time.sleep(0.02)
    port = serving.server.servers[0].sockets[0].getsockname()[1]
    print(f"http://127.0.0.1:{port}", file=address, flush=True)
    sys.stdin.read()
    os._exit(0)  # its threads would continue


if __name__ == "__main__":
    main(Path(sys.argv[1]))
