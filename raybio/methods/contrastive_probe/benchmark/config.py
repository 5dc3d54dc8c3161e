"""Settings of a benchmark that is built from UMLS."""

from pydantic import Field

from raybio.core.config import BaseConfig


class MedlamaConfig(BaseConfig):
    """How a benchmark is drawn from UMLS; all of it stands in the benchmark's manifest."""

    per_relation: int = Field(1000, ge=1, description="queries of a relation, at most")
    seed: int = Field(2021, ge=0, description="which queries are drawn")
    max_answers: int = Field(
        10, ge=1, description="queries with more distinct names among their answers are left out"
    )
    legacy: bool = Field(
        False, description="judge hardness as the authors' code does, oddities included"
    )
