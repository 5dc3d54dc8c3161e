"""The recipe for a loss of one's own in SPPT's README is what the example method computes."""

import re
import textwrap
from types import SimpleNamespace
from typing import Any

import torch

from raybio.methods import METHODS
from raybio.methods.sppt.pair_masks import pair_masks
from raybio.store.store import Store
from raybio.training.collective import SingleProcess
from raybio.training.loop import local_batches
from tests.example_method.loss import InfoNceObjective, linked_info_nce
from tests.methods.conformance_cases import tiny_config
from tests.paths import ROOT


def test_the_share_of_the_readme_is_that_of_the_example_method(tiny_store: Store) -> None:
    readme = (ROOT / "raybio" / "methods" / "sppt" / "README.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```python\n( +def _info_nce\(.*?)```", readme, re.DOTALL)
    names: dict[str, Any] = {"pair_masks": pair_masks, "linked_info_nce": linked_info_nce}
    exec(textwrap.dedent(block), names)

    config = tiny_config("sppt_protein")
    system = METHODS["sppt_protein"].build(config, tiny_store.path)
    ((_, batch),) = local_batches(system, 1)(0)
    embedding_RD = torch.randn(batch.num_rows, 8, generator=torch.Generator().manual_seed(0))
    objective = InfoNceObjective(config.objective, config.plan.num_positives_per_anchor, 0.2)
    expected = objective.embedding_loss(embedding_RD, batch, SingleProcess())
    settings = SimpleNamespace(same_node=config.objective.same_node, temperature=0.2)
    of_readme = SimpleNamespace(config=settings)
    share, _ = names["_info_nce"](of_readme, embedding_RD, batch, SingleProcess())
    torch.testing.assert_close(share, expected.terms["info_nce_loss"])
    assert share > 0
