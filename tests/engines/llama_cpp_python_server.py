"""Run the server of llama-cpp-python with the random model, as a program.

    python tests/engines/llama_cpp_python_server.py FOLDER

Writes the model to FOLDER, prints the address, and exits at the end of its input.
"""

import sys
import threading
import time
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent))

from support.gguf_model import write_model

WINDOW = 16384


def main(folder: Path) -> None:
    import uvicorn
    from llama_cpp.server.app import create_app
    from llama_cpp.server.settings import ModelSettings, ServerSettings

    write_model(folder / "noise.gguf")
    model = ModelSettings(
        model=str(folder / "noise.gguf"),
        model_alias="noise",
        n_ctx=WINDOW,
        n_threads=1,
        n_threads_batch=1,
        verbose=False,
    )
    app = create_app(server_settings=ServerSettings(), model_settings=[model])
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="warning"))
    threading.Thread(target=server.run, daemon=True).start()
    while not server.started:
        time.sleep(0.02)
    print(f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
