"""`relattn calibrate`"""

from pathlib import Path

from relattn.translation.commands.options import DeviceOptions, ReferenceText, SearchOptions
from relattn.translation.console import shows_progress
from relattn.translation.errors import InputError, require


def calibrate(bundle: str, *, text: ReferenceText, search: SearchOptions, device: DeviceOptions) -> None:
    """Fit the confidences that a bundle reports for its translations, and write the fit into the bundle.

    The confidence of a translation becomes the chrF, as a fraction, that translations of the same mean log-probability
    reach on this text. Training does this with the validation set.

    Args:
        bundle: Directory of the bundle, which is changed.
    """
    require(Path(bundle).is_dir(), f"{bundle}: no such directory")

    from relattn.translation import bundle as bundles
    from relattn.translation.translate.calibration import calibrate as fit

    translator = device.load_bundle(bundle)
    options = search.options(translator)
    pairs = text.pairs()
    results = translator.n_best([src for src, _ in pairs], options, progress=shows_progress())
    calibration = fit([best for best, *_ in results], [reference for _, reference in pairs])
    if calibration is None:
        raise InputError("calibration requires at least two lines with different scores; the bundle is unchanged")
    bundles.calibrate(bundle, calibration)
    print(f"confidence = sigmoid({calibration.bias} + {calibration.slope} * mean log-probability per token)")
