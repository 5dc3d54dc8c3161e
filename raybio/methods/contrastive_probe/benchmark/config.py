"""Settings of a benchmark that is built from UMLS."""

from pydantic import Field

from raybio.core.config import BaseConfig


class MedlamaConfig(BaseConfig):
    """Settings of a benchmark from UMLS; the manifest of the benchmark records them."""

    per_relation: int = Field(1000, ge=1, description="queries of a relation, at most")
    seed: int = Field(2021, ge=0, description="seed of the sample of queries")
    max_answers: int = Field(
        10, ge=1, description="queries with more distinct names among their answers are skipped"
    )
    legacy: bool = Field(
        False, description="compute hardness as the authors' code does, oddities included"
    )
