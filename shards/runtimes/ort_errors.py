"""What ONNX Runtime says in an error, in one line for people: the node's name, and the reason."""

from __future__ import annotations

import re

_COLOURS = re.compile(r"\x1b?\[[0-9;]*m")
_CODE = re.compile(r"\[ONNXRuntimeError\] : \d+ : \w+ : ")
# Each form in which the library names a node: when it runs, when it infers shapes, when it loads.
_NODES = (
    re.compile(
        r"Non-zero status code returned while running (?P<op>\w+) node\. "
        r"Name:'(?P<name>[^']*)' Status Message: "
    ),
    re.compile(r"Node \((?P<name>[^)]*)\) Op \((?P<op>\w+)\) (?:\[\w+\] )?"),
    re.compile(r'In Node, \("(?P<name>[^"]*)", (?P<op>\w+), .*? , Error '),
)
# A place in the library's own source, with the signature or the name of a function.
_PLACE = re.compile(
    r"\S+\.(?:h|hpp|cc|cpp|cu|cuh):\d+ "
    r"(?:[\w:<>~,&* ]*::[\w~<>]+\([^()]*\)(?: const)? |\w+ )?"
)


def reason_of(error: BaseException) -> str:
    """The message of an error of ONNX Runtime without codes, colours and places in its source."""
    text = _CODE.sub("", _COLOURS.sub("", str(error)))
    for form in _NODES:
        text = form.sub(_node, text)
    return _PLACE.sub("", text).strip()


def _node(found: re.Match[str]) -> str:
    if found["name"]:
        return f"node {found['name']!r} ({found['op']}): "
    return f"a node without a name ({found['op']}): "
