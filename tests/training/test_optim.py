"""The optimizer, its schedule and clipping."""

import math

import pytest
import torch
from torch import nn

from raybio.core.errors import ConfigError
from raybio.core.fields import fields
from raybio.training.optim import build_optimizer, clip_gradients, learning_rate, set_learning_rate
from raybio.training.settings import OptimConfig


def schedule(num_steps: int, **settings: object) -> list[float]:
    config = OptimConfig.from_mapping({"peak_lr": 1.0, **settings})
    return [learning_rate(step, num_steps, config) for step in range(num_steps + 1)]


def test_without_a_schedule_the_learning_rate_is_the_peak_from_the_first_step() -> None:
    assert schedule(5) == [1.0] * 6


def test_warm_up_rises_linearly_and_its_first_step_already_learns() -> None:
    assert schedule(6, num_warmup_steps=4) == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0, 1.0]
    assert schedule(6, warmup_ratio=0.5) == schedule(6, num_warmup_steps=3)


def test_linear_decay_ends_at_the_final_ratio() -> None:
    assert schedule(4, schedule="linear") == [1.0, 0.75, 0.5, 0.25, 0.0]
    assert schedule(4, schedule="linear", final_lr_ratio=0.2)[-1] == pytest.approx(0.2)
    assert schedule(6, schedule="linear", num_warmup_steps=2) == [
        0.5,
        1.0,
        1.0,
        0.75,
        0.5,
        0.25,
        0.0,
    ]


def test_cosine_decay_passes_the_middle_at_half_and_is_symmetric() -> None:
    values = schedule(10, schedule="cosine")
    assert values[5] == pytest.approx(0.5)
    for step in range(11):
        assert values[step] + values[10 - step] == pytest.approx(1.0)


def test_steps_beyond_the_end_keep_the_final_learning_rate() -> None:
    config = OptimConfig(schedule="linear", final_lr_ratio=0.1, peak_lr=1.0)
    assert learning_rate(99, 10, config) == pytest.approx(0.1)


def test_decay_spares_biases_norms_and_scalars_but_no_matrix() -> None:
    model = nn.Sequential(nn.Embedding(4, 3), nn.Linear(3, 2), nn.LayerNorm(2))
    model.register_parameter("temperature", nn.Parameter(torch.zeros(())))
    optimizer = build_optimizer(model, OptimConfig(weight_decay=0.3))
    decay_by_shape = {
        tuple(parameter.shape): group["weight_decay"]
        for group in optimizer.param_groups
        for parameter in group["params"]
    }
    assert decay_by_shape == {(4, 3): 0.3, (2, 3): 0.3, (2,): 0.0, (): 0.0}


def test_a_scalar_has_its_own_rate_that_rises_and_falls_with_the_others() -> None:
    model = nn.Linear(3, 2)
    model.register_parameter("temperature", nn.Parameter(torch.zeros(())))
    optimizer = build_optimizer(model, OptimConfig(peak_lr=2e-5, scalar_lr=1e-3))
    set_learning_rate(optimizer, 1e-5)
    rates = {
        parameter.ndim: group["lr"]
        for group in optimizer.param_groups
        for parameter in group["params"]
    }
    assert rates == {2: 1e-5, 1: 1e-5, 0: pytest.approx(5e-4)}


def test_frozen_parameters_are_skipped_and_a_frozen_model_is_refused() -> None:
    model = nn.Linear(2, 2).requires_grad_(False)
    with pytest.raises(ValueError, match="Unfreeze"):
        build_optimizer(model, OptimConfig())


def test_an_update_follows_the_formula_of_adamw() -> None:
    model = nn.Linear(2, 1, bias=False).double()
    start = model.weight.detach().clone()
    optimizer = build_optimizer(model, OptimConfig(weight_decay=0.1, eps=1e-8))
    set_learning_rate(optimizer, 0.01)
    model.weight.grad = torch.tensor([[2.0, -3.0]], dtype=torch.float64)
    optimizer.step()
    # After one step both bias-corrected moments are the gradient and its square.
    expected = start * (1 - 0.01 * 0.1) - 0.01 * torch.tensor([[2 / (2 + 1e-8), -3 / (3 + 1e-8)]])
    torch.testing.assert_close(model.weight.detach(), expected.double(), rtol=1e-7, atol=1e-9)


def parameters_with_gradients(*gradients: list[float]) -> list[nn.Parameter]:
    parameters = [nn.Parameter(torch.zeros(len(gradient))) for gradient in gradients] + [
        nn.Parameter(torch.zeros(1))
    ]
    for parameter, gradient in zip(parameters, gradients, strict=False):
        parameter.grad = torch.tensor(gradient)
    return parameters


def test_clipping_scales_the_joint_norm_and_returns_the_norm_before() -> None:
    parameters = parameters_with_gradients([3.0, 0.0], [4.0])
    assert float(clip_gradients(parameters, 1.0)) == pytest.approx(5.0)
    torch.testing.assert_close(parameters[0].grad, torch.tensor([0.6, 0.0]))
    torch.testing.assert_close(parameters[1].grad, torch.tensor([0.8]))


@pytest.mark.parametrize("max_norm", [None, 0.0, 5.0, 6.0])
def test_gradients_within_the_limit_keep_their_bits(max_norm: float | None) -> None:
    parameters = parameters_with_gradients([3.0], [4.0])
    assert float(clip_gradients(iter(parameters), max_norm)) == pytest.approx(5.0)
    assert parameters[0].grad.item() == 3.0 and parameters[1].grad.item() == 4.0


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_non_finite_gradient_shows_in_the_norm_and_changes_no_other(bad: float) -> None:
    parameters = parameters_with_gradients([bad], [4.0])
    assert not clip_gradients(parameters, 1.0).isfinite()
    assert parameters[1].grad.item() == 4.0


def test_without_any_gradient_the_norm_is_zero() -> None:
    assert float(clip_gradients([nn.Parameter(torch.zeros(1))], 1.0)) == 0.0


@pytest.mark.parametrize(
    "setting", [{"peak_lr": 0}, {"schedule": "stairs"}, {"beta1": 1.0}, {"warmup_ratio": 2}]
)
def test_settings_out_of_range_are_refused(setting: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=next(iter(setting))):
        OptimConfig.from_mapping(setting)


def test_every_setting_has_a_description() -> None:
    assert all(field.meaning for field in fields(OptimConfig))


@pytest.mark.parametrize("seed", range(5))
def test_clipping_on_the_device_has_the_bits_of_a_python_number(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    gradient = torch.randn(1000, generator=generator)
    parameter = nn.Parameter(torch.zeros(1000))
    parameter.grad = gradient.clone()
    norm = float(clip_gradients([parameter], 0.7))
    assert torch.equal(parameter.grad, gradient * (0.7 / norm))
