"""A model of which some fields are wrong, for the rules that do not look at those.

All findings are to come at once. A rule about fields together can be judged
while another field is wrong, as long as it never asks for that field.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NoReturn, TypeVar, get_args

from trtllm_hpc.config.types import Section

Model = TypeVar("Model", bound=Section)
Path = tuple[Any, ...]


class UnknownValueError(Exception):
    """A rule has asked for a field that is wrong itself."""


class _Unknown:
    """Stands in a field that is wrong: whoever looks at it learns that it is not known."""

    def _refuse(self, *_: object) -> NoReturn:
        raise UnknownValueError

    __getattr__ = __bool__ = __len__ = __iter__ = __contains__ = __hash__ = _refuse
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _refuse
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _refuse
    __truediv__ = __rtruediv__ = __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = _refuse
    __str__ = __repr__ = __format__ = __int__ = __float__ = __index__ = _refuse


def partial(model: type[Model], plain: dict[str, Any], wrong: Collection[Path]) -> Model:
    """The model with every field that is right, and a stand-in in each that is wrong.

    Args:
        plain: the values as they were written; not converted, since models are strict.
        wrong: where validation has complained, as paths from the model's root.
    """
    plain = model.with_defaults(plain)
    values = {
        name: _field(field.annotation, plain[name], [path[1:] for path in wrong if path[:1] == (name,)])
        for name, field in model.model_fields.items()
        if name in plain
    }
    missing = {path[0] for path in wrong if len(path) == 1 and path[0] not in plain}
    values.update({name: _Unknown() for name in missing if name in model.model_fields})
    return model.model_construct(**values)


def _field(annotation: Any, value: Any, wrong: list[Path]) -> Any:
    section = _section(annotation)
    if () in wrong:
        return _Unknown()
    if section is not None and isinstance(value, dict):
        return partial(section, value, wrong)
    return _Unknown() if wrong else value


def _section(annotation: Any) -> type[Section] | None:
    """The section that a field holds, also one that may be null."""
    for kind in (annotation, *get_args(annotation)):
        if isinstance(kind, type) and issubclass(kind, Section):
            return kind
    return None
