"""Values as tagged plain data: how a process that trusts nothing takes what an untrusted one returned.

A message is JSON: `values`, and a `heap` of nodes that they point into, so that shared and cyclic structures keep their
shape, however deep. A scalar (None, bool, int, float, str) stands for itself, `[i]` for node i. A node is a list that
begins with its tag. Only the types named here are ever made of a node, so no method that the other side wrote comes
along. A value of any other type stays where it is and goes out as a *reference*. It can be called and asked, but no
comparison with it is taken (calls.py). Pure; both sides use it.
"""

from __future__ import annotations

import collections
import datetime
import decimal
import enum
import fractions
import functools
from array import array
from collections.abc import Callable, Sequence
from types import MemberDescriptorType
from typing import TYPE_CHECKING, Any

from oapl_core.sandbox.checks.empty_arrays import guarded

if TYPE_CHECKING:
    from oapl_core.sandbox.checks.calls import Peer

Json = Any
Node = list[Any]

_SCALARS = frozenset({type(None), bool, int, float, str})
_VIEWS: dict[type, str] = {type({}.keys()): "keys", type({}.values()): "values", type({}.items()): "items"}
_VIEWS |= {type(getattr(collections.OrderedDict(), name)()): name for name in ("keys", "values", "items")}
_ITEMS: dict[type, str] = {
    kind: kind.__name__ for kind in (list, tuple, set, frozenset, dict, collections.OrderedDict, collections.Counter)
}
_COPIES: tuple[tuple[type, Callable[[Any], Any]], ...] = (
    (str, lambda text: str.__add__(text, "")),
    (int, int.__pos__),
    (float, float.__pos__),
)
_BASES = (complex, bytes, bytearray, list, tuple, set, frozenset, dict)
"""Classes whose derived classes go out as their base, without what they added."""
_MUTABLE = {tag: kind for kind, tag in _ITEMS.items() if kind not in (tuple, frozenset)}
_MUTABLE["defaultdict"] = collections.defaultdict
_NUMPY_KINDS = "?biufcSU"


def _ndarray(dtype: str, shape: list[int], data: str) -> Any:
    import numpy as np

    return np.frombuffer(bytes.fromhex(data), np.dtype(dtype)).reshape(shape).copy()


_ARGUMENTS: dict[type, Callable[[Any], Sequence[Any]]] = {
    complex: lambda value: (value.real, value.imag),
    **dict.fromkeys((bytes, bytearray), lambda value: (value.hex(),)),
    range: lambda value: (value.start, value.stop, value.step),
    fractions.Fraction: lambda value: (value.numerator, value.denominator),
    decimal.Decimal: lambda value: (str(value),),
    **dict.fromkeys((datetime.datetime, datetime.date, datetime.time), lambda value: (value.isoformat(),)),
    datetime.timedelta: lambda value: (value.days, value.seconds, value.microseconds),
    **dict.fromkeys((type(...), type(NotImplemented)), lambda value: ()),
}
"""Constructor arguments that follow the tag, the name of the class, for values that are rebuilt by a constructor."""
_MAKERS: dict[str, Callable[..., Any]] = {
    **{kind.__name__: kind for kind in (complex, range, fractions.Fraction, decimal.Decimal, datetime.timedelta)},
    **{kind.__name__: kind.fromisoformat for kind in (datetime.datetime, datetime.date, datetime.time)},
    "bytes": bytes.fromhex,
    "ellipsis": lambda: ...,
    "NotImplementedType": lambda: NotImplemented,
    "ndarray": _ndarray,
}


class Packing:
    """One message being packed."""

    def __init__(self, side: Peer, known: Sequence[Any] = ()) -> None:
        """Begin a message; `known` are the objects of the message that is answered: they keep their places, and go back
        as they are.
        """
        self._side = side
        self.heap: list[Node | None] = []
        self.objects: list[Any] = []
        """Objects of the heap's nodes, in its order."""
        self._places: dict[int, int] = {}
        self._done = 0
        for value in known:
            self._places.setdefault(id(value), len(self.objects))
            self.objects.append(value)

    def add(self, value: Any) -> Json:
        """Return the value's word in the message; its nodes are made by `finish`."""
        kind = type(value)
        if kind in _SCALARS:
            return value
        if not (issubclass(kind, enum.Enum) and self._side.declared(kind)):
            for base, copy in _COPIES:
                if issubclass(kind, base):
                    return copy(value)
        if kind.__module__ == "numpy" and not hasattr(kind, "__len__") and hasattr(value, "item"):
            item = value.item()
            return float(value) if type(item) is kind else self.add(item)  # an item of longdouble is a longdouble
        place = self._places.get(id(value))
        if place is None:
            place = self._places[id(value)] = len(self.objects)
            self.objects.append(value)
        return [place]

    def finish(self) -> list[Node | None]:
        """Return the heap: nodes of everything that the values lead to."""
        while self._done < len(self.objects):
            self.heap.append(self._node(self.objects[self._done]))
            self._done += 1
        return self.heap

    def _all(self, values: Any) -> list[Json]:
        return [self.add(value) for value in values]

    def _node(self, value: Any) -> Node:
        kind = type(value)
        if kind in _ITEMS:
            return self._items(_ITEMS[kind], value)
        if node := _exact(self, kind, value):
            return node
        if name := self._side.declared(kind):
            return [*self._items("tuple", value, tuple), name] if issubclass(kind, tuple) else self._object(name, value)
        base: Any = next((base for base in _BASES if issubclass(kind, base)), None)
        if base and kind is not base and kind is not collections.defaultdict:
            return self._items(_ITEMS[base], value, base) if base in _ITEMS else self._node(base(value))
        return self._side.reference(value)

    def _items(self, tag: str, value: Any, base: Any = None) -> Node:
        if isinstance(value, dict):
            keys = dict.__iter__(value) if base else value
            return [tag, [[self.add(key), self.add(dict.__getitem__(value, key))] for key in keys]]
        return [tag, self._all(base.__iter__(value) if base else value)]

    def _object(self, name: str, value: Any) -> Node:
        if isinstance(value, enum.Enum):
            return ["enum", name, value.name]
        fields = dict(getattr(value, "__dict__", {}))
        for kind in type(value).__mro__:
            slots = kind.__dict__.get("__slots__", ())
            for slot in (slots,) if isinstance(slots, str) else slots:
                if slot not in ("__dict__", "__weakref__") and hasattr(value, slot):
                    fields[slot] = getattr(value, slot)
        return ["object", name, [[field, self.add(content)] for field, content in fields.items()]]


def _exact(packing: Packing, kind: type, value: Any) -> Node | None:
    """Make the node of a value of one of Python's own classes; None if it is of none."""
    if kind is collections.deque:
        return ["deque", packing._all(value), value.maxlen]
    if kind is collections.defaultdict:
        return packing._items("defaultdict", value)
    if kind in _VIEWS:
        return [_VIEWS[kind], packing._all(value)]
    if kind is array:
        return ["array", value.typecode, packing._all(value)]
    if kind in _ARGUMENTS:
        return [kind.__name__, *_ARGUMENTS[kind](value)]
    if kind.__module__ == "numpy" and kind.__name__ == "ndarray" and value.dtype.kind in _NUMPY_KINDS:
        return ["ndarray", value.dtype.str, list(value.shape), value.tobytes().hex()]
    return None


class Unpacking:
    """One message being unpacked."""

    def __init__(self, side: Peer, heap: list[Node | None], asked: Packing | None = None) -> None:
        """Read a heap of nodes; `asked` is the message that this one answers.

        The objects that went out with `asked` hold the first places of the heap. Mutable ones get the content that they
        have now.

        Raises:
            ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError: it is not a message.
        """
        self._side, self._heap = side, heap
        known = asked.objects if asked else []
        for sent, node in zip(asked.heap if asked else [], heap, strict=False):
            if sent and node and _is_mutable(node[0]) and _kind(sent) != _kind(node):
                raise ValueError(f"a {sent[0]} came back as a {node[0]}")
        self.objects: list[Any] = [*known, *[None] * (len(heap) - len(known))]
        self._made = [number < len(known) for number in range(len(heap))]
        for number, node in enumerate(heap):
            if node and not self._made[number] and (shell := self._shell(node)) is not None:
                self.objects[number], self._made[number] = shell, True
        fillable = [number for number, node in enumerate(heap) if node and _is_mutable(node[0])]
        for number in sorted(fillable, key=lambda n: _ORDER.index(heap[n][0]) if heap[n] else 0):  # type: ignore[index]
            self._fill(self.objects[number], heap[number] or [])
        for number in range(len(heap)):
            self._at(number)

    def value(self, word: Json) -> Any:
        """Return the value of a word of the message."""
        return self._at(word[0]) if isinstance(word, list) else word

    def _at(self, number: int) -> Any:
        if not self._made[number]:
            node = self._heap[number]
            assert node
            self.objects[number], self._made[number] = self._immutable(node), True
        return self.objects[number]

    def _all(self, words: list[Json]) -> list[Any]:
        return [self.value(word) for word in words]

    def _shell(self, node: Node) -> Any:
        tag = node[0]
        if tag in _MUTABLE:
            return _MUTABLE[tag]()
        if tag == "deque":
            return collections.deque(maxlen=node[2])
        if tag == "bytearray":
            return bytearray()
        if tag == "object":
            kind: Any = self._side.class_named(node[1])
            return kind.__new__(kind)
        return None

    def _fill(self, shell: Any, node: Node) -> None:
        tag, content = node[0], node[1]
        if tag == "object":
            kind: Any = type(shell)
            for field, word in node[2]:
                if _is_a_field(kind, field):
                    object.__setattr__(shell, field, self.value(word))
        elif tag == "bytearray":
            shell[:] = bytes.fromhex(content)
        elif tag == "list":
            shell[:] = self._all(content)
        elif tag in ("deque", "set"):
            shell.clear()
            (shell.extend if tag == "deque" else shell.update)(self._all(content))
        elif tag == "ndarray":
            if shell is not None:  # one of ours, that the other side wrote into
                shell[...] = self._immutable(node)
        else:
            shell.clear()
            for key, word in content:
                dict.__setitem__(shell, self.value(key), self.value(word))

    def _immutable(self, node: Node) -> Any:
        tag, *content = node
        if tag == "tuple" and len(content) == 2:
            return tuple.__new__(self._side.class_named(content[1]), self._all(content[0]))
        if tag in ("tuple", "frozenset"):
            return (tuple if tag == "tuple" else frozenset)(self._all(content[0]))
        if tag in ("keys", "values", "items"):
            values = self._all(content[0])
            pairs = dict(values) if tag == "items" else dict(enumerate(values)) if tag == "values" else {}
            return getattr(pairs or dict.fromkeys(values if tag == "keys" else ()), tag)()
        if tag == "enum":
            return self._side.class_named(content[0])[content[1]]  # type: ignore[index]
        if tag == "ndarray" and self._side.compares:
            return guarded(_ndarray(*content))
        if tag == "array":
            return array(content[0], self._all(content[1]))
        return _MAKERS[tag](*content) if tag in _MAKERS else self._side.referred(node)


_ORDER = ("object", "list", "deque", "bytearray", "ndarray", "dict", "OrderedDict", "Counter", "defaultdict", "set")
"""Objects and lists are filled before they are hashed or compared as keys."""


@functools.lru_cache(maxsize=1000)
def _is_a_field(kind: type, name: str) -> bool:
    """Return whether objects of a class may have the attribute: not one that hides a method or a property of the
    class.
    """
    if name.startswith("__"):
        return False
    of_class = next((vars(base)[name] for base in kind.__mro__ if name in vars(base)), None)
    is_slot = isinstance(of_class, MemberDescriptorType)
    return is_slot or not (callable(of_class) or hasattr(type(of_class), "__get__"))


def _kind(node: Node) -> Node:
    """Return the tag, with the class of an object."""
    return node[:2] if node[0] == "object" else node[:1]


def _is_mutable(tag: str) -> bool:
    return tag in _ORDER
