"""Position schemes: their names, their options, and what the model computes for each.

Everything that depends on a scheme reads its `PositionSpec`: the model, the compiled engine, exports, analysis and the
reference pages. They match on the kinds of its two parts, a `Signal` and a `Mixer`, and refuse a kind that they do not
know. To add a scheme, add an entry to `SCHEMES`, and for a new computation a kind. A `DistanceBias` names its module,
its function in NumPy and its weights, and an `OtherMixer` its module and its weights; the modules of the other kinds
are in `model/positions/`, and their weights in `weights.py`. `register` adds a scheme of another package. Importing
this module does not import PyTorch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, TypeVar, final

from relattn_mt.config.base import Config, arguments_of, number
from relattn_mt.support.errors import require, require_known
from relattn_mt.support.types import Fields

_T = TypeVar("_T")
Shapes = dict[str, tuple[int, ...]]  # of weights, by name


@dataclass(frozen=True)
class Part:
    """Base class of signals and mixers."""

    even: ClassVar[Literal["dim", "head_dim"] | None] = None  # dimension that must be even


@dataclass(frozen=True)
class Signal(Part):
    """Base class of what is added to embeddings: a vector per position.

    Attributes:
        max_length: Maximum number of positions; None for no limit.
    """

    max_length: int | None = None


@final
class Sinusoids(Signal):
    """Sinusoids of the position (Vaswani et al. 2017, section 3.5)."""

    even = "dim"


@final
@dataclass(frozen=True)
class LearnedVectors(Signal):
    """A learned vector for each of `max_length` positions (Gehring et al. 2017, section 3.1).

    Attributes:
        fixed: Whether the vectors are Marian's sinusoids, which are not trained. The first target token then has an
            embedding of zeros.
    """

    fixed: bool = False


class Mixer(Part):
    """Base class of the first sub-layer of a layer, in which positions see each other."""


@final
class DotProduct(Mixer):
    """Self-attention without a position term: e_ij = q_i · k_j / √head_dim, z_i = Σ_j α_ij v_j."""


@final
@dataclass(frozen=True)
class ClippedTables(Mixer):
    """Shaw's attention: e_ij = q_i · (k_j + aK_(j−i)) / √head_dim, z_i = Σ_j α_ij (v_j + aV_(j−i)).

    Attributes:
        left: Clipping distance to the left.
        right: Clipping distance to the right.
        keys: Whether there is a table aK.
        values: Whether there is a table aV.
        per_head: Whether each head has its own tables.
        beyond: Row of pairs beyond the clipping distance: that of the edge ("clip") or none ("zero").
    """

    left: int
    right: int
    keys: bool
    values: bool
    per_head: bool
    beyond: Literal["clip", "zero"]


@dataclass(frozen=True)
class DistanceBias(Mixer):
    """Attention with a bias per head and distance: e_ij = q_i · k_j / √head_dim + b_(j−i), z_i = Σ_j α_ij v_j.

    The subclasses are the functions b. PyTorch's engine supports any subclass, the compiled engine those with
    `in_numpy`.

    Attributes:
        module: The class of the modules that compute b, as "package.module:Class". It is called with the number of
            heads and `is_causal`, and its modules with distances (labels,) for biases (heads, labels).
        in_numpy: The function that computes b for the compiled engine, as "package.module:function". It is called with
            distances, the number of heads, `is_causal` and the weights by name. If empty, only PyTorch translates.
        per_layer: Whether each layer has its own module, as in UMT5, and not all layers of a stack the same.
    """

    module: ClassVar[str]
    in_numpy: ClassVar[str] = ""
    per_layer: bool = False

    def weights(self, heads: int) -> Shapes:
        """Return the names and the shapes of the weights of a module."""
        return {}


@final
class BucketBias(DistanceBias):
    """T5's bias: a learned number per bucket of distances."""

    module = "relattn_mt.model.positions.distance_terms:Buckets"
    in_numpy = "relattn_mt.engine.terms:bucket_biases"
    buckets: ClassVar[int] = 32  # of both directions together
    farthest: ClassVar[int] = 128  # this distance and longer ones share a bucket

    @classmethod
    def starts(cls, is_causal: bool) -> list[int]:
        """Return the shortest distance of each bucket of a direction but the first.

        Short distances have a bucket each. The width of the other half of the buckets grows logarithmically.
        """
        exact = cls.buckets // (2 if is_causal else 4)
        growth = cls.farthest / exact
        return [*range(1, exact), *(math.ceil(exact * growth ** (i / exact)) for i in range(exact))]

    def weights(self, heads: int) -> Shapes:
        return {"weight": (self.buckets, heads)}


@final
class SlopeBias(DistanceBias):
    """ALiBi's bias: −m |j − i|, with a constant slope m per head."""

    module = "relattn_mt.model.positions.distance_terms:Slopes"
    in_numpy = "relattn_mt.engine.terms:slope_biases"


@final
class DistanceVectors(Mixer):
    """Transformer-XL's attention: e_ij = ((q_i + u) · k_j + (q_i + v) · W R_(i−j)) / √head_dim, R are sinusoids."""

    even = "dim"


@final
class Rotation(Mixer):
    """Self-attention with rotated queries and keys (Su et al. 2021)."""

    even = "head_dim"


class OtherMixer(Mixer):
    """A sub-layer other than self-attention. PyTorch's engine supports any subclass.

    Attributes:
        module: The class of the sub-layer, as "package.module:Class". It is called with the dimension of the model and
            `is_causal`, and has the interface of `SSRUMixer` in `model/mixers.py`.
    """

    module: ClassVar[str]

    def weights(self, dim: int, is_causal: bool) -> Shapes:
        """Return the names, after "self_attention.", and the shapes of the weights of a module."""
        raise NotImplementedError


@final
class SSRU(OtherMixer):
    """A recurrent unit (Kim et al. 2019), for decoders only."""

    module = "relattn_mt.model.mixers:SSRUMixer"

    def weights(self, dim: int, is_causal: bool) -> Shapes:
        return {"forget.weight": (dim, dim), "forget.bias": (dim,), "value.weight": (dim, dim)}


class PositionSpec(NamedTuple):
    """What a position scheme with certain options computes.

    Attributes:
        name: Name of the scheme.
        signal: What is added to embeddings; None for nothing.
        mixer: The first sub-layer of every layer.
    """

    name: str
    signal: Signal | None
    mixer: Mixer

    @property
    def parts(self) -> tuple[Part, ...]:
        """The signal, if there is one, and the mixer."""
        return (self.mixer,) if self.signal is None else (self.signal, self.mixer)

    @property
    def max_length(self) -> int | None:
        """Maximum length of a sequence in tokens; None for no limit."""
        return None if self.signal is None else self.signal.max_length

    @property
    def order_warning(self) -> str | None:
        """Warning that a model of this scheme cannot tell word order; None if it can."""
        match self.signal, self.mixer:
            case None, DotProduct():
                reason = f"positions: {self.name} gives no position signal"
            case None, ClippedTables(left=0, right=0):
                reason = "clip: 0 gives all pairs of positions the same label"
            case _:
                return None
        return f"{reason}, so this model cannot tell word order; use it as a baseline"


class Scheme(NamedTuple):
    """An entry of the registry of position schemes.

    Attributes:
        title: Name of the scheme in tables.
        summary: What represents word order, with the source.
        parts: Function from the settings of a model to its signal and its mixer.
        options: Options of the scheme and their defaults. Other options must not be set.
    """

    title: str
    summary: str
    parts: Callable[[PositionConfig], tuple[Signal | None, Mixer]]
    options: Mapping[str, Any] = {}


def _tables(config: PositionConfig) -> ClippedTables:
    return ClippedTables(
        *config.clipping_range,
        keys=config.relative_tables in ("both", "keys"),
        values=config.relative_tables in ("both", "values"),
        per_head=_value(config.tables_per_head),
        beyond=_value(config.beyond),
    )


_TABLES: Fields = {
    "clip": 16,
    "clip_right": None,
    "beyond": "clip",
    "relative_tables": "both",
    "tables_per_head": False,
}

SCHEMES: dict[str, Scheme] = {
    "relative": Scheme(
        "relative",
        "a learned vector per clipped distance, in keys and values (Shaw et al. 2018)",
        lambda config: (None, _tables(config)),
        _TABLES,
    ),
    "relative+sinusoidal": Scheme(
        "relative + sinusoidal",
        "`relative` and `sinusoidal` together",
        lambda config: (Sinusoids(), _tables(config)),
        _TABLES,
    ),
    "relative+learned": Scheme(
        "relative + learned",
        "`relative` and `learned` together, as when tables are added to a model with learned positions",
        lambda config: (LearnedVectors(config.max_positions), _tables(config)),
        _TABLES | {"max_positions": 1024},
    ),
    "sinusoidal": Scheme(
        "sinusoidal",
        "sines and cosines of the position, added to embeddings (Vaswani et al. 2017)",
        lambda config: (Sinusoids(), DotProduct()),
    ),
    "learned": Scheme(
        "learned",
        "a learned vector per position, added to embeddings (Gehring et al. 2017)",
        lambda config: (LearnedVectors(config.max_positions), DotProduct()),
        {"max_positions": 1024},
    ),
    "marian": Scheme(
        "Marian",
        "fixed sinusoids of 1,024 positions, added to embeddings, and no embedding of the first target token (Marian,"
        " Junczys-Dowmunt et al. 2018)",
        lambda config: (LearnedVectors(1024, fixed=True), DotProduct()),
    ),
    "xl": Scheme(
        "Transformer-XL",
        "projected sinusoids of the distance, and two learned biases, in scores (Transformer-XL, Dai et al. 2019)",
        lambda config: (None, DistanceVectors()),
    ),
    "t5": Scheme(
        "T5",
        "a learned bias per head and bucket of distances, which the layers of a stack share unless `bias_per_layer`;"
        " distances of 128 and more share a bucket (T5, Raffel et al. 2020)",
        lambda config: (None, BucketBias(_value(config.bias_per_layer))),
        {"bias_per_layer": False},
    ),
    "alibi": Scheme(
        "ALiBi",
        "a bias that decreases linearly with the distance, on both sides in the encoder (Press et al. 2022)",
        lambda config: (None, SlopeBias()),
    ),
    "rope": Scheme(
        "RoPE",
        "queries and keys rotated by their positions (Su et al. 2021)",
        lambda config: (None, Rotation()),
    ),
    "none": Scheme(
        "none",
        "no signal: a baseline that cannot tell word order; gives a warning",
        lambda config: (None, DotProduct()),
    ),
}
OPTION_NAMES = sorted({name for scheme in SCHEMES.values() for name in scheme.options})

if TYPE_CHECKING:
    Positions = str
else:
    Positions = Literal[tuple(SCHEMES)]  # lets the command line show and check the names


def register(name: str, scheme: Scheme) -> None:
    """Add a scheme of another package, so that recipes and bundles can name it in this process.

    Args:
        name: Name of the scheme in recipes. A scheme that has this name already is replaced.
        scheme: A `Scheme`: its title, summary, parts and options.
    """
    SCHEMES[name] = scheme
    globals()["Positions"] = Literal[tuple(SCHEMES)]
    arguments_of.cache_clear()


@dataclass(frozen=True, kw_only=True)
class PositionConfig(Config):
    """Position scheme of a model, and its options.

    Args:
        positions: Position scheme. "none" is a baseline that cannot tell word order.
        clip: For relative positions, the clipping distance k. By default 16. With clip_right, the distance to the left.
        clip_right: For relative positions, the clipping distance to the right. By default the same as clip.
        beyond: For relative positions, whether pairs beyond the clipping distance use the last row of a table ("clip",
            the default) or no relative term ("zero").
        relative_tables: For relative positions, which tables are learned: aK and aV ("both", the default), only aK
            ("keys") or only aV ("values").
        tables_per_head: For relative positions, learn one table per head, as in the paper's base model, instead of one
            per layer. By default false.
        bias_per_layer: For T5's positions, learn one bias per layer, as in UMT5, instead of one per stack. By default
            false.
        max_positions: For learned positions, the maximum sequence length in tokens. By default 1024. Marian's positions
            always have 1024; other schemes have no limit.
    """

    positions: Positions = "relative"
    clip: int | None = number(None, "[0, 65536]")
    clip_right: int | None = number(None, "[0, 65536]")
    beyond: Literal["clip", "zero"] | None = None
    relative_tables: Literal["both", "keys", "values"] | None = None
    tables_per_head: bool | None = None
    bias_per_layer: bool | None = None
    max_positions: int | None = number(None, "[1, 1048576]")

    def __post_init__(self) -> None:
        super().__post_init__()
        require_known("position scheme", self.positions, SCHEMES)
        defaults = SCHEMES[self.positions].options
        for name in OPTION_NAMES:
            value = getattr(self, name)
            if value is None:
                object.__setattr__(self, name, defaults.get(name))
            else:
                allowed = name in defaults
                require(allowed, f"{name} must not be set for {self.positions} positions, got {value}")

    @property
    def position_spec(self) -> PositionSpec:
        """What the model computes for its position scheme."""
        return PositionSpec(self.positions, *SCHEMES[self.positions].parts(self))

    @property
    def clipping_range(self) -> tuple[int, int]:
        """Clipping distances (left, right) of relative positions."""
        left = _value(self.clip)
        return left, left if self.clip_right is None else self.clip_right


def require_length(most: int | None, length: int) -> None:
    """Raise a ValueError if a sequence is longer than the maximum length of a scheme, which None does not limit."""
    if most is not None and length > most:
        raise ValueError(
            f"a sequence must have at most {most} pieces (max_positions), got {length};"
            " train with a larger max_positions or with another position scheme"
        )


def _value(option: _T | None) -> _T:
    """Return the value of an option that the scheme has, and that therefore is not None."""
    assert option is not None
    return option
