"""Mappings whose values are made when they are asked for."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class LazyMapping(Mapping[K, V]):
    """Values by key, each of which is made whenever it is asked for.

    Args:
        keys: The keys.
        make: Function that returns the value of a key.
    """

    def __init__(self, keys: Iterable[K], make: Callable[[K], V]) -> None:
        self._keys: Mapping[K, Any] = dict.fromkeys(keys)
        self._make = make

    def __getitem__(self, key: K) -> V:
        if key not in self._keys:
            raise KeyError(key)
        return self._make(key)

    def __contains__(self, key: object) -> bool:  # without making it
        return key in self._keys

    def __iter__(self) -> Iterator[K]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)
