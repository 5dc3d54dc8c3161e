import pytest
import torch
import torch.nn.functional as F

from raybio.methods.mtb_mccl.mccl.loss import multi_center_logits
from tests import relation_oracles

TEMPERATURES = {"weight_temperature": 0.2, "logit_temperature": 0.3}


def problem(num=11, width=5, classes=4, *, multi=False, proxies=1, seed=0, dtype=torch.float64):
    """Pairs, labels (the last class has no member), proxies (``proxies`` a class) and biases."""
    generator = torch.Generator().manual_seed(seed)
    pair = torch.randn(num, width, generator=generator, dtype=torch.float64).to(dtype)
    if multi:
        label = torch.rand(num, classes, generator=generator) < 0.4
    else:
        label = F.one_hot(
            torch.randint(0, classes - 1, (num,), generator=generator), classes
        ).bool()
    label[:, -1] = False
    proxy = torch.randn(proxies * classes, width, generator=generator, dtype=torch.float64).to(
        dtype
    )
    bias = torch.randn(classes, generator=generator, dtype=torch.float64).to(dtype)
    return pair, label, proxy if proxies else None, bias


def logits_of(pair, label, proxy, bias, **settings):
    """Return the logits of anchors among pairs with a matrix of labels."""
    return multi_center_logits(pair, *label.nonzero().unbind(1), proxy, bias, **settings)


@pytest.mark.parametrize("block_rows", [None, 1, 4])
@pytest.mark.parametrize("weight_temperature", [0.01, 0.2, 50.0])
@pytest.mark.parametrize("multi", [False, True])
@pytest.mark.parametrize("proxies", [0, 1, 3])
def test_logits_equal_the_loop(block_rows, weight_temperature, multi, proxies):
    pair, label, proxy, bias = problem(multi=multi, proxies=proxies)
    settings = {"weight_temperature": weight_temperature, "logit_temperature": 0.3}
    expected = relation_oracles.multi_center_logits(
        pair, label, proxy, bias, *settings.values(), others=pair, other_labels=label, offset=0
    )
    found = logits_of(pair, label, proxy, bias, block_rows=block_rows, **settings)
    assert torch.allclose(found, torch.tensor(expected, dtype=torch.float64), atol=1e-10)
    assert (found[:, -1] == -torch.inf).all() == (proxies == 0)


def test_a_class_whose_only_member_is_the_anchor_is_absent_for_it_alone():
    pair, label, _, bias = problem()
    label[:, -1] = False
    label[3, -1] = True
    found = logits_of(pair, label, None, bias, **TEMPERATURES)
    assert (found[:, -1] == -torch.inf).tolist() == [row == 3 for row in range(11)]


@pytest.mark.parametrize("weight_temperature", [1e-6, 0.01])
def test_tiny_weight_temperatures_are_exact_in_single_precision(weight_temperature):
    pair, label, proxy, bias = problem(60, 16)
    settings = {"weight_temperature": weight_temperature, "logit_temperature": 0.03}
    expected = logits_of(pair, label, proxy, bias, **settings)
    single = [each.float() for each in (pair, proxy, bias)]
    single[0].requires_grad_()
    found = logits_of(single[0], label, *single[1:], **settings)
    # A rounding of a cosine moves a logit by as much over tau2.
    assert torch.allclose(found.double(), expected, atol=1e-4)
    F.cross_entropy(found, label.float().argmax(1)).backward()
    assert torch.isfinite(single[0].grad).all()


def test_a_class_of_thousands_of_members_is_exact_in_single_precision():
    """Of documents, 97 % of the pairs have no relation: their rounding errors must not add up."""
    generator = torch.Generator().manual_seed(0)
    pair = 1 + 0.5 * torch.randn(4000, 16, generator=generator, dtype=torch.float64)
    class_M = (torch.arange(4000) % 40 == 0).long()
    settings = {"weight_temperature": 0.01, "logit_temperature": 0.03}

    def logits_and_gradient(pair):
        anchor = pair[:20].clone().requires_grad_()
        member = torch.arange(4000)
        bias = pair.new_zeros(2)
        logits = multi_center_logits(anchor, member, class_M, None, bias, other_MD=pair, **settings)
        return logits.detach(), *torch.autograd.grad((logits[:, 1] - logits[:, 0]).sum(), anchor)

    expected, found = logits_and_gradient(pair), logits_and_gradient(pair.float())
    for wide, single, tolerance in zip(expected, found, (2e-5, 5e-5), strict=True):
        assert (single.double() - wide).abs().max() < tolerance


def test_with_opposite_members_and_a_tiny_temperature_nothing_underflows():
    pair = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [-1.0, 0.0]], requires_grad=True)
    label = torch.ones(3, 1, dtype=torch.bool)
    settings = {"weight_temperature": 0.001, "logit_temperature": 1.0}
    found = logits_of(pair, label, None, torch.zeros(1), **settings)
    assert found.flatten().tolist() == pytest.approx([-1.0, 1.0, 1.0])


def test_the_nearest_decides_at_a_low_temperature_and_the_mean_at_a_high_one():
    pair, label, proxy, bias = problem()
    score = F.normalize(pair, dim=1) @ F.normalize(pair, dim=1).T
    is_member = label[:, 0] & (torch.arange(11) != 5)
    low, high = (
        logits_of(pair, label, None, bias * 0, weight_temperature=tau, logit_temperature=1.0)[5, 0]
        for tau in (1e-4, 1e7)
    )
    assert low.item() == pytest.approx(score[5][is_member].max().item(), abs=1e-6)
    assert high.item() == pytest.approx(score[5][is_member].mean().item(), abs=1e-6)


@pytest.mark.parametrize("proxies", [0, 1, 3])
def test_the_gradient_is_the_numeric_one(proxies):
    pair, label, proxy, bias = problem(6, 3, multi=True, proxies=proxies)

    def finite_logits(pair, bias, proxy=None):
        logits = logits_of(pair, label, proxy, bias, block_rows=4, **TEMPERATURES)
        return logits[logits > -torch.inf]

    inputs = tuple(each.requires_grad_() for each in (pair, bias, proxy) if each is not None)
    assert torch.autograd.gradcheck(finite_logits, inputs)


def test_proxies_may_be_permuted_and_copies_of_the_only_member_equal_that_member():
    pair, label, proxy, bias = problem(multi=True, proxies=3)
    expected = logits_of(pair, label, proxy, bias, **TEMPERATURES)
    turned = proxy.view(3, 4, 5)[[2, 0, 1]].reshape(12, 5)
    assert torch.allclose(
        logits_of(pair, label, turned, bias, **TEMPERATURES), expected, atol=1e-12
    )
    # Of a class without any other member, copies of a proxy are the proxy.
    copied, once = (
        logits_of(pair, label, proxy[:4].repeat(k, 1), bias, **TEMPERATURES)[:, -1] for k in (3, 1)
    )
    assert torch.allclose(copied, once, atol=1e-12)


@pytest.mark.parametrize("shares", [[5, 6], [3, 7, 1], [11, 0]])
@pytest.mark.parametrize(("multi", "proxies"), [(False, 1), (True, 1), (True, 2)])
def test_rows_divided_over_workers_give_the_logits_and_gradient_of_the_whole_batch(
    shares, multi, proxies
):
    whole, label, proxy, bias = problem(multi=multi, proxies=proxies)
    inputs = [each.requires_grad_() for each in (whole, proxy, bias)]
    outside = torch.randn(11, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)

    def flow(logits, weight):
        return torch.where(logits > -torch.inf, logits * weight, 0.0).sum()

    expected = logits_of(whole, label, proxy, bias, **TEMPERATURES)
    gradients = torch.autograd.grad(flow(expected, outside), inputs)
    start, parts, total = 0, [], 0.0
    for share in shares:
        mine = slice(start, start + share)
        others = {"other_MD": whole, "offset": start}
        parts.append(logits_of(whole[mine], label, proxy, bias, **others, **TEMPERATURES))
        total = total + flow(parts[-1], outside[mine])
        start += share
    assert torch.allclose(torch.cat(parts), expected, atol=1e-12)
    for found, wanted in zip(torch.autograd.grad(total, inputs), gradients, strict=True):
        assert torch.allclose(found, wanted, atol=1e-12)


def test_absent_classes_neither_give_nor_get_a_gradient():
    pair, label, _, bias = problem()
    pair.requires_grad_(), bias.requires_grad_()
    logits = logits_of(pair, label, None, bias, **TEMPERATURES)
    logits.backward(
        torch.full_like(logits, torch.nan).where(logits == -torch.inf, torch.ones_like(logits))
    )
    assert bias.grad[-1] == 0
    assert torch.isfinite(pair.grad).all()
    assert torch.isfinite(bias.grad).all()


def test_a_cross_entropy_on_the_logits_is_that_of_the_classes_that_are_there():
    pair, label, _, bias = problem()
    pair.requires_grad_()
    logits = logits_of(pair, label, None, bias, **TEMPERATURES)
    gold = label.float().argmax(1)
    (with_absent,) = torch.autograd.grad(F.cross_entropy(logits, gold), pair, retain_graph=True)
    (without,) = torch.autograd.grad(F.cross_entropy(logits[:, :-1], gold), pair)
    assert torch.allclose(with_absent, without)
    assert with_absent.abs().max() > 0


def test_the_length_of_embeddings_and_the_order_of_the_others_do_not_matter():
    pair, label, proxy, bias = problem(multi=True)
    expected = logits_of(pair, label, proxy, bias, **TEMPERATURES)
    order = torch.randperm(11, generator=torch.Generator().manual_seed(2))
    moved = logits_of((7 * pair)[order], label[order], 0.1 * proxy, bias, **TEMPERATURES)
    assert torch.allclose(moved, expected[order], atol=1e-12)


def test_one_class_duplicates_zero_vectors_and_no_rows_stay_finite():
    pair = torch.ones(6, 3)
    pair[4:] = 0
    pair.requires_grad_()
    label = torch.ones(6, 1, dtype=torch.bool)
    found = logits_of(
        pair, label, None, torch.zeros(1), weight_temperature=0.01, logit_temperature=0.03
    )
    found.sum().backward()
    assert torch.isfinite(found).all()
    assert torch.isfinite(pair.grad).all()
    nothing = logits_of(pair[:0], label[:0], None, torch.zeros(1), **TEMPERATURES)
    assert nothing.shape == (0, 1)
    pair.grad = None
    nothing.sum().backward()
    assert torch.equal(pair.grad, torch.zeros(6, 3))


def test_no_member_and_no_proxy_at_all_gives_minus_infinity_everywhere():
    pair, label, _, bias = problem()
    pair.requires_grad_()
    found = logits_of(pair, torch.zeros_like(label), None, bias, **TEMPERATURES)
    assert (found == -torch.inf).all()
    found.backward(torch.ones_like(found))
    assert torch.equal(pair.grad, torch.zeros(11, 5, dtype=torch.float64))


def test_half_precision_is_computed_in_single():
    pair, label, proxy, bias = problem(dtype=torch.bfloat16)
    expected = logits_of(pair.float(), label, proxy.float(), bias, **TEMPERATURES)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(logits_of(pair, label, proxy, bias, **TEMPERATURES), expected)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"weight_temperature": 0.0}, "temperature is 0.0"),
        ({"logit_temperature": float("nan")}, "want a number > 0"),
        ({"offset": 1}, "offset is 1"),
        ({"class_E": torch.zeros(10, dtype=torch.int64)}, "11 members and 10 classes"),
        (
            {"proxy_RD": torch.zeros(6, 5)},
            "proxy_RD has 6 rows, want as many for each of 4 classes, or None",
        ),
        ({"proxy_RD": torch.zeros(0, 5)}, "proxy_RD has 0 rows"),
        ({"member_E": torch.arange(11) + 1}, "members are 1 to 11, want 0 to 10"),
    ],
)
def test_wrong_arguments_are_refused(change, message):
    pair, label, proxy, bias = problem()
    member_E, class_E = label.nonzero().unbind(1)
    arguments = {
        "pair_ND": pair,
        "member_E": member_E,
        "class_E": class_E,
        "proxy_RD": proxy,
        "bias_R": bias,
    }
    with pytest.raises(ValueError, match=message):
        multi_center_logits(**arguments | TEMPERATURES | change)
