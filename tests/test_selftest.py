"""`auto` on a GPU: it takes the Triton kernels that pass their self-test. Triton's interpreter replaces the GPU."""

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import triton as compiler
from torch._dynamo.backends.debugging import aot_eager
from triton.backends.compiler import GPUTarget
from triton.compiler.errors import CompilationError
from triton.runtime.errors import OutOfResources

from relattn import backends, relative_attention
from relattn.backends import triton
from relattn.backends.triton import availability, operators, selftest
from relattn.backends.triton.__main__ import main
from relattn.backends.triton.availability import Kind
from relattn.call import Call

CPU = torch.device("cpu")
PLAIN = Kind(torch.float32, 16, 16, relations=False, mask=False, dropout=False, tf32=False)
MIXED = PLAIN._replace(dtype=torch.bfloat16, relations=True, mask=True)
DROPOUT = PLAIN._replace(dtype=torch.bfloat16, dropout=True)
REL_QUERY = PLAIN._replace(rel_dim=32)


@pytest.fixture(autouse=True)
def _fresh_process(monkeypatch):
    """A device that `auto` takes for a GPU, and no results of earlier self-tests."""
    monkeypatch.setattr(backends, "on_gpu", lambda device: True)
    monkeypatch.setattr(selftest, "RESULTS", {})
    monkeypatch.setattr(availability, "COMPILE_ERRORS", {})


@pytest.fixture
def tested(monkeypatch):
    """A self-test that passes at once; gives the kinds that it was run for."""
    kinds = []
    monkeypatch.setattr(selftest, "first_failure", lambda device, kind: (time.sleep(0.05), kinds.append(kind))[1])
    return kinds


def make_call(n=40, k=2, **changes) -> Call:
    """A call for which the kernels need less memory than dense."""
    tensors = {name: torch.zeros(1, 1, n, 16, requires_grad=True) for name in ("query", "key", "value")}
    tensors |= dict.fromkeys(("rel_key", "rel_value"), torch.zeros(2 * k + 1, 16))
    return Call(**{**tensors, "left": k, "right": k, "scale": 0.25, **changes})


def tensors_of(call):
    return {name: x for name, x in call._asdict().items() if isinstance(x, torch.Tensor)}


def chosen(call=None) -> str:
    return backends.choose("auto", make_call() if call is None else call).__name__.rpartition(".")[2]


def inputs(n=40):
    generator = torch.Generator().manual_seed(0)
    return *torch.randn(3, 1, 1, n, 16, generator=generator), *torch.randn(2, 5, 16, generator=generator)


def attend(*tensors, **options):
    return relative_attention(*tensors, clip=2, **options)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("kind", [PLAIN, MIXED, MIXED._replace(dropout=True), REL_QUERY, DROPOUT], ids=str)
def test_the_kernels_pass(kind):
    assert selftest.run(CPU, kind) is None


def on_output(change):
    return lambda kernels, *arguments: (change((results := kernels(*arguments))[0]), *results[1:])


def on_call(change):
    return lambda kernels, *arguments: kernels(*change(Call(*arguments)))


def out_of_memory(kernels, *arguments):
    raise torch.OutOfMemoryError("CUDA out of memory.\nmore")


noisy = on_output(lambda z: z + 1e-3 * torch.randn(z.shape, generator=torch.Generator().manual_seed(0)))
wrong_gradient = on_output(lambda z: 2 * z - z.detach())
nan_in_gradient = on_output(lambda z: z + 0 * (z - z.detach()).sqrt())
without_rel_query = on_call(lambda call: call._replace(rel_query=0 * call.rel_query))
without_dropout = on_call(lambda call: call._replace(dropout_p=0.0))


@pytest.mark.parametrize(
    ("kind", "change", "failure"),
    [
        (PLAIN, noisy, "output is off by"),
        (PLAIN, wrong_gradient, "gradient of query is off by"),
        (PLAIN, nan_in_gradient, "gradient of query is off by nan"),
        (DROPOUT, wrong_gradient, "gradient of query is off by"),
        (REL_QUERY, without_rel_query, "output is off by"),
        (REL_QUERY._replace(dropout=True), without_rel_query, "output is off by"),
        (DROPOUT, without_dropout, "keep 1.000 of the pairs under dropout, expected 0.700"),
        (PLAIN, out_of_memory, r"could not be tested: OutOfMemoryError: CUDA out of memory\.\. `auto` uses dense"),
    ],
)
def test_broken_kernels_are_refused_with_one_warning(monkeypatch, kind, change, failure):
    kernels = operators.attention
    monkeypatch.setattr(operators, "attention", lambda *arguments: change(kernels, *arguments))
    tensors = {name: x.to(kind.dtype) for name, x in tensors_of(make_call()).items()}
    if kind.rel_dim:
        tensors |= {"rel_query": torch.zeros(1, 1, 40, 32), "rel_key": torch.zeros(5, 32)}
    call = make_call(**tensors, dropout_p=0.1 * kind.dropout)
    with pytest.warns(RuntimeWarning, match=failure) as warned:
        assert [chosen(call), chosen(call)] == ["dense", "dense"]
    assert len(warned) == 1
    assert relative_attention(*inputs(), clip=2, backend="dense").shape == (1, 1, 40, 16)


def test_each_kind_is_tested_once(monkeypatch, tested):
    half = {name: x.bfloat16() for name, x in tensors_of(make_call()).items()}
    pairs = torch.zeros(1, 1, 40, 40)
    calls = [
        (make_call(), PLAIN),
        (make_call(n=99), PLAIN),
        (make_call(dropout_p=0.1), PLAIN._replace(dropout=True)),
        (make_call(mask=pairs.bool()), PLAIN._replace(mask=True)),
        (make_call(**half), PLAIN._replace(dtype=torch.bfloat16)),
        (make_call(relations=pairs.long()), PLAIN._replace(relations=True)),
        (make_call(value=torch.zeros(1, 1, 40, 33), rel_value=None), PLAIN._replace(value_dim=64)),
        (make_call(rel_query=torch.zeros(1, 1, 40, 17), rel_key=torch.zeros(5, 17)), REL_QUERY),
    ]
    assert [chosen(call) for call, _ in calls * 2] == ["triton"] * 16
    assert tested == [kind for _, kind in calls[1:]]
    monkeypatch.setattr(availability, "tensor_floats", lambda: True)
    assert chosen() == "triton"
    assert tested[-1] == PLAIN._replace(tf32=True)


def test_threads_share_a_selftest(tested):
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(lambda _: chosen(), range(4))) == ["triton"] * 4
    assert tested == [PLAIN]


@pytest.mark.whole
def test_the_callers_modes_do_not_matter():
    """The self-test passes whatever modes the caller has set, and leaves them and the random state unchanged."""

    def never(x):
        raise AssertionError("the caller's hook was called")

    torch.manual_seed(7)
    before = torch.get_rng_state()
    half = {name: x.bfloat16() for name, x in tensors_of(make_call()).items()}
    torch.set_default_dtype(torch.float64)
    try:
        with (
            torch.inference_mode(),
            torch.autocast("cpu", torch.bfloat16),
            torch.device("meta"),
            torch.autograd.graph.saved_tensors_hooks(never, never),
        ):
            assert [chosen(make_call(**half, dropout_p=p)) for p in (0.0, 0.1)] == ["triton", "triton"]
            assert torch.is_inference_mode_enabled()
            assert torch.is_autocast_enabled("cpu")
            assert torch.empty(0).device.type == "meta"
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("place", ["capture", "backward"])
def test_no_selftest_in_a_capture_or_a_backward_pass(monkeypatch, tested, place):
    found = []

    def choose_twice(_=None):
        found.append(chosen())
        selftest.RESULTS[availability.chip(CPU), PLAIN] = None
        found.append(chosen())

    if place == "capture":
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
        choose_twice()
    else:
        x = torch.zeros(1, requires_grad=True)
        x.register_hook(choose_twice)
        x.sum().backward()
    assert found == ["dense", "triton"]
    assert tested == []


@pytest.mark.whole
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # PyTorch's own, from dense
def test_compiled_calls_use_a_known_result(tested):
    def operators_in_graph():
        names = set()

        def compile_graph(graph, inputs):
            names.update(str(node.target) for node in graph.graph.nodes)
            return aot_eager(graph, inputs)

        torch.compiler.reset()
        run = torch.compile(attend, fullgraph=True, backend=compile_graph, dynamic=True)
        assert (run(*inputs()) - attend(*inputs(), backend="dense")).abs().max() < 1e-5
        return [name for name in names if "relattn" in name]

    key = availability.chip(CPU), PLAIN
    assert operators_in_graph() == []
    selftest.RESULTS[key] = None
    assert operators_in_graph() == ["relattn.triton.default"]
    selftest.RESULTS[key] = "disagreed"
    assert operators_in_graph() == []
    assert tested == []


class Kernel:
    """A kernel whose launch raises."""

    __name__ = "forward"

    def __init__(self, error):
        self.error = error

    def __getitem__(self, grid):
        def launch(**arguments):
            raise self.error

        return launch


def test_a_kernel_that_does_not_compile_is_refused_with_the_reason(monkeypatch):
    error = OutOfResources(9, 5, "shared memory")
    with monkeypatch.context() as patch:
        patch.setattr(operators, "forward", Kernel(error))
        with pytest.warns(RuntimeWarning, match="the Triton kernels could not be compiled for cpu") as warned:
            assert [chosen(), chosen()] == ["dense", "dense"]
        assert len(warned) == 1
    with pytest.raises(ValueError, match="no backend supports this call: triton: could not be compiled") as refused:
        attend(*inputs(), backend="triton")
    assert str(refused.value).endswith(f"Triton {compiler.__version__}: OutOfResources: {error} (forward)")
    assert (
        attend(*inputs(), backend="triton", mask=torch.ones(40, 40, dtype=torch.bool)).isfinite().all()
    )  # another kind


def test_a_kernel_that_does_not_compile_after_the_selftest_raises_once(monkeypatch, tested):
    monkeypatch.setattr(operators, "backward_query", Kernel(OutOfResources(9, 5, "shared memory")))
    with pytest.raises(availability.NotCompiledError, match=r"^triton: could not be compiled"):
        attend(inputs()[0].requires_grad_(), *inputs()[1:]).sum().backward()
    assert chosen() == "dense"


def compile_nonsense(path):
    path.write_text("no such language")
    compiler.compile(str(path), target=GPUTarget("cuda", 90, 32))


def raise_from_cause(path):
    raise CompilationError("source", None, None) from CompilationError("def f(): pass", None, "a reason\nmore")


@pytest.mark.parametrize(
    ("launch", "words"),
    [(compile_nonsense, "RuntimeError: "), (raise_from_cause, "CompilationError: a reason (forward)")],
)
def test_compiler_errors_become_one_line(tmp_path, launch, words):
    with pytest.raises(availability.NotCompiledError) as raised, availability.compiling(Kernel(None), make_call()):
        launch(tmp_path / "kernel.ttir")
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)
    assert triton.unavailable_reason(make_call()) == str(raised.value).removeprefix("triton: ")


@pytest.mark.parametrize("error", [RuntimeError("Triton Error [CUDA]"), torch.OutOfMemoryError()], ids=repr)
def test_other_errors_are_unchanged(error):
    with pytest.raises(type(error)) as raised, availability.compiling(Kernel(None), make_call()):
        raise error
    assert raised.value is error
    assert triton.unavailable_reason(make_call()) is None


@pytest.mark.parametrize("failure", [None, "disagreed with the reference"])
def test_the_command_reports_every_kind(monkeypatch, capsys, failure):
    monkeypatch.setattr(selftest, "first_failure", lambda device, kind: failure if kind.dropout else None)
    assert main(["--dtypes", "bfloat16", "--dims", "16", "9"]) == (0 if failure is None else 1)
    printed = dict(line.split(": ", 1) for line in capsys.readouterr().out.splitlines())
    assert list(printed)[:5] == ["chip", "Triton", "torch", "relattn", "Python"]
    assert printed["torch"] == torch.__version__
    assert list(printed.values())[5:] == ["passed", failure or "passed"] * 4


@pytest.mark.whole
def test_the_command_needs_a_gpu():
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "relattn.backends.triton", "--device", "cpu"]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 2
    assert run.stderr.startswith("the kernels cannot run: no GPU that PyTorch can use")
