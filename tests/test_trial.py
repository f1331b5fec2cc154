"""`auto` on a GPU: kernels are tried once for a kind of call, and trusted or not. Triton's interpreter stands in."""

import json
import logging
import multiprocessing
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import torch
import triton as compiler
from torch._dynamo.backends.debugging import aot_eager
from triton.backends.compiler import GPUTarget
from triton.compiler.errors import CompilationError
from triton.runtime.errors import OutOfResources, PTXASError

from relattn import backends, relative_attention
from relattn.backends import dense, triton
from relattn.backends.triton import failures, kinds, operators, trial, trust, verdicts
from relattn.backends.triton.__main__ import main
from relattn.backends.triton.kinds import Kind
from relattn.backends.triton.numbers import LEFT_NUMBERS, NUMBERS
from relattn.backends.triton.verdicts import Verdict
from relattn.call import Call

CPU = torch.device("cpu")
PLAIN = Kind(torch.float32, 16, 16, relations=False, mask=False, dropout=False, tf32=False)
MIXED = Kind(torch.bfloat16, 16, 16, relations=True, mask=True, dropout=False, tf32=False)
DROPPING = PLAIN._replace(dtype=torch.bfloat16, dropout=True)
ASKING = PLAIN._replace(rel_dim=32)  # of a rel_query
GOOD, BAD = Verdict(True, "agreed"), Verdict(False, "disagreed with the equations: output off by 1.0, allowed 0.1")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """A GPU to `auto`, no verdict in this process nor on disk; gives the file that is to hold them."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(backends, "on_gpu", lambda device: True)
    forget(monkeypatch)
    return tmp_path / "relattn" / "triton.json"


def forget(monkeypatch):
    monkeypatch.setattr(verdicts, "REMEMBERED", {})
    monkeypatch.setattr(failures, "REASONS", {})
    monkeypatch.setattr(trust, "WARNED", set())


@pytest.fixture
def trials(monkeypatch):
    """Trials that find nothing wrong, in no time; gives the kinds tried."""
    found = []

    def agreed(device, kind):
        found.append(kind)
        verdicts.record(device, kind, GOOD)
        return GOOD

    monkeypatch.setattr(trust, "trial", agreed)
    return found


def call(n=40, k=2, **changes):
    """A call that takes the kernels as far as memory goes."""
    tensors = {
        name: torch.zeros(1, 1, n, 16, dtype=torch.float32, requires_grad=True) for name in ("query", "key", "value")
    }
    tensors |= dict.fromkeys(("rel_key", "rel_value"), torch.zeros(2 * k + 1, 16, dtype=torch.float32))
    return Call(**{**tensors, "left": k, "right": k, "scale": 0.25, **changes})


def tensors_of(of):
    return {name: x for name, x in of._asdict().items() if isinstance(x, torch.Tensor)}


def taken(of=None):
    return backends.choose("auto", call() if of is None else of).__name__.rpartition(".")[2]


def inputs(n=40):
    generator = torch.Generator().manual_seed(0)
    return *torch.randn(3, 1, 1, n, 16, generator=generator), *torch.randn(2, 5, 16, generator=generator)


def attend(query, key, value, rel_key, rel_value, backend="auto", **options):
    return relative_attention(query, key, value, rel_key, rel_value, clip=2, backend=backend, **options)


# what a trial finds


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    "kind", [PLAIN, MIXED, MIXED._replace(dropout=True), ASKING, ASKING._replace(dropout=True)], ids=str
)
def test_kernels_agree(cache, kind):
    verdict = trial.trial(CPU, kind)
    assert verdict.agreed, verdict.words
    (of_setting,) = json.loads(cache.read_text()).values()
    assert of_setting == {str(kind): verdict._asdict()}


def noisy(kernels, *arguments):
    output, *rest = kernels(*arguments)
    return output + 1e-3 * torch.randn(output.shape, generator=torch.Generator().manual_seed(0)), *rest


def steep(kernels, *arguments):
    """Forward as it should be, and a gradient that is not."""
    output, *rest = kernels(*arguments)
    return 2 * output - output.detach(), *rest


def unasked(kernels, *arguments):
    call = Call(*arguments)
    return kernels(*call._replace(rel_query=0 * call.rel_query))


def undropped(kernels, *arguments):
    return kernels(*Call(*arguments)._replace(dropout_p=0.0))


@pytest.mark.whole
@pytest.mark.parametrize(
    ("kind", "change", "words"),
    [
        (PLAIN, noisy, "output off by"),
        (PLAIN, steep, "d query off by"),
        (DROPPING, steep, "d query off by"),
        (ASKING, unasked, "output off by"),
        (ASKING._replace(dropout=True), unasked, "output off by"),
        (DROPPING, undropped, "dropout keeps 1.000 of the pairs, and should keep 0.700"),
    ],
)
def test_kernels_that_are_wrong_are_found_out(monkeypatch, kind, change, words):
    monkeypatch.setattr(operators, "attention", partial(change, operators.attention))
    verdict = trial.trial(CPU, kind)
    assert not verdict.agreed
    assert verdict.words.startswith("disagreed with the equations: ")
    assert words in verdict.words


def test_other_trouble_is_told_and_not_recorded(cache, monkeypatch):
    def full(*arguments):
        raise torch.OutOfMemoryError("CUDA out of memory.\nmore")

    monkeypatch.setattr(operators, "attention", full)
    with pytest.warns(RuntimeWarning, match=r"could not be tried: OutOfMemoryError: CUDA out of memory\.\. `auto`"):
        assert taken() == "dense"
    assert verdicts.found(CPU, PLAIN) is not None
    assert not cache.exists()


# what `auto` makes of it


def test_auto_tries_a_kind_once(monkeypatch, trials):
    assert [taken(), taken(), taken(call(n=99))] == ["triton"] * 3
    assert trials == [PLAIN]
    half = {name: x.bfloat16() for name, x in tensors_of(call()).items()}
    others = [call(dropout_p=0.1), call(mask=torch.ones(1, 1, 40, 40, dtype=torch.bool)), call(**half)]
    relations = torch.zeros(1, 1, 40, 40, dtype=torch.int64)
    others.append(call(relations=relations))
    others.append(call(value=torch.zeros(1, 1, 40, 33), rel_value=None))
    others += [call(rel_query=torch.zeros(1, 1, 40, dim), rel_key=torch.zeros(5, dim)) for dim in (1, 16, 17)]
    assert [taken(of) for of in others * 2] == ["triton"] * 16
    monkeypatch.setattr(kinds, "tensor_floats", lambda: True)
    assert taken() == "triton"
    assert trials == [
        PLAIN,
        PLAIN._replace(dropout=True),
        PLAIN._replace(mask=True),
        PLAIN._replace(dtype=torch.bfloat16),
        PLAIN._replace(relations=True),
        PLAIN._replace(value_dim=64),
        PLAIN._replace(rel_dim=16),
        PLAIN._replace(rel_dim=32),
        PLAIN._replace(tf32=True),
    ]


def test_a_kind_that_disagreed_takes_dense_and_warns_once(cache, monkeypatch):
    monkeypatch.setattr(operators, "attention", partial(noisy, operators.attention))
    told = (
        r"positions on cpu in Triton's interpreter: the Triton kernels disagreed .* `python -m relattn.backends.triton`"
    )
    with pytest.warns(RuntimeWarning, match=told) as warned:
        assert [taken(), taken()] == ["dense", "dense"]
    assert len(warned) == 1
    assert torch.equal(attend(*inputs()), attend(*inputs(), backend="dense"))
    assert attend(*inputs(), backend="triton").shape == (1, 1, 40, 16)  # a name is obeyed
    forget(monkeypatch)
    monkeypatch.setattr(trust, "trial", None)
    with pytest.warns(RuntimeWarning, match=told) as warned:  # in the next process
        assert [taken(), taken()] == ["dense", "dense"]
    assert len(warned) == 1


@pytest.mark.whole
def test_the_trial_disturbs_nothing(monkeypatch):
    """Whatever a caller has set, the trial comes to the same, and the caller finds it as it was."""

    def never(x):
        raise AssertionError("a hook of the caller's")

    torch.manual_seed(7)
    before = torch.get_rng_state()
    torch.set_default_dtype(torch.float64)
    try:
        with (
            torch.inference_mode(),
            torch.autocast("cpu", torch.bfloat16),
            torch.device("meta"),
            torch.autograd.graph.saved_tensors_hooks(never, never),
        ):
            state = torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu")
            with torch.device("cpu"):
                half = {name: x.bfloat16() for name, x in tensors_of(call()).items()}
            assert [taken(call(**half, dropout_p=p)) for p in (0.0, 0.1)] == ["triton", "triton"]
            assert state == (
                torch.is_grad_enabled(),
                torch.is_inference_mode_enabled(),
                torch.is_autocast_enabled("cpu"),
            )
            assert torch.empty(0).device.type == "meta"
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("where", ["capture", "backward"])
def test_no_trial_in_a_capture_or_a_backward_pass(monkeypatch, trials, where):
    found = []

    def twice(_=None):
        found.append(taken())
        verdicts.record(CPU, PLAIN, GOOD)
        found.append(taken())

    if where == "capture":
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
        twice()
    else:
        x = torch.zeros(1, requires_grad=True)
        x.register_hook(twice)
        x.sum().backward()
    assert found == ["dense", "triton"]
    assert trials == []


@pytest.mark.whole
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # PyTorch's own, of dense
def test_no_trial_while_compiling(trials):
    def operators_in_graph():
        names = set()

        def compile_graph(graph, inputs):
            names.update(str(node.target) for node in graph.graph.nodes)
            return aot_eager(graph, inputs)

        torch.compiler.reset()
        run = torch.compile(attend, fullgraph=True, backend=compile_graph, dynamic=True)
        got, want = run(*inputs()), attend(*inputs(), backend="dense")
        assert (got - want).abs().max() < 1e-5
        return [name for name in names if "relattn" in name]

    assert operators_in_graph() == []
    verdicts.record(CPU, PLAIN, GOOD)
    assert operators_in_graph() == ["relattn.triton.default"]
    verdicts.record(CPU, PLAIN, BAD)
    with pytest.warns(RuntimeWarning, match="output off by 1.0") as warned:
        assert operators_in_graph() == []
    assert len(warned) == 1
    assert trials == []


def test_export_takes_dense(trials):
    class Attend(torch.nn.Module):
        def forward(self, x):
            return relative_attention(x, 2 * x, 3 * x, clip=2)

    verdicts.record(CPU, PLAIN, GOOD)
    program = torch.export.export(Attend(), (torch.zeros(1, 1, 40, 16),))
    assert "relattn" not in str(program.graph)
    assert trials == []


def test_threads_share_a_trial(monkeypatch, trials):
    tried = trust.trial
    monkeypatch.setattr(trust, "trial", lambda *given: (time.sleep(0.2), tried(*given))[1])
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(lambda _: taken(), range(4))) == ["triton"] * 4
    assert trials == [PLAIN]


def test_a_trial_that_takes_long_is_announced(monkeypatch, trials, caplog):
    tried = trust.trial
    monkeypatch.setattr(trust, "trial", lambda *given: (time.sleep(0.2), tried(*given))[1])
    with caplog.at_level(logging.WARNING, logger="relattn"):
        assert taken() == "triton"
        assert caplog.messages == []
        forget(monkeypatch)
        os.unlink(verdicts.file())
        monkeypatch.setattr(trust, "SLOW", 0.05)
        assert taken() == "triton"
    assert caplog.messages == [
        "relattn compiles the Triton kernels for float32, dim 16, value_dim 16, positions and checks them against the "
        "equations, on cpu in Triton's interpreter and this once"
    ]


def test_dense_is_taken_where_it_needs_less_memory(trials):
    """Its arrays of pairs are what PyTorch saves for its backward pass beside the inputs; the output is none of it."""
    for n, dtype in ((8, torch.float32), (64, torch.bfloat16), (200, torch.float32)):
        of = call(n, dropout_p=0.5)
        tensors = {name: x.to(dtype).detach() for name, x in tensors_of(of).items()}
        tensors["query"].requires_grad_()
        of = of._replace(**tensors)
        saved = {}

        def pack(x, saved=saved):
            saved[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
            return x

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
            output, _ = dense.attend(of, False)
        given = {x.untyped_storage().data_ptr() for x in tensors.values()}
        arrays = sum(size for where, size in saved.items() if where not in given)
        assert output.untyped_storage().data_ptr() not in saved
        assert arrays == backends.bytes_of_dense(of)
    lengths = [n for n in range(8, 200, 8) if taken(call(n)) == "dense"]
    assert lengths == list(range(8, lengths[-1] + 8, 8))  # up to some length, and from there on no more
    assert (
        taken(call(8, query=torch.zeros(1, 1, 8, 16), key=torch.zeros(1, 1, 8, 16), value=torch.zeros(1, 1, 8, 16)))
        == "triton"
    )


def test_numbers_of_a_query_are_what_triton_saves():
    of, saved = call(64), {}  # backward makes `LEFT_NUMBERS` more

    def pack(x):
        saved[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        output, _ = triton.attend(of, False)
    given = {x.untyped_storage().data_ptr() for x in (*tensors_of(of).values(), output)}
    numbers = sum(size for where, size in saved.items() if where not in given)
    assert numbers == 4 * 64 * (1 + NUMBERS.value)  # and the log-sum-exp
    assert 1 + NUMBERS.value + LEFT_NUMBERS == backends.NUMBERS


@pytest.mark.parametrize("k", [16, 999])
def test_bytes_of_triton_are_those_of_the_parts_of_the_tables_gradients(k):
    """About: blocks are taken to have 64 queries. A block has room for the labels it reaches, not for all of 1,999."""
    of, parts = call(1000, k), {}

    def launch(kernel, *_, **arguments):
        parts.update({name: arguments[name].data for name in ("d_rel_key", "d_rel_value") if name in arguments})

    results = operators.run_forward(of, launch)
    operators.run_backward(of, results[0], *results, launch)
    had = 4 * sum(part.numel() for part in parts.values())
    assert backends.bytes_of_triton(of) - 4 * 1000 * backends.NUMBERS == pytest.approx(had, rel=0.1)


# what is recorded on disk


def test_a_verdict_is_read_by_other_processes(cache, monkeypatch, trials):
    assert taken() == "triton"
    monkeypatch.setattr(trust, "trial", None)
    forget(monkeypatch)
    assert taken() == "triton"
    os.rename(cache, f"{cache}.bak")
    assert taken() == "triton"  # read once
    os.rename(f"{cache}.bak", cache)
    forget(monkeypatch)
    monkeypatch.setattr(verdicts, "setting", lambda device: "another driver")
    with pytest.raises(TypeError, match="NoneType"):  # a trial
        taken()


DAMAGED = [b"", b"{", b"\xff\xfe", b"[" * 100_000, b"[]", b"null"]
STRANGE = [[1], {str(PLAIN): None}, {str(PLAIN): {"agreed": "yes", "words": ""}}, {str(PLAIN): {"agreed": True}}]


@pytest.mark.parametrize("content", DAMAGED + STRANGE, ids=range(10))
def test_a_damaged_file_is_no_verdict(cache, monkeypatch, trials, content):
    if not isinstance(content, bytes):
        content = json.dumps({verdicts.setting(CPU): content}).encode()
    cache.parent.mkdir()
    cache.write_bytes(content)
    assert [taken(), taken()] == ["triton", "triton"]
    assert trials == [PLAIN]
    forget(monkeypatch)
    assert verdicts.found(CPU, PLAIN) == GOOD


@pytest.mark.parametrize("place", ["a file", "no home", "full disk"])
def test_without_a_place_to_record_it_a_process_remembers_a_verdict(cache, monkeypatch, trials, place):
    monkeypatch.chdir(cache.parent.parent)
    if place == "a file":
        cache.parent.write_text("no folder")
    elif place == "no home":
        monkeypatch.delenv("XDG_CACHE_HOME")
        monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    else:

        def full(*_):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "replace", full)
    assert [taken(), taken()] == ["triton", "triton"]
    assert trials == [PLAIN]
    left = sorted(path.name for path in cache.parent.parent.rglob("*"))
    assert left == ([] if place == "no home" else ["relattn"])


def test_processes_may_write_at_once(cache):
    """A reader finds a whole file at any time, and nothing is left beside it."""

    def record(number):
        for turn in range(100):
            verdicts.record(CPU, PLAIN._replace(dim=16 * number), GOOD._replace(words=f"{turn} " * 1000))

    fork = multiprocessing.get_context("fork")
    verdicts.record(CPU, PLAIN, GOOD)
    writers = [fork.Process(target=record, args=(number,)) for number in (2, 4)]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        (of_setting,) = json.loads(cache.read_text()).values()
        assert of_setting[str(PLAIN)] == GOOD._asdict()
    assert [writer.exitcode for writer in writers] == [0, 0]
    assert list(cache.parent.iterdir()) == [cache]


# kernels that the compiler gives up on


class Kernel:
    """One whose launch raises."""

    __name__ = "forward"

    def __init__(self, error):
        self.error = error

    def __getitem__(self, grid):
        def launch(**arguments):
            raise self.error

        return launch


def test_a_kernel_that_is_not_compiled_is_named_once_and_then_refused(cache, monkeypatch):
    why = OutOfResources(9, 5, "shared memory")
    chip = f"cpu in Triton's interpreter by Triton {compiler.__version__}"
    words = f"could not be compiled for {chip}: OutOfResources: {why} (forward)"
    with monkeypatch.context() as patch:
        patch.setattr(operators, "forward", Kernel(why))
        with pytest.warns(RuntimeWarning, match="the Triton kernels could not be compiled for cpu") as warned:
            assert [taken(), taken()] == ["dense", "dense"]
        assert len(warned) == 1
    with pytest.raises(ValueError, match="no backend can serve this call; triton: could not be compiled") as refused:
        attend(*inputs(), backend="triton")
    assert str(refused.value).endswith(f"triton: {words}")
    assert attend(*inputs(), backend="triton", mask=torch.ones(40, 40, dtype=torch.bool)).shape == (
        1,
        1,
        40,
        16,
    )  # another kind
    forget(monkeypatch)
    assert verdicts.found(CPU, PLAIN) == Verdict(False, words)
    assert attend(*inputs(), backend="triton").shape == (1, 1, 40, 16)  # in the next process a name is obeyed again

    verdicts.record(
        CPU, PLAIN, GOOD
    )  # of an agreement, the call that comes first is told, and `auto` goes on with dense
    monkeypatch.setattr(operators, "backward_query", Kernel(PTXASError("`ptxas` failed with error code 1\nlog")))
    with pytest.raises(failures.NotCompiledError, match=r"^triton: could .*: PTXASError: `ptxas` .* 1 \(forward\)$"):
        attend(inputs()[0].requires_grad_(), *inputs()[1:]).sum().backward()
    assert taken() == "dense"


def in_compiler(source):
    def launch(tmp_path):
        path = tmp_path / "kernel.ttir"
        path.write_text(source)
        compiler.compile(str(path), target=GPUTarget("cuda", 90, 32))

    return launch


def raising(error, cause=None):
    def launch(tmp_path):
        raise error from cause

    return launch


INNER = CompilationError("def f():\n  pass", None, "a gather along no axis\nmore")


@pytest.mark.parametrize(
    ("launch", "words"),
    [
        (raising(INNER), "CompilationError: a gather along no axis (forward)"),
        (raising(CompilationError("source", None, None), INNER), "CompilationError: a gather along no axis (forward)"),
        (in_compiler("no such language"), "RuntimeError: "),
    ],
)
def test_errors_of_the_compiler_are_told_in_one_line(tmp_path, launch, words):
    with pytest.raises(failures.NotCompiledError) as raised, failures.compiling(*launched()):
        launch(tmp_path)
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)
    assert raised.value.__cause__ is None
    assert raised.value.__suppress_context__
    assert triton.unavailable_reason(call()) == str(raised.value).removeprefix("triton: ")


@pytest.mark.parametrize(
    "error",
    [RuntimeError("Triton Error [CUDA]: an illegal memory access"), torch.OutOfMemoryError(), KeyboardInterrupt()],
    ids=repr,
)
def test_other_errors_are_left_alone(tmp_path, error):
    with pytest.raises(type(error)) as raised, failures.compiling(*launched()):
        raise error
    assert raised.value is error
    assert triton.unavailable_reason(call()) is None


def launched():
    """What a launch tells `compiling`."""
    return Kernel(None), call()


# the command


@pytest.mark.parametrize("verdict", [GOOD, BAD])
def test_the_command_reports_every_kind(monkeypatch, capsys, verdict):
    monkeypatch.setattr(trust, "trial", lambda device, kind: verdict if kind.dropout else GOOD)
    assert main(["--dtypes", "bfloat16", "--dims", "16", "9"]) == (0 if verdict.agreed else 1)
    told = dict(line.split(": ", 1) for line in capsys.readouterr().out.splitlines())
    assert list(told)[:6] == ["chip", "driver", "torch", "Triton", "relattn", "Python"]
    assert told["torch"] == torch.__version__
    kind = "bfloat16, dim 16, value_dim 16, "
    traits = ("positions", "positions, mask", "relations", "rel_dim 16, positions")
    assert list(told)[6:] == [kind + traits + dropout for traits in traits for dropout in ("", ", dropout")]
    assert [told[name] for name in list(told)[6:]] == [GOOD.words, verdict.words] * 4


@pytest.mark.whole
def test_the_command_needs_something_to_try_the_kernels_on():
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "relattn.backends.triton", "--device", "cpu"]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 2
    assert run.stderr.startswith("nothing to try the kernels on: no GPU that PyTorch can use")
    assert run.stderr.count("\n") == 1
