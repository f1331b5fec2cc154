"""`auto` on a GPU: it uses the Triton kernels if they pass their self-test. Triton's interpreter replaces the GPU."""

import time
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import Mock

import pytest
import torch
import triton as compiler
from triton.backends.compiler import GPUTarget
from triton.compiler.errors import CompilationError
from triton.runtime.errors import OutOfResources

from relattn import backends, relative_attention
from relattn.backends import triton
from relattn.backends.triton import availability, operators, selftest
from relattn.backends.triton.__main__ import main
from relattn.backends.triton.availability import Kind
from relattn.call import Call
from tests.support.interpreter import patch_language_once

CPU = torch.device("cpu")
PLAIN = Kind(torch.float32, 16, 16, relations=False, mask=False, dropout=False, tf32=False)
DROPOUT = PLAIN._replace(dtype=torch.bfloat16, dropout=True)
REL_QUERY = PLAIN._replace(rel_dim=32)
POS_QUERY = PLAIN._replace(pos_query=True)
CHUNKS = PLAIN._replace(window=True, chunks=True)
OUT_OF_SHARED_MEMORY = OutOfResources(9, 5, "shared memory")


@pytest.fixture(autouse=True)
def _fresh_process(monkeypatch):
    """A device that `auto` takes for a GPU, and no results of earlier self-tests."""
    monkeypatch.setattr(backends, "on_gpu", lambda device: True)
    monkeypatch.setattr(selftest, "RESULTS", {})
    monkeypatch.setattr(availability, "COMPILE_ERRORS", {})
    monkeypatch.setattr(selftest, "INTERPRETER_CASES", ((19, 17, 2, False), (17, 17, 3, True)))
    patch_language_once(monkeypatch)


@pytest.fixture
def tested(monkeypatch):
    """A self-test that passes at once; the list of the kinds that it was run for."""
    kinds = []
    monkeypatch.setattr(selftest, "first_failure", lambda device, kind: (time.sleep(0.05), kinds.append(kind))[1])
    return kinds


def make_call(n=40, k=2, **changes) -> Call:
    """Return a call for which the kernels need less memory than dense."""
    tensors = {name: torch.zeros(1, 1, n, 16, requires_grad=True) for name in ("query", "key", "value")}
    tensors |= dict.fromkeys(("rel_key", "rel_value"), torch.zeros(2 * k + 1, 16))
    return Call(**{**tensors, "left": k, "right": k, "scale": 0.25, **changes})


def make_half_call(**changes) -> Call:
    tensors = {name: x.bfloat16() for name, x in make_call()._asdict().items() if isinstance(x, torch.Tensor)}
    return make_call(**tensors, **changes)


def chosen(call=None) -> str:
    return backends.choose("auto", make_call() if call is None else call).__name__.rpartition(".")[2]


@pytest.mark.parametrize(
    "kind",
    [
        PLAIN._replace(mask=True),
        CHUNKS,
        REL_QUERY._replace(relations=True, dropout=True),
        POS_QUERY._replace(window=True, dropout=True),
    ],
    ids=str,
)
def test_correct_kernels_pass(kind):
    assert selftest.run(CPU, kind) is None


def on_output(change):
    return lambda kernels, *arguments: (change((results := kernels(*arguments))[0]), *results[1:])


def on_call(change):
    return lambda kernels, *arguments: kernels(*change(Call(*arguments)))


def out_of_memory(kernels, *arguments):
    raise torch.OutOfMemoryError("CUDA out of memory.\nmore")


wrong_gradient = on_output(lambda z: 2 * z - z.detach())
FAULTS = {
    "noise": (PLAIN, on_output(lambda z: z + 1e-3 * torch.arange(z.numel()).view(z.shape).sin()), "output is off by"),
    "gradient": (PLAIN, wrong_gradient, "gradient of query is off by"),
    "nan": (PLAIN, on_output(lambda z: z + 0 * (z - z.detach()).sqrt()), "gradient of query is off by nan"),
    "rel_query": (REL_QUERY, on_call(lambda call: call._replace(rel_query=0 * call.rel_query)), "output is off by"),
    "pos_query": (POS_QUERY, on_call(lambda call: call._replace(pos_query=0 * call.pos_query)), "output is off by"),
    "dropout": (DROPOUT, on_call(lambda call: call._replace(dropout_p=0.0)), "keep 1.000 of the pairs under dropout"),
    "memory": (PLAIN, out_of_memory, r"could not be tested: OutOfMemoryError: CUDA out of memory\.\. "),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_wrong_kernels_are_refused_with_one_warning(monkeypatch, fault):
    (kind, change, failure), kernels = FAULTS[fault], operators.attention
    monkeypatch.setattr(operators, "attention", lambda *arguments: change(kernels, *arguments))
    call = make_half_call(dropout_p=0.1) if kind.dropout else make_call()
    if kind.rel_dim:
        call = call._replace(rel_query=torch.zeros(1, 1, 40, 32), rel_key=torch.zeros(5, 32))
    if kind.pos_query:
        call = call._replace(pos_query=torch.zeros(5, 16))
    with pytest.warns(RuntimeWarning, match=failure) as warned:
        assert [chosen(call), chosen(call)] == ["dense", "dense"]
    assert len(warned) == 1


def test_each_kind_is_tested_once(monkeypatch, tested):
    pairs = torch.zeros(1, 1, 40, 40)
    calls = [
        (make_call(), PLAIN),
        (make_call(n=99), PLAIN),
        (make_call(dropout_p=0.1), PLAIN._replace(dropout=True)),
        (make_call(mask=pairs.bool()), PLAIN._replace(mask=True)),
        (make_half_call(), PLAIN._replace(dtype=torch.bfloat16)),
        (make_call(relations=pairs.long()), PLAIN._replace(relations=True)),
        (make_call(value=torch.zeros(1, 1, 40, 33), rel_value=None), PLAIN._replace(value_dim=64)),
        (make_call(rel_query=torch.zeros(1, 1, 40, 17), rel_key=torch.zeros(5, 17)), REL_QUERY),
        (make_call(pos_query=torch.zeros(5, 16)), POS_QUERY),
        (make_call(window_left=2), PLAIN._replace(window=True)),
        (make_call(window_left=2, chunk=3), CHUNKS),
    ]
    with ThreadPoolExecutor(4) as threads:  # which share a self-test
        assert list(threads.map(chosen, [make_call()] * 4)) == ["triton"] * 4
    assert [chosen(call) for call, _ in calls * 2] == ["triton"] * 22
    assert tested == [kind for _, kind in calls[1:]]
    monkeypatch.setattr(availability, "tensor_floats", lambda: True)
    assert chosen() == "triton"
    assert tested[-1] == PLAIN._replace(tf32=True)


def test_modes_of_the_caller_do_not_matter():
    """The self-test passes whatever modes the caller has set, and leaves them and the random state unchanged."""

    def never(x):
        raise AssertionError("the caller's hook was called")

    torch.manual_seed(7)
    before = torch.get_rng_state()
    call = make_half_call(dropout_p=0.1)
    torch.set_default_dtype(torch.float64)
    try:
        with (
            torch.inference_mode(),
            torch.autocast("cpu", torch.bfloat16),
            torch.device("meta"),
            torch.autograd.graph.saved_tensors_hooks(never, never),
        ):
            assert chosen(call) == "triton"
            assert torch.is_inference_mode_enabled()
            assert torch.is_autocast_enabled("cpu")
            assert torch.empty(0).device.type == "meta"
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("place", ["capture", "compilation", "backward"])
def test_no_selftest_in_a_capture_a_compilation_or_a_backward_pass(monkeypatch, tested, place):
    names = []

    def choose_twice(_=None):
        names.append(chosen())
        selftest.RESULTS[availability.chip(CPU), PLAIN] = None
        names.append(chosen())

    if place == "capture":
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
        choose_twice()
    elif place == "compilation":
        monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
        choose_twice()
    else:
        x = torch.zeros(1, requires_grad=True)
        x.register_hook(choose_twice)
        x.sum().backward()
    assert names == ["dense", "triton"]
    assert tested == []


class Kernel(dict):
    """A kernel whose launch raises."""

    __name__ = "forward"

    def __missing__(self, grid):
        return Mock(side_effect=OUT_OF_SHARED_MEMORY)


def test_kernels_that_do_not_compile_are_refused_with_the_reason(monkeypatch):
    inputs = *torch.randn(3, 1, 1, 40, 16), *torch.randn(2, 5, 16)
    with monkeypatch.context() as patch:
        patch.setattr(operators, "forward", Kernel())
        with pytest.warns(RuntimeWarning, match="could not be compiled for cpu") as warned:
            assert [chosen(), chosen()] == ["dense", "dense"]
        assert len(warned) == 1
    with pytest.raises(ValueError, match=r"triton .*: could not be compiled") as refused:
        relative_attention(*inputs, clip=2, backend="triton")
    assert f"OutOfResources: {OUT_OF_SHARED_MEMORY} (forward)" in str(refused.value)
    mask = torch.ones(40, 40, dtype=torch.bool)  # kernels of another kind
    assert relative_attention(*inputs, clip=2, backend="triton", mask=mask).isfinite().all()


def test_kernels_that_do_not_compile_after_the_selftest_raise_once(monkeypatch, tested):
    monkeypatch.setattr(operators, "backward_query", Kernel())
    with pytest.raises(availability.NotCompiledError, match=r"^triton: could not be compiled"):
        relative_attention(*torch.randn(3, 1, 1, 40, 16).requires_grad_(), *torch.randn(2, 5, 16)).sum().backward()
    assert chosen() == "dense"


def test_compiler_errors_become_one_line(tmp_path):
    def compile_nonsense():
        (tmp_path / "kernel.ttir").write_text("no such language")
        compiler.compile(str(tmp_path / "kernel.ttir"), target=GPUTarget("cuda", 90, 32))

    def raise_from_cause():
        raise CompilationError("source", None, None) from CompilationError("def f(): pass", None, "a reason\nmore")

    def fail_at_run_time():
        raise RuntimeError("Triton Error [CUDA]")

    with pytest.raises(RuntimeError, match=r"^Triton Error \[CUDA\]$"), availability.compiling(Kernel(), make_call()):
        fail_at_run_time()
    assert triton.unavailable_reason(make_call()) is None
    for launch, fact in ((compile_nonsense, "RuntimeError: "), (raise_from_cause, "a reason (forward)")):
        with pytest.raises(availability.NotCompiledError) as raised, availability.compiling(Kernel(), make_call()):
            launch()
        assert fact in str(raised.value)
        assert "\n" not in str(raised.value)
        assert triton.unavailable_reason(make_call()) == str(raised.value).removeprefix("triton: ")


def test_the_command_reports_every_kind(monkeypatch, capsys):
    for failure, code in (None, 0), ("disagreed with the reference", 1):
        monkeypatch.setattr(selftest, "first_failure", lambda device, kind, it=failure: it if kind.dropout else None)
        assert main(["--dtypes", "bfloat16", "--dims", "16", "9"]) == code
        printed = dict(line.split(": ", 1) for line in capsys.readouterr().out.splitlines())
        assert list(printed)[:5] == ["chip", "Triton", "torch", "relattn", "Python"]
        assert list(printed.values())[5:] == ["passed", failure or "passed"] * 7
    monkeypatch.setattr(triton, "CAPABILITIES", triton.CAPABILITIES.__class__(devices=("cuda",)))
    assert main(["--device", "cpu"]) == 2
    assert "no GPU that PyTorch can use" in capsys.readouterr().err
