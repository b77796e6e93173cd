"""Operation counts against hand counts, bounds against known work."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from leanwam.bench.bounds import Machine, bounds, measure_machine
from leanwam.bench.counts import Operations, count_parts, operations


def test_a_linear_layer_by_hand() -> None:
    layer = nn.Linear(8, 4, bias=False)
    x = torch.zeros(3, 8)
    with torch.inference_mode():
        found = operations(lambda: layer(x).relu())
    assert found.flops == 2 * 3 * 8 * 4
    assert found.n_kernels == 2  # the product and the relu; the transpose of the weight is a view
    assert found.n_dispatched >= found.n_kernels
    moved = (3 * 8 + 8 * 4 + 3 * 4) + (3 * 4 + 3 * 4)
    assert found.bytes_moved == 4 * moved


@pytest.mark.parametrize("inference", [True, False])
def test_attention_counts_on_the_cpu(*, inference: bool) -> None:
    """torch's own counter knows no formula for the CPU's kernel: it would count nothing."""
    q, k, v = torch.zeros(2, 4, 50, 16), torch.zeros(2, 4, 70, 16), torch.zeros(2, 4, 70, 16)
    with torch.inference_mode(inference):
        found = operations(lambda: nn.functional.scaled_dot_product_attention(q, k, v))
    assert found.flops == 2 * (2 * 2 * 4 * 50 * 70 * 16)


def test_the_backward_of_attention_counts_on_the_cpu() -> None:
    q = torch.randn(1, 2, 5, 8, requires_grad=True)

    def run() -> None:
        nn.functional.scaled_dot_product_attention(q, q, q).sum().backward()

    one_product = 2 * 2 * 5 * 5 * 8
    assert operations(run).flops == (2 + 5) * one_product


def test_parts_are_counted_where_they_run() -> None:
    first, second, never = nn.Linear(8, 8, bias=False), nn.Linear(8, 2, bias=False), nn.Linear(1, 1)

    def run() -> torch.Tensor:
        x = torch.zeros(1, 8)
        for _ in range(3):
            x = first(x)
        output: torch.Tensor = second(x)
        return output

    found = count_parts(run, {"first": first, "second": second, "never": never})
    assert (found["first"].n_executions, found["first"].flops) == (3, 3 * 2 * 64)
    assert (found["second"].n_executions, found["second"].flops) == (1, 2 * 16)
    assert (found["never"].n_executions, found["never"].flops) == (0, 0)
    assert "forward" not in first.__dict__


@pytest.mark.parametrize(
    ("counted", "word"),
    [
        (Operations(flops=10, n_dispatched=1000, n_kernels=900, bytes_moved=10), "dispatch"),
        (Operations(flops=10**9, n_dispatched=10, n_kernels=9, bytes_moved=10), "compute"),
        (Operations(flops=10, n_dispatched=10, n_kernels=9, bytes_moved=10**8), "memory"),
    ],
)
def test_the_largest_bound_binds(counted: Operations, word: str) -> None:
    machine = Machine(1e-6, 1e9, 1e8, "cpu", "float32")
    found = bounds(counted, machine, 2.0)
    assert found["bound"] == word
    assert found["shares"][word] == pytest.approx(found[f"{word}_s"] / 2.0)
    assert found["unexplained_share"] == pytest.approx(1.0 - found["shares"][word])


def test_the_machine_is_measured_and_binds_as_expected() -> None:
    """Many tiny operations are bound by dispatch, one large product by compute, on any machine."""
    torch.set_num_threads(1)
    machine = measure_machine(size=256, n_repeats=3)
    assert 1e-8 < machine.dispatch_s < 1e-2
    assert machine.flops_per_s > 1e8
    assert machine.bytes_per_s > 1e7
    one, big = torch.zeros(1), torch.randn(512, 512)
    with torch.inference_mode():
        many = operations(lambda: [one + one for _ in range(500)])
        product = operations(lambda: big @ big)
    assert bounds(many, machine, 1.0)["bound"] == "dispatch"
    assert bounds(product, machine, 1.0)["bound"] == "compute"
