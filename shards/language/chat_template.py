"""Messages of a chat to a prompt, by the model's own Jinja template, which nobody has to trust.

A template comes with a model. It runs in Jinja's immutable sandbox, with the filters and methods
that templates of models use and no others, and with a bound of its work: each turn of a loop, each
call of a macro and each thousand characters are a step.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from shards.errors import ModelError

MOST_STEPS = 100_000
MOST_CHARACTERS = 1 << 22  # of a prompt, and of each text on its way
MOST_TEMPLATE_CHARACTERS = 1 << 18
_CHARACTERS_A_STEP = 1000
_LARGEST_NUMBER = 1 << 63
_LONGEST_RANGE = 10_000
_FILTERS = frozenset(
    {"abs", "bool", "capitalize", "count", "d", "default", "dictsort", "first", "float", "int"}
    | {"items", "join", "last", "length", "list", "lower", "map", "max", "min", "reject"}
    | {"rejectattr", "replace", "reverse", "round", "safe", "select", "selectattr", "sort"}
    | {"string", "sum", "title", "tojson", "trim", "unique", "upper"}
)
_METHODS: Mapping[type, frozenset[str]] = {
    str: frozenset(
        {"strip", "lstrip", "rstrip", "split", "rsplit", "startswith", "endswith", "upper"}
        | {"lower", "title", "capitalize", "replace", "find", "count", "isdigit", "isalpha"}
        | {"join", "removeprefix", "removesuffix"}
    ),
    dict: frozenset({"get", "items", "keys", "values"}),
    list: frozenset({"index", "count"}),
}


class TemplateRefused(ModelError):
    """A template that reaches for what it may not have, works without an end, or fails."""


class _Budget:
    """The steps that are left of one rendering."""

    def __init__(self) -> None:
        self.left = MOST_STEPS

    def take(self, steps: int = 1) -> None:
        self.left -= steps
        if self.left < 0:
            raise TemplateRefused(
                f"the chat template takes more than {MOST_STEPS} steps: it loops, or the chat is "
                "too long for it"
            )

    def counted(self, value: Any) -> Any:
        """The value, once all that it holds is counted. Only plain values are allowed."""
        if isinstance(value, str):
            self.size(len(value))
        elif isinstance(value, (list, tuple, dict)):
            self.take(1 + len(value))
            for part in value.values() if isinstance(value, dict) else value:
                self.counted(part)
        elif isinstance(value, range):
            self.take(len(value))
        return value

    def plain(self, value: Any) -> Any:
        """A value that becomes text: counted, and no object of Jinja's or Python's own."""
        from jinja2 import Undefined

        if not isinstance(value, (str, int, float, list, tuple, dict, Undefined, type(None))):
            raise TemplateRefused(f"the chat template prints a {type(value).__name__}")
        return self.counted(value)

    def size(self, characters: int) -> None:
        if characters > MOST_CHARACTERS:
            raise TemplateRefused(f"the chat template makes a text of {characters} characters")
        self.take(characters // _CHARACTERS_A_STEP)

    def items(self, values: Any) -> list[Any]:
        """The values of a loop, each of them a step."""
        found = []
        for value in values:
            self.take()
            found.append(value)
        return found


class ChatTemplate:
    """A model's chat template. Raises ModelError where Jinja is missing, or refuses it.

    `special` are the texts of special tokens that templates name: "bos_token", "eos_token" and
    others.
    """

    def __init__(self, source: str, special: Mapping[str, str] | None = None) -> None:
        try:
            import jinja2.exceptions
        except ImportError as error:
            raise ModelError(
                "chat templates need the library `jinja2`: pip install 'swarm-mesh[language]'"
            ) from error
        if len(source) > MOST_TEMPLATE_CHARACTERS:
            raise TemplateRefused(f"a chat template of {len(source)} characters")
        self._special = dict(special or {})
        self._environment = _environment()
        try:
            tree = _bounded(self._environment.parse(source))
            self._code = self._environment.compile(tree)
        except (jinja2.exceptions.TemplateError, RecursionError) as error:
            raise TemplateRefused(f"the chat template cannot be read: {error}") from error

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> str:
        """The prompt of a chat: messages with `role` and `content`, as the model's owner wants it.

        Raises TemplateRefused, with the template's own words where it refuses the chat.
        """
        import jinja2

        budget = _Budget()
        environment = self._environment
        given = environment.make_globals(
            {
                "_budget": budget,
                "_items": budget.items,
                "_counted": budget.counted,
                "_plain": budget.plain,
                "_take": budget.take,
                "range": _bounded_range,
                "raise_exception": _refuse,
            }
        )
        template = jinja2.Template.from_code(environment, self._code, given)
        names = {"messages": list(messages), "tools": list(tools) if tools else None}
        parts: list[str] = []
        made = 0
        try:
            for part in template.generate(self._special | names | {"add_generation_prompt": True}):
                made += len(part)
                budget.size(made)
                parts.append(part)
        except TemplateRefused:
            raise
        except (Exception, RecursionError) as error:  # whatever a template makes Python raise
            raise TemplateRefused(f"the chat template failed: {error}") from error
        return "".join(parts)


def _refuse(message: str) -> None:
    raise TemplateRefused(f"the chat template refuses the chat: {message}")


def _bounded_range(*bounds: int) -> range:
    values = range(*bounds)
    if len(values) > _LONGEST_RANGE:
        raise TemplateRefused(f"the chat template loops {len(values)} times")
    return values


def _to_json(value: Any, indent: int | None = None, **_: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _environment() -> Any:
    """The sandbox: filters, methods and operators that templates of models use."""
    from jinja2.exceptions import SecurityError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Sandbox(ImmutableSandboxedEnvironment):
        intercepted_binops = frozenset({"*", "**", "+", "%"})

        def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
            if isinstance(obj, (str, dict, list)):
                return attr in _METHODS[_kind(obj)] or (
                    isinstance(obj, dict) and not hasattr(dict, attr)
                )
            return type(obj).__module__.startswith("jinja2.") and super().is_safe_attribute(
                obj, attr, value
            )

        def wrap_str_format(self, value: Any) -> Any:
            if super().wrap_str_format(value) is not None:
                raise SecurityError("texts are not formatted in chat templates")

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            budget: _Budget = context["_budget"]
            texts = any(isinstance(side, (str, list, tuple)) for side in (left, right))
            if operator == "**" or (operator == "%" and isinstance(left, str)):
                raise SecurityError(f"operator {operator} is not one for chat templates")
            if operator == "*" and texts:
                raise SecurityError("texts are not multiplied in chat templates")
            if operator == "+" and texts:
                budget.size(len(left) + len(right))
            made = super().call_binop(context, operator, left, right)
            if isinstance(made, int) and abs(made) > _LARGEST_NUMBER:
                raise SecurityError("a chat template counts no further than 64 bits")
            return made

        def call(self, context: Any, called: Any, /, *args: Any, **kwargs: Any) -> Any:
            budget: _Budget = context["_budget"]
            owner = getattr(called, "__self__", None)
            name = getattr(called, "__name__", "")
            if isinstance(owner, str) and name in ("replace", "join"):
                budget.size(_largest(owner, name, args))
            budget.take()
            return budget.counted(super().call(context, called, *args, **kwargs))

    environment = Sandbox(trim_blocks=True, lstrip_blocks=True, autoescape=False)
    environment.filters = {
        name: function for name, function in environment.filters.items() if name in _FILTERS
    } | {"tojson": _to_json, "replace": _replace, "join": _join}
    environment.globals = {"namespace": environment.globals["namespace"]}
    environment.policies["json.dumps_kwargs"] = {"ensure_ascii": False}
    return environment


def _kind(value: Any) -> type:
    return next(kind for kind in (str, dict, list) if isinstance(value, kind))


def _largest(owner: str, name: str, args: tuple[Any, ...]) -> int:
    """The most characters of the result of a method of texts."""
    if name == "join":
        parts = [str(part) for part in args[0]] if args else []
        return sum(map(len, parts)) + len(owner) * len(parts)
    return (len(owner) + 1) * max(1, len(str(args[1]))) if len(args) > 1 else len(owner)


def _replace(value: Any, old: str, new: str, count: int = -1) -> str:
    text = str(value)
    if len(text) * max(1, len(new)) > MOST_CHARACTERS and len(new) > len(old):
        raise TemplateRefused("the chat template replaces too much")
    return text.replace(old, new, -1 if count is None else count)


def _join(values: Any, between: str = "", attribute: str | None = None) -> str:
    if attribute is not None and attribute.startswith("_"):
        raise TemplateRefused(f"the chat template reaches for {attribute!r}")
    parts = [str(value[attribute]) if attribute else str(value) for value in values]
    if sum(map(len, parts)) + len(between) * len(parts) > MOST_CHARACTERS:
        raise TemplateRefused("the chat template joins too much")
    return between.join(parts)


def _bounded(tree: Any) -> Any:
    """The parsed template with a step in each turn of a loop, and in each call of a macro.

    Raises TemplateRefused for what no template of a chat needs.
    """
    from jinja2 import nodes
    from jinja2.visitor import NodeTransformer

    forbidden = (nodes.Include, nodes.Import, nodes.FromImport, nodes.Extends, nodes.Block)

    def call(name: str, *args: Any) -> Any:
        return nodes.Call(nodes.Name(name, "load"), list(args), [], None, None)

    class Bound(NodeTransformer):
        def generic_visit(self, node: Any, *args: Any, **kwargs: Any) -> Any:
            if isinstance(node, forbidden):
                raise TemplateRefused(f"the chat template has a {type(node).__name__}")
            if isinstance(node, nodes.Name) and node.name.startswith("_"):
                raise TemplateRefused(f"the chat template reaches for {node.name!r}")
            if isinstance(node, nodes.Getattr) and node.attr.startswith("_"):
                raise TemplateRefused(f"the chat template reaches for {node.attr!r}")
            node = super().generic_visit(node, *args, **kwargs)
            if isinstance(node, nodes.Output):
                node.nodes = [
                    each if isinstance(each, nodes.TemplateData) else call("_plain", each)
                    for each in node.nodes
                ]
            elif isinstance(node, nodes.Concat):
                node.nodes = [call("_plain", each) for each in node.nodes]
            if isinstance(node, nodes.For):
                if node.recursive:
                    raise TemplateRefused("the chat template has a loop that calls itself")
                node.iter = call("_items", node.iter)
            elif isinstance(node, (nodes.Macro, nodes.CallBlock)):
                node.body = [nodes.ExprStmt(call("_take")), *node.body]
            elif isinstance(node, (nodes.Concat, nodes.Filter, nodes.List, nodes.Dict)) or (
                isinstance(node, nodes.Tuple) and node.ctx == "load"
            ):
                return call("_counted", node)
            return node

    bounded = Bound().visit(tree)
    bounded.set_environment(tree.environment)
    return bounded.set_lineno(1)
