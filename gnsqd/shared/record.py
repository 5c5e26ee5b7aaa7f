"""Classes whose constructor takes their values, as dataclasses.

The module `dataclasses` imports `inspect` and compiles the methods of each class, which took a sixth of the daemon's
start. So modules that a start loads have records and NamedTuples instead. NamedTuple compiles annotations that are
strings, as all are in compiled modules, and the first `compile` builds the classes of `ast`, a thirtieth of a start:
where an annotation is a string, the class is a record.
"""

from typing import Any, ClassVar, dataclass_transform


@dataclass_transform()
class Record:
    """Values that may change. A subclass declares the name and type of each, and a default or none; lists are copied.
    The constructor raises AttributeError if a value is missing, TypeError for a name that is not declared."""

    names: ClassVar[tuple[str, ...]] = ()  # in order

    def __init_subclass__(cls) -> None:
        cls.names += tuple(cls.__annotations__)

    def __init__(self, *arguments: Any, **values: Any) -> None:
        values |= zip(self.names, arguments, strict=False)
        for name in self.names:
            value = values.pop(name) if name in values else getattr(self, name)
            setattr(self, name, value.copy() if isinstance(value, list) else value)
        if values:
            raise TypeError(f"{type(self).__name__} has no {', '.join(values)}")
        self.__post_init__()

    def __post_init__(self) -> None:
        """Completes the object when all values are set."""
