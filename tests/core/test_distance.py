"""Names of distances in settings."""

import pytest

from raybio.core.config import BaseConfig
from raybio.core.distance import SavedDistance
from raybio.core.errors import ConfigError


class Config(BaseConfig):
    metric: SavedDistance = "euclidean"


def test_settings_with_the_former_word_are_read_and_written_with_the_present_one():
    assert Config.from_mapping({"metric": "l2"}).to_mapping() == {"metric": "euclidean"}


def test_an_unknown_distance_is_refused_with_the_known_ones():
    with pytest.raises(ConfigError, match="metric: got 'l1', want euclidean or cosine"):
        Config.from_mapping({"metric": "l1"})
