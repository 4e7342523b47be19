"""One ONNX Runtime session behind raw ASGI on uvicorn: what a user without a mesh would write.

It takes one FP32 tensor by the Open Inference Protocol's binary extension and gives one back;
nothing is checked, bounded, counted or retried.

    python -m bench.rivals.systems.bare_uvicorn READY_FILE MODEL.onnx
"""

from __future__ import annotations

import json
import socket
import sys
from typing import Any

import numpy as np

from bench.rivals.processes import announce

HEADER = b"inference-header-content-length"


def application(model: str) -> Any:
    """The ASGI application of a model's file."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])

    async def app(scope: Any, receive: Any, send: Any) -> None:
        pieces: list[bytes] = []
        more = True
        while more:
            message = await receive()
            pieces.append(message.get("body", b""))
            more = message.get("more_body", False)
        body = b"".join(pieces)
        length = int(dict(scope["headers"])[HEADER])
        given = json.loads(body[:length])["inputs"][0]
        x = np.frombuffer(body, np.float32, offset=length).reshape(given["shape"])
        (y,) = session.run(None, {given["name"]: x})
        output: dict[str, Any] = {"name": "y", "datatype": "FP32", "shape": list(y.shape)}
        output["parameters"] = {"binary_data_size": y.nbytes}
        head = json.dumps({"model_name": "m", "outputs": [output]}).encode()
        headers = [(HEADER, b"%d" % len(head)), (b"content-length", b"%d" % (len(head) + y.nbytes))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": head + y.tobytes()})

    return app


def main() -> None:
    """Serve until SIGTERM."""
    import uvicorn

    ready, model = sys.argv[1:3]
    sock = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(
        application(model),
        http="httptools",
        loop="uvloop",
        log_level="error",
        access_log=False,
        lifespan="off",
    )
    announce(ready, str(sock.getsockname()[1]))
    uvicorn.Server(config).run(sockets=[sock])


if __name__ == "__main__":
    main()
