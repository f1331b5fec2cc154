"""Position schemes: the parts of a model that know where a piece stands."""

from relattn.translation.model.positions.distance_terms import SCHEMES, NoPositions, blindness

__all__ = ["SCHEMES", "NoPositions", "blindness"]
