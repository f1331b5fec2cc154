"""Bundles for other programs: what is written, and the check that it says the same."""


def with_report(card: str, report: object) -> str:
    """A bundle's card as that of its export, which ends with what the export was found to be."""
    return f"{card.rstrip()}\n\n## Export\n\n{report}\n".lstrip()
