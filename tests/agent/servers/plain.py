"""An MCP server for the tests, written without the SDK: starts fast, and may exit or misbehave wherever a test needs
it.

`python -S plain.py [WAY]`, on standard input and output. Its actions are logged to the file named by NOTES.
"""

import json
import os
import sys
import threading
import time
from pathlib import Path

WAY = sys.argv[1] if len(sys.argv) > 1 else ""
lock = threading.Lock()
NUMBER = {"type": "number"}
TOOLS = {
    "math.add": {"a": NUMBER, "b": NUMBER},
    "wait": {"seconds": NUMBER},
    "steps": {"count": {"type": "integer"}},
    "fail": {},
    "die": {},
}
if WAY == "files":
    TOOLS = {"read": {"path": {"type": "string"}}, "delete": {"path": {"type": "string"}}}


def note(text):
    with Path(os.environ.get("NOTES", os.devnull)).open("a") as file:
        file.write(f"{text}\n")


def say(message):
    with lock:
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        sys.stdout.flush()


def listed():
    tools = []
    for name, properties in TOOLS.items():
        schema = {"type": "object", "properties": properties, "required": [*properties]}
        tool = {"name": name, "description": f"{name}, by hand.{os.environ.get('EXAMPLE', '')}", "inputSchema": schema}
        tools.append(tool | ({"annotations": {"readOnlyHint": True}} if WAY == "read-only" else {}))
    return {"tools": tools, **({"nextCursor": "again"} if WAY == "lists without end" else {})}


def called(id, name, arguments, token):
    error = False
    if WAY == "ends in a call" or name == "die":
        note("dies")
        os._exit(1)
    if WAY == "closes its output":
        os.close(1)
        time.sleep(60)
    if WAY == "breaks off in an answer":
        sys.stdout.write('{"jsonrpc": "2.0", "resu')
        sys.stdout.flush()
        os._exit(1)
    if WAY == "refuses calls":
        return say({"id": id, "error": {"code": -5, "message": "not today"}})
    if WAY == "answers nonsense":
        return say({"id": id, "result": {"content": "x"}})
    match name:
        case "math.add":
            text = str(arguments["a"] + arguments["b"])
        case "wait":
            note(f"wait {arguments['seconds']}")
            time.sleep(arguments["seconds"])
            text = "waited"
        case "steps":
            for done in range(1, arguments["count"] + 1):
                progress = {"progressToken": token, "progress": done, "total": arguments["count"]}
                say({"method": "notifications/progress", "params": {**progress, "message": f"step {done}"}})
            text = "all steps"
        case "read":
            text = Path(os.environ["PAGE"]).read_text()
        case "delete":
            note(f"delete {arguments['path']}")
            text = "deleted"
        case _:
            text, error = "no luck", True
    return say({"id": id, "result": {"content": [{"type": "text", "text": text}], "isError": error}})


def handle(method, id, params):
    if method == "initialize":
        if WAY == "refuses":
            return say({"id": id, "error": {"code": -1, "message": "no thanks"}})
        if WAY == "ends before it is there":
            os._exit(1)
        info = {"name": "plain", "version": "1"}
        version = params["protocolVersion"]
        return say(
            {"id": id, "result": {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}}
        )
    if method == "tools/list":
        if WAY == "ends while it lists":
            os._exit(1)
        return None if WAY == "lists nothing" else say({"id": id, "result": listed()})
    if method == "tools/call":
        token = params.get("_meta", {}).get("progressToken")
        threading.Thread(target=called, args=(id, params["name"], params["arguments"], token), daemon=True).start()
    elif method == "notifications/cancelled":
        note("cancelled")
    elif id is not None:
        say({"id": id, "error": {"code": -32601, "message": "unknown"}})
    return None


if __name__ == "__main__":
    note("starts")
    for line in sys.stdin:
        message = json.loads(line)
        handle(message.get("method"), message.get("id"), message.get("params") or {})
