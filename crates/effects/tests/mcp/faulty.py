"""An MCP server over stdio that misbehaves on request."""

import json
import os
import sys
import time


def say(message):
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def text(words, **more):
    return {"content": [{"type": "text", "text": words}], **more}


TOOLS = [
    {"name": "echo", "description": "says it again", "inputSchema": {"type": "object"},
     "annotations": {"readOnlyHint": True}},
    {"name": "set", "description": "may be repeated", "inputSchema": {"type": "object"},
     "annotations": {"readOnlyHint": False, "idempotentHint": True}},
    {"name": "dotted.name", "inputSchema": {"type": "object"}},
]


def call(name, arguments):
    if name == "echo":
        return text(json.dumps(arguments, sort_keys=True))
    if name == "pid":
        return text(str(os.getpid()))
    if name == "env":
        return text(os.environ.get("TOKEN", "none"), structuredContent={"token": os.environ.get("TOKEN")})
    if name == "letters":
        return text(str(len(os.environ.get("TOKEN", ""))))
    if name == "fails":
        return text("it did not work", isError=True)
    if name == "open":
        try:
            return text(open(arguments["path"]).read())
        except OSError as error:
            return text(error.strerror)
    if name == "big_number":
        return text("see", structuredContent={"n": 2**53 + 1, "m": [1, None]})
    if name == "die":
        os._exit(7)
    if name == "hang":
        time.sleep(600)
    if name == "flood":
        while True:
            sys.stdout.write("x" * 65536)
    if name == "chatter":
        while True:
            say({"method": "notifications/message", "params": {"level": "info", "data": "y" * 500}})
    if name == "nonsense":
        say({"id": "nobody asked", "result": {}})
        sys.stdout.write("this is not json\n")
        sys.stdout.flush()
        return text("fine after all")
    raise KeyError(name)


def main():
    if "--not-ready" in sys.argv:
        print("cannot find the thing " + os.environ.get("TOKEN", ""), file=sys.stderr)
        sys.exit(3)
    if "--silent" in sys.argv:
        time.sleep(600)
    for line in sys.stdin:
        request = json.loads(line)
        if "id" not in request:
            continue
        answer = {"id": request["id"]}
        method = request["method"]
        if method == "initialize":
            answer["result"] = {
                "protocolVersion": request["params"]["protocolVersion"],
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "faulty", "version": "1"},
            }
        elif method == "tools/list":
            answer["result"] = {"tools": TOOLS}
        elif method == "tools/call":
            params = request["params"]
            try:
                answer["result"] = call(params["name"], params.get("arguments", {}))
            except KeyError as error:
                answer["error"] = {"code": -32602, "message": f"no tool {error}"}
        else:
            answer["error"] = {"code": -32601, "message": "no such method"}
        say(answer)


main()
