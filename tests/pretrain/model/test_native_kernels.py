"""The compiled kernels against the plain ones in float64, by each instruction set that this processor runs.

Results are compared with those of the same inputs widened: in float32 to 1e-5, in bfloat16 to the rounding
of the result.
"""

import os
import random
import shutil
import subprocess
import sys
from functools import partial
from unittest.mock import patch

import pytest
import torch
from encoder_helpers import add_norm, norm_dropout

from pretrain.common.errors import UserError
from pretrain.model.attention import PackedLayout
from pretrain.model.kernels import kernels_for, native, plain
from pretrain.model.kernels.dropout import Dropout, keep_mask, kept_probabilities

CPU = torch.device("cpu")
DTYPES = (torch.float32, torch.bfloat16)
KINDS = (*DTYPES, torch.float16, torch.float64)
COMPILER = any(map(shutil.which, ("c++", "g++", "clang++")))


@pytest.fixture(scope="module", autouse=True)
def _compiled():
    if os.environ.get(native.VARIABLE) == "plain":
        pytest.skip(f"{native.VARIABLE}=plain: what is compiled is not used")
    if native.available() is None and not COMPILER:
        pytest.skip("pretrain.model.kernels._native is not there, and no C++ compiler to build it")
    if native.available() is None:
        pytest.fail(
            "pretrain.model.kernels._native is missing or was compiled from other sources, though there is "
            "a C++ compiler (GCC 12 or later): pip install -e . builds it",
            pytrace=False,
        )


@pytest.fixture(params=["portable", "avx2", "avx512"])
def instructions(request):
    if request.param not in native.instruction_sets():
        pytest.skip(f"this processor does not run {request.param}")
    with patch.object(native, "_forced", request.param):
        yield request.param


def normal(*shape, dtype=torch.float32):
    return torch.randn(shape).to(dtype)


def make_dropout(tokens, rate, site=9):
    return Dropout(rate, torch.randint(-(2**63), 2**63 - 1, (tokens,)), site)


def run(function, tensors, gradients):
    """Outputs, and gradients of the tensors, where each output has a gradient (None: it is not used)."""
    leaves = [None if x is None else x.detach().clone().requires_grad_() for x in tensors]
    outputs = function(*leaves)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    used = [(x, gradient.to(x.dtype)) for x, gradient in zip(outputs, gradients) if gradient is not None]
    torch.autograd.backward(*zip(*used))
    return [x.detach() for x in outputs], [None if x is None else x.grad for x in leaves]


def assert_near(found, expected, dtype, blur=0.0):
    """Allow one rounding to dtype, and what sums in float32 lose; blur: more, of the largest value."""
    if expected is None:
        assert found is None
        return
    assert found.shape == expected.shape
    if not expected.numel():
        return
    largest = expected.abs().max()
    relative = 1e-5 if dtype == torch.float32 else 2**-8 + 1e-4
    excess = (found.double() - expected).abs() - relative * expected.abs() - (1e-5 + blur) * largest
    assert excess.max() <= 1e-6, f"{excess.max()} of {largest} too far"


def compare(name, tensors, gradients, *arguments, blur=0.0):
    """Run a kernel natively, and plainly on float64 copies."""

    def kernel(kernels):
        called = partial(norm_dropout, kernels) if name == "norm_dropout" else getattr(kernels, name)
        return lambda *x: called(*x, *arguments)

    with patch.object(native, "call", wraps=native.call) as called:
        outputs, own = run(kernel(native), tensors, gradients)
    assert called.call_count == 2  # forward and backward, and not the plain ones
    wide = [None if x is None else x.double() for x in tensors]
    expected, reference = run(kernel(plain), wide, gradients)
    for found, right in zip(outputs, expected):
        assert_near(found, right, found.dtype)
    for leaf, found, right in zip(tensors, own, reference):
        if leaf is not None and right is not None:
            assert found.dtype == leaf.dtype
            assert_near(found, right, leaf.dtype, blur)


def rows_and_columns(seed):
    rng = random.Random(seed)
    shapes = [(0, 32), (1, 1), (1, 768), (5000, 40)]
    return [*shapes, *((rng.randint(1, 300), rng.randint(1, 400)) for _ in range(6))]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rate", [None, 0.0, 0.1, 0.6])
def test_add_norm(instructions, dtype, rate):
    rng = random.Random(f"{dtype} {rate}")
    for tokens, width in rows_and_columns(rate or 0):
        torch.manual_seed(tokens)
        residual_dtype = rng.choice([dtype, torch.float32])
        residual = normal(tokens, width, dtype=residual_dtype) if rng.random() < 0.7 else None
        bias = normal(width) if rng.random() < 0.7 else None
        norm_bias = normal(width) if rng.random() < 0.7 else None
        dropout = None if rate is None else make_dropout(tokens, rate)
        gradients = [normal(tokens, width, dtype=dtype), normal(tokens, width, dtype=dtype)]
        for used in (gradients, [None, gradients[1]], [gradients[0], None]):
            tensors = (normal(tokens, width, dtype=dtype) + 3, bias, residual, normal(width), norm_bias)
            native_kernel = lambda *x: add_norm(native, *x, 1e-5, dropout)  # noqa: B023, E731
            plain_kernel = lambda *x: add_norm(plain, *x, 1e-5, dropout)  # noqa: B023, E731
            outputs, own = run(native_kernel, tensors, used)
            expected, reference = run(
                plain_kernel, [None if x is None else x.double() for x in tensors], used
            )
            for found, right in zip(outputs, expected):
                assert found.dtype == (dtype if residual is None else residual_dtype)
                assert_near(found, right, found.dtype)
            # The backward has the sum as it was rounded: half a unit of bfloat16, relative to 3 and more.
            blur = 2e-2 if outputs[0].dtype == torch.bfloat16 and width > 1 else 1e-5
            for leaf, found, right in zip(tensors, own, reference):
                if leaf is not None and right is not None and width > 8:
                    assert found.dtype == leaf.dtype
                    assert_near(found, right, leaf.dtype, blur)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rate", [None, 0.0, 0.1, 0.6])
def test_norm_dropout(instructions, dtype, rate):
    for tokens, width in rows_and_columns(1):
        torch.manual_seed(tokens)
        dropout = None if rate is None else make_dropout(tokens, rate)
        gradient = [normal(tokens, width, dtype=dtype)]
        for norm_bias in (None, normal(width)):
            tensors = (normal(tokens, width, dtype=dtype), normal(width), norm_bias)
            # a row of few values can be so even that rounding shows in its normalised values
            compare("norm_dropout", tensors, gradient, 1e-3, dropout, blur=1e-4)


@pytest.mark.parametrize("dtype", DTYPES)
def test_gelu(instructions, dtype):
    for tokens, width in rows_and_columns(2):
        torch.manual_seed(tokens)
        gradient = [normal(tokens, width, dtype=dtype)]
        x = 3 * normal(tokens, width, dtype=dtype)
        for bias in (None, normal(width)):
            compare("bias_gelu", (x, bias), gradient)
        compare("gelu_gate", (3 * normal(tokens, 2 * width, dtype=dtype),), gradient)


def test_gelu_is_exact_in_its_tails(instructions):
    x = torch.cat([torch.linspace(-12, 12, 100_001), torch.tensor([0.0, 1e-30, -1e-30, 100.0, -100.0])])
    x = x.unsqueeze(0).requires_grad_()
    y = native.bias_gelu(x, None)
    y.sum().backward()
    wide = x.detach().double()
    cdf = 0.5 * torch.special.erfc(-wide * 0.5**0.5)
    torch.testing.assert_close(y.double(), wide * cdf, rtol=1e-5, atol=1e-35)
    density = torch.exp(-wide.square() / 2) / (2 * torch.pi) ** 0.5
    torch.testing.assert_close(x.grad.double(), cdf + wide * density, rtol=2e-5, atol=2e-7)


def make_layout(lengths, filler):
    return PackedLayout.build(torch.tensor(lengths, dtype=torch.int64), CPU, filler)


ATTENTION = [  # lengths, filler, heads, head size, half window
    ([], 3, 2, 32, None),
    ([1], 0, 1, 16, None),
    ([1, 1, 2, 15, 16, 17], 5, 4, 64, None),
    ([34] * 5, 1, 3, 20, None),
    ([3, 31, 32, 33], 0, 2, 7, 2),
    ([512], 0, 1, 32, None),
    ([90, 130, 300], 7, 2, 32, 12),
    ([65, 65], 2, 2, 128, 64),
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rate", [None, 0.0, 0.1, 0.6])
@pytest.mark.parametrize("case", ATTENTION, ids=str)
def test_attention(instructions, dtype, rate, case):
    lengths, filler, heads, size, half_window = case
    torch.manual_seed(sum(lengths))
    layout = make_layout(lengths, filler)
    tokens = sum(lengths) + filler
    qkv = 2 * normal(tokens, 3, heads, size, dtype=dtype)
    dropout = None if rate is None else make_dropout(tokens, rate, site=1)
    gradient = normal(tokens, heads, size, dtype=dtype)
    compare("attention", (qkv,), [gradient], layout, size**-0.5, half_window, dropout, blur=1e-5)
    if filler:
        leaf = qkv.clone().requires_grad_()
        output = native.attention(leaf, layout, 1.0, half_window, dropout)
        output.backward(gradient)
        assert not output[-filler:].any() and not leaf.grad[-filler:].any()


@pytest.mark.parametrize("dtype", DTYPES)
def test_dropped_values_are_those_of_the_hash(instructions, dtype):
    dropout = make_dropout(700, 0.3)
    expected = keep_mask(dropout, 77)
    x, ones = torch.ones(700, 77, dtype=dtype), torch.ones(77)
    assert torch.equal(add_norm(native, x, None, None, ones, None, 1e-5, dropout)[0] != 0, expected)
    # a norm of any row that gives the bias: not 0 where it is kept
    assert torch.equal(norm_dropout(native, x, ones, ones, 1e-5, dropout) != 0, expected)
    heads, length = 3, 50
    layout = make_layout([length] * 14, 0)
    qkv = torch.zeros(700, 3, heads, 64, dtype=dtype)
    qkv[:, 2, :, :length] = torch.eye(length).repeat(14, 1).unsqueeze(1)  # the output is the probabilities
    probabilities = native.attention(qkv, layout, 1.0, None, dropout)[..., :length].unflatten(0, (14, length))
    expected = kept_probabilities(dropout.keys.view(14, length), dropout, heads)
    assert torch.equal(probabilities.transpose(1, 2) != 0, expected)


def test_results_do_not_depend_on_the_number_of_threads():
    torch.manual_seed(0)
    x, bias, dropout = normal(1000, 100), normal(100), make_dropout(1000, 0.1)
    layout = make_layout([10] * 50 + [250] * 2, 0)
    qkv, gradient = normal(1000, 3, 2, 32), normal(1000, 100)

    def results():
        found = [
            run(lambda *x: add_norm(native, *x, 1e-5, dropout), (x, bias, x, bias, bias), [gradient] * 2),
            run(lambda *x: norm_dropout(native, *x, 1e-5, dropout), (x, bias, bias), [gradient]),
            run(native.bias_gelu, (x, bias), [gradient]),
            run(native.gelu_gate, (x,), [gradient[:, :50]]),
            run(lambda x: native.attention(x, layout, 0.2, None, dropout), (qkv,), [qkv[:, 0]]),
        ]
        return [tensor for both in found for tensors in both for tensor in tensors]

    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        expected = results()
        for threads in (2, 3, 7):
            torch.set_num_threads(threads)
            assert all(map(torch.equal, results(), expected))
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_not_finite_stays_visible(instructions, dtype):
    x = normal(4, 40, dtype=dtype)
    x[1, 3], x[2, 38] = torch.nan, torch.inf
    ones = torch.ones(40)
    for normed in (
        add_norm(native, x, None, None, ones, None, 1e-5, None)[1],
        norm_dropout(native, x, ones, None, 1e-5, None),
    ):
        assert normed.isfinite().all(1).tolist() == [True, False, False, True]
    assert native.bias_gelu(x, None).isfinite().all(1).tolist() == [True, False, False, True]
    qkv = normal(9, 3, 2, 16, dtype=dtype)
    qkv[1, 0, 0, 0] = torch.nan
    finite = native.attention(qkv, make_layout([4, 5], 0), 0.3, None, None).isfinite().all(2)
    assert finite.tolist() == [[True, True], [False, True], *[[True, True]] * 7]


def test_other_types_go_to_the_plain_kernels():
    x, weight = normal(5, 8, dtype=torch.float64), normal(8, dtype=torch.float64)
    assert torch.equal(native.bias_gelu(x, weight), plain.bias_gelu(x, weight))
    added, normed = add_norm(native, x.half(), None, x.float(), weight.float(), None, 1e-5, None)
    assert added.dtype == normed.dtype == torch.float32
    qkv, layout = normal(9, 3, 2, 8, dtype=torch.float64), make_layout([4, 5], 0)
    assert torch.equal(
        native.attention(qkv, layout, 0.3, None, None), plain.attention(qkv, layout, 0.3, None, None)
    )
    assert torch.equal(native.gelu_gate(x), plain.gelu_gate(x))
    assert torch.equal(*(norm_dropout(how, x, weight, None, 1e-5, None) for how in (native, plain)))
    taken = {
        (x, p)
        for x in KINDS
        for p in KINDS
        if native._takes(normal(2, dtype=x), None, weight.float(), weight.to(p))
    }
    assert taken == {(x, torch.float32) for x in DTYPES}
    assert kernels_for(CPU, torch.float64) is plain
    assert kernels_for(CPU, torch.bfloat16) is kernels_for(CPU, torch.float32) is native


def test_inputs_need_not_be_contiguous():
    x, bias = normal(30, 12).t(), normal(30)
    compare("bias_gelu", (x, bias), [normal(30, 12).t()])
    keys = torch.randint(0, 2**62, (24,))
    compare("norm_dropout", (x, bias, None), [normal(12, 30)], 1e-5, Dropout(0.5, keys[::2], 3), blur=1e-4)


def test_a_second_derivative_is_refused():
    x = normal(4, 8).requires_grad_()
    (gradient,) = torch.autograd.grad(native.bias_gelu(x, None).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


def test_a_tensor_may_be_input_and_residual():
    leaves, gradients = (normal(20, 32), normal(32)), [normal(20, 32)] * 2
    outputs, own = run(lambda x, w: add_norm(native, x, None, x, w, None, 1e-5, None), leaves, gradients)
    wide = [leaf.double() for leaf in leaves]
    expected, reference = run(lambda x, w: add_norm(plain, x, None, x, w, None, 1e-5, None), wide, gradients)
    for found, right in zip([*outputs, *own], [*expected, *reference]):
        assert_near(found, right, torch.float32)


def test_dropout_keys_of_another_row_are_refused():
    with pytest.raises(AssertionError):
        norm_dropout(native, normal(12, 8), normal(8), None, 1e-5, make_dropout(11, 0.5))


def test_the_variable_chooses(monkeypatch):
    monkeypatch.setenv(native.VARIABLE, "plain")
    assert kernels_for(CPU, torch.float32) is plain
    monkeypatch.setenv(native.VARIABLE, "fastest")
    with pytest.raises(UserError, match="plain or native"):
        kernels_for(CPU, torch.float32)
    monkeypatch.setenv(native.VARIABLE, "native")
    assert kernels_for(CPU, torch.float32) is native
    monkeypatch.setattr(native, "instruction_sets", lambda: ())
    with pytest.raises(UserError, match="not compiled"):
        kernels_for(CPU, torch.float32)


@pytest.mark.full
def test_one_openmp_library_is_loaded():
    program = (
        "from pretrain.model.kernels import native; import re; assert native.available();"
        "print(len(set(re.findall(r'/\\S*gomp\\S*', open('/proc/self/maps').read()))))"
    )
    if not os.path.exists("/proc/self/maps"):
        pytest.skip("the libraries of a process are listed on Linux only")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1"]
