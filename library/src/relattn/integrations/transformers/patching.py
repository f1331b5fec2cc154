"""Enable and disable the forward patches: on classes, for all their modules, or on the modules of one model.

The forward of a class is replaced by one that reads the setting of its module: an attribute of the module, or of the
class for all its modules. So copies, replicas and wrappers of a module follow its setting, and disabling a module takes
effect in code that kept a reference to its forward.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MethodType, TracebackType
from typing import TYPE_CHECKING, Any, Literal
from weakref import WeakSet

from torch import nn

from relattn.checks import check_flag, check_window
from relattn.functional import Window
from relattn.integrations.transformers import int8
from relattn.integrations.transformers.forward_patch import SETTING, Forward, ForwardPatch, Scope, load_class, path_of

if TYPE_CHECKING:
    from relattn.integrations.transformers.family import Family  # imports transformers

_log = logging.getLogger(__name__)
Owner = type[nn.Module] | nn.Module  # of a setting


@dataclass(frozen=True, eq=False)
class Request:
    """Options of one call of `enable`.

    Attributes:
        window: The sliding window, or None.
        unpad: Whether padding is left out.
        is_check: Whether it is for the check of a family, where an unknown argument is an error.
        scope: How long it lasts.
    """

    window: Window = None
    unpad: bool = False
    is_check: bool = False
    scope: Scope = field(default_factory=Scope)


class Setting:
    """Setting of a module, or of all modules of a class, that use relattn.

    It does not change, because shallow copies and replicas of a module share it, and other threads read it.

    Attributes:
        owner: The patched class.
        requests: Options of the calls of `enable` that are in effect, oldest first.
        has_rebound: Whether references of the module to its forward were exchanged.
    """

    def __init__(self, owner: PatchedClass, *requests: Request, has_rebound: bool = False) -> None:
        self.owner = owner
        self.requests = requests
        self.has_rebound = has_rebound
        owner.settings.add(self)

    @property
    def window(self) -> Window:
        """The sliding window of the last request that has one."""
        return next((request.window for request in reversed(self.requests) if request.window is not None), None)

    @property
    def unpad(self) -> bool:
        """Whether padding is left out."""
        return any(request.unpad for request in self.requests)

    @property
    def is_check(self) -> bool:
        """Whether the last request is for the check of a family."""
        return self.requests[-1].is_check

    def lasts(self, has_window: bool, unpad: bool) -> bool:
        """Return whether relattn is still used, with what is asked for, when all blocks have ended."""
        lasting = [request for request in self.requests if not request.scope.is_block]
        lacks_window = has_window and all(request.window is None for request in lasting)
        lacks_unpad = unpad and not any(request.unpad for request in lasting)
        return bool(lasting) and not lacks_window and not lacks_unpad

    def __reduce__(self) -> Any:
        """Copies and pickled models patch the class again, in their own process."""
        return _restore_setting, (self.owner.patch.class_path, self.window, self.unpad)


class PatchedClass:
    """A supported class of transformers, whose forward can be replaced and restored.

    Attributes:
        patch: The replacement.
        family: The family of the patch.
        settings: The settings in use, of the class or of its modules.
    """

    def __init__(self, patch: ForwardPatch, family: Family) -> None:
        self.patch = patch
        self.family = family
        self.settings: WeakSet[Setting] = WeakSet()
        self.forward: Forward | None = None  # the replacement, once there is one
        self.original: Forward | None = None
        self.is_inherited = False

    @functools.cached_property
    def module_type(self) -> type[nn.Module]:
        """The class."""
        return load_class(self.patch.class_path)

    def install(self) -> None:
        """Replace the forward of the class, if that is not done."""
        current = self.module_type.forward
        if not any(forward is self.forward for forward in _wrapped_forwards(current)):
            self.is_inherited = "forward" not in self.module_type.__dict__
            self.original = current
            self.forward = self.patch.wrap(current)
            self.module_type.forward = self.forward  # type: ignore[method-assign]

    def uninstall(self) -> None:
        """Restore the class if no setting is in use. What another library put around the forward stays."""
        if self.forward is None or self.settings or self.module_type.__dict__.get("forward") is not self.forward:
            return
        if self.is_inherited:
            del self.module_type.forward
        else:
            self.module_type.forward = self.original  # type: ignore[method-assign, assignment]

    def enable(self, owner: Owner, request: Request) -> None:
        """Enable the class or one of its modules."""
        self.install()
        has_rebound = isinstance(owner, nn.Module) and self._rebind(owner, self.original, self.forward)
        requests: tuple[Request, ...] = ()
        if (setting := owner.__dict__.get(SETTING)) is not None:
            requests = setting.requests
            has_rebound |= setting.has_rebound
        setattr(owner, SETTING, Setting(self, *requests, request, has_rebound=has_rebound))

    def disable(self, owner: Owner) -> None:
        """Undo each `enable`. Does nothing if `owner` was not enabled."""
        while (setting := owner.__dict__.get(SETTING)) is not None:
            self.withdraw(owner, setting.requests[-1])
        self.uninstall()

    def withdraw(self, owner: Owner, request: Request) -> None:
        """Undo one `enable`: the requests before it are used again. Does nothing if that was done."""
        setting = owner.__dict__.get(SETTING)
        if setting is None or request not in setting.requests:
            return
        remaining = [other for other in setting.requests if other is not request]
        self.settings.discard(setting)
        if remaining:
            setattr(owner, SETTING, Setting(self, *remaining, has_rebound=setting.has_rebound))
        else:
            delattr(owner, SETTING)
            follow_class = SETTING in self.module_type.__dict__ and not setting.has_rebound
            if isinstance(owner, nn.Module) and not follow_class:
                self._rebind(owner, self.forward, self.original)
        self.uninstall()

    def _rebind(self, module: nn.Module, old: Any, new: Any) -> bool:
        """Exchange the forward in references that a module keeps, such as that of accelerate's hooks, if there are any.

        Returns:
            Whether there were any.
        """
        has_rebound = False
        for name, value in list(module.__dict__.items()):
            if isinstance(value, MethodType) and value.__func__ is old:
                module.__dict__[name] = MethodType(new, value.__self__)
                has_rebound = True
        return has_rebound

    def unsupported_reason(self, module: nn.Module) -> str | None:
        """Return why `module` keeps its own code, or None."""
        reason = _mismatch_reason(self.family) or self.patch.unsupported_reason(module)
        if reason is None and not self.is_reached(module, self.original or self.module_type.forward):
            return "another library has replaced its forward"
        return reason

    def is_reached(self, module: nn.Module, replaceable: Forward | None = None) -> bool:
        """Return whether calls of a module reach our forward, or one in its references that `_rebind` replaces."""
        if "forward" not in module.__dict__:
            return True
        references = [value.__func__ for value in module.__dict__.values() if isinstance(value, MethodType)]
        wrapped = [getattr(forward, "__func__", None) for forward in _wrapped_forwards(module.__dict__["forward"])]
        return self.forward in [*references, *wrapped] or (replaceable is not None and replaceable in references)


Modules = list[tuple[nn.Module, PatchedClass]]  # of a model, each with its class


class Enabled:
    """The classes or modules that one call of `enable` changed. As a context manager, it restores these on exit."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.changed: list[tuple[PatchedClass, Owner]] = []
        self.in_int8: list[int8.Int8Linear] = []

    def add(self, patched: PatchedClass, owner: Owner) -> None:
        """Enable a class or one of its modules."""
        patched.enable(owner, self.request)
        self.changed.append((patched, owner))

    def __repr__(self) -> str:
        return f"<{len(self.changed)} modules or classes with relattn, {len(self.in_int8)} linear layers in int8>"

    def __enter__(self) -> Enabled:
        self.request.scope.is_block = True
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for patched, owner in self.changed:
            patched.withdraw(owner, self.request)
        for layer in self.in_int8:
            int8.withdraw(layer, self.request.scope)


def enable(
    model: nn.Module | None = None, *, window: Window = None, linear: Literal["float32", "int8"] = "float32",
    keep: Sequence[str] = (), unpad: bool = False,
) -> Enabled:  # fmt: skip
    """Compute relative attention with relattn in one model, or in all models of the supported families.

    What is already enabled stays as it is. A family is first compared with its own code on a small model of random
    weights, once per process. If they disagree, because the installed version of transformers differs, the family is
    left alone, with a warning.

    Args:
        model: The model to patch. None patches the classes, and so all their models, including those created later.
        window: The sliding window (left, right) of one model, in positions of its attention, as in
            `relative_attention`. Time and memory are then linear in the length. It changes the outputs, unless no
            input is longer than the window. Default: the model's own attention.
        linear: "int8" also lets the linear layers of one model compute in int8 on a CPU, in inference, if the model is
            not compiled or exported. It changes the outputs slightly. Layers with fewer than 64 inputs or outputs and
            that of the output embeddings keep float32. A weight that changes is converted again. Where a part of it
            changes through `.data` or NumPy, which PyTorch does not count, call `enable` again.
        unpad: Pack the valid tokens of a padded batch once, and compute all layers of one model on these only. Outputs
            at padding are then zeros. Batches that are not padded on the right, or of which less than a tenth is
            padding, are computed as without it.
        keep: Names of modules, as in `model.named_modules()`, whose linear layers keep float32. They must not be in
            int8 already.

    Returns:
        A context manager. Leaving its block undoes what this call changed, and what was enabled before is used again.
        Without a block the change stays.

    Raises:
        ImportError: The package transformers is not installed.
        ValueError: `unpad` is given without a model that has such an encoder, or with one that reads padding; the
            window has no valid form, is given without a model, or is not supported by a part of the model; `model` is a
            part of a stack whose layers exchange positions; or int8 is given without a model, with a model that has
            other weights than finite ones in float32 on the CPU; or `keep` is a string, has a name of no module or of
            one that is in int8, or is given without int8.
    """
    try:
        import transformers  # noqa: F401
    except ImportError as error:
        raise ImportError('transformers must be installed: pip install "transformers>=5"') from error
    window = None if window is None else check_window(window, None)[1:]
    if linear not in ("float32", "int8"):
        raise ValueError(f"linear must be 'float32' or 'int8', got {linear!r}")
    check_flag("unpad", unpad)
    if keep and linear != "int8":
        raise ValueError(f"keep must be given with linear='int8', got {keep!r} with linear={linear!r}")
    if linear == "int8" and model is None:
        raise ValueError("linear='int8' must be given with a model, because it changes the outputs")
    modules = [] if model is None else _units(model)
    if unpad:
        _check_model_takes_unpad(model, modules)
    enabled = Enabled(Request(window, unpad))
    if model is None:
        if window is not None:
            raise ValueError(f"window must be given with a model, because it changes the outputs, got window={window}")
        for patched in _patched_classes().values():
            setting = patched.module_type.__dict__.get(SETTING)
            if _mismatch_reason(patched.family) is None and not (setting and setting.lasts(False, False)):
                enabled.add(patched, patched.module_type)
        return enabled
    if window is not None:
        _check_model_takes_window(model, modules, window)
    if linear == "int8":
        enabled.in_int8 = int8.quantize(model, keep, enabled.request.scope)
    elif not modules:
        _log.warning("%s has no module of a class that relattn supports", type(model).__name__)
    for module, patched in modules:
        is_own = window is not None or unpad  # what the class has does not count
        setting = module.__dict__.get(SETTING) if is_own else getattr(module, SETTING, None)
        stays = setting is not None and setting.lasts(window is not None, unpad)
        if not (stays and patched.is_reached(module)) and patched.unsupported_reason(module) is None:
            enabled.add(patched, module)
    return enabled


def _check_model_takes_unpad(model: nn.Module | None, modules: Modules) -> None:
    """Check that a model has an encoder that can leave out padding."""
    encoders = [(x, patched) for x, patched in modules if patched.patch.takes_unpad]
    if all(patched.patch.unsupported_reason(x) for x, patched in encoders):
        names = ", ".join(dict.fromkeys(p.family.name for p in _patched_classes().values() if p.patch.takes_unpad))
        raise ValueError(f"unpad must be given with a model of {names}, got {type(model).__name__}")
    for x, patched in encoders:
        if (reason := patched.patch.padded_reason(x)) is not None:
            raise ValueError(
                f"unpad must be given with a model that does not read padding, got {type(x).__name__}: {reason}"
            )


def _check_model_takes_window(model: nn.Module, modules: Modules, window: Window) -> None:
    """Check that each relative attention of a model can have a window, before any is patched."""
    families = dict.fromkeys(patched.family for patched in _patched_classes().values())
    names = ", ".join(family.name for family in families if family.takes_window)
    requirement = f"window must be given with a model of {names}"
    if not modules:
        raise ValueError(f"{requirement}, got {type(model).__name__}")
    for module, patched in modules:
        name = type(module).__name__
        if not patched.family.takes_window:
            raise ValueError(f"{requirement}, got a model with {name}")
        if (reason := patched.unsupported_reason(module)) is not None:
            raise ValueError(f"window must be given with a model that is supported as a whole, got {name}: {reason}")
        setting = module.__dict__.get(SETTING)
        if setting is not None and setting.window != window:
            raise ValueError(
                f"window must be {setting.window}, with which {name} is enabled, got {window}; disable it first"
            )


def disable(model: nn.Module | None = None) -> None:
    """Undo `enable`.

    Args:
        model: The model to restore. None restores the classes; models that were enabled on their own stay enabled.

    Raises:
        ValueError: `model` is a part of a stack whose layers exchange positions.
    """
    if model is None:
        for patched in _patched_classes().values():
            if patched.forward is not None:
                patched.disable(patched.module_type)
    else:
        for module, patched in _units(model):
            patched.disable(module)
        for layer in model.modules():
            int8.restore(layer)


def report(model: nn.Module) -> str:
    """Return a line per module of a supported class: its name, its class, and "relattn", with its window, or why not.

    If there are linear layers in int8, a line has their number.
    """
    lines = []
    for name, module in model.named_modules():
        if (patched := _patched_class(module)) is None or not patched.patch.has_attention:
            continue
        state = patched.unsupported_reason(module) or _described(module, patched)
        lines.append(f"{name or 'the model'} ({type(module).__name__}): {state}")
    if count := sum(isinstance(module, int8.Int8Linear) for module in model.modules()):
        lines.append(f"{count} linear layers in int8")
    return "\n".join(lines) or f"{type(model).__name__}: no module of a supported class"


def _described(module: nn.Module, patched: PatchedClass) -> str:
    """Return whether a supported module is enabled, and how."""
    setting: Setting | None = getattr(module, SETTING, None)
    if setting is None:
        return "not enabled"
    if not patched.is_reached(module):
        return "its forward was wrapped before its class was enabled; enable the model"
    window = "" if setting.window is None else f", window {setting.window}"
    unpad = ", without padding" if setting.unpad and patched.patch.takes_unpad else ""
    return f"relattn{window}{unpad}"


def _units(model: nn.Module) -> Modules:
    """Return the modules of `model` that have a patch, and check that none of them is cut off from its unit."""
    modules = [(module, patched) for module in model.modules() if (patched := _patched_class(module)) is not None]
    units = {patched.family.unit for _, patched in modules} - {""}
    inside = {
        part
        for unit in model.modules()
        if any(path_of(base) in units for base in type(unit).__mro__)
        for part in unit.modules()
    }
    for module, patched in modules:
        unit = patched.family.unit
        if unit and module not in inside and patched.unsupported_reason(module) is None:
            raise ValueError(
                f"model must contain the whole {unit.rpartition('.')[2]}, whose parts exchange positions, got "
                f"{type(model).__name__}"
            )
    return modules


def _patched_class(module: nn.Module) -> PatchedClass | None:
    """Return the patched class of `module`, or None."""
    return _patched_classes().get(path_of(type(module)))


@functools.cache
def _patched_classes() -> dict[str, PatchedClass]:
    """Return the supported classes by their path below transformers.models."""
    from relattn.integrations.transformers.families import load_families

    return {patch.class_path: PatchedClass(patch, family) for family in load_families() for patch in family.patches}


@functools.cache
def _mismatch_reason(family: Family) -> str | None:
    """Return why a family must be left alone in the installed version of transformers, or None."""
    from transformers import __version__

    from relattn.integrations.transformers.family import difference, too_old

    @contextmanager
    def enabled(model: nn.Module) -> Iterator[None]:
        with Enabled(Request(is_check=True)) as enabled:
            for module in model.modules():
                if (patched := _patched_class(module)) is not None and patched.family is family:
                    enabled.add(patched, module)
            yield

    try:
        for patch in family.patches:
            load_class(patch.class_path)
        reason = too_old(family.since)
        if reason is None and (reason := difference(family, enabled)) is not None:
            reason = f"transformers {__version__} differs from the versions that relattn supports: {reason}"
    except Exception as error:  # whatever the changed class raises
        if isinstance(error, ModuleNotFoundError) and (error.name or "").startswith("transformers.models."):
            return f"transformers {__version__} does not have this model"  # nobody has to be warned
        described = f"{type(error).__name__}: {error}"
        reason = f"transformers {__version__} differs from the versions that relattn supports: {described}"
    if reason is not None:
        _log.warning("%s keeps its own code: %s", family.name, reason)
    return reason


def _restore_setting(class_path: str, window: Window, unpad: bool) -> Setting | None:
    """Return the setting of a module that was copied or pickled, and patch its class."""
    patched = _patched_classes()[class_path]
    if (reason := _mismatch_reason(patched.family)) is None:
        patched.install()
        return Setting(patched, Request(window, unpad))
    if window is not None:
        raise RuntimeError(f"a model that was saved with a window must be supported, got {class_path}: {reason}")
    return None


def _wrapped_forwards(forward: Any) -> Iterator[Any]:
    """Yield a forward, and those that it wraps."""
    while forward is not None:
        yield forward
        forward = getattr(forward, "__wrapped__", None)
