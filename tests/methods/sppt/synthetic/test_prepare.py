"""Sentences and their topics."""

from pathlib import Path

import numpy as np
import pytest

from raybio.core.errors import DataError
from raybio.methods.sppt.synthetic.config import TopicConfig
from raybio.methods.sppt.synthetic.prepare import FEW_COUNTED_WORDS, prepare_topics
from raybio.methods.sppt.synthetic.store import TopicStore
from raybio.store.store import open_store

WORDS = [[f"{letter}{number}" for number in range(8)] for letter in "abcd"]


def write(path: Path, lines: list[str]) -> Path:
    path.write_text("\n".join(lines) + "\n")
    return path


def sentences(num: int = 400) -> tuple[list[str], np.ndarray]:
    rng = np.random.default_rng(0)
    topic_N = np.arange(num) % 4
    return [" ".join(rng.choice(WORDS[topic], 12)) for topic in topic_N], topic_N


def test_sentences_of_distinct_words_get_topics_of_their_own(tmp_path: Path) -> None:
    lines, topic_N = sentences()
    config = TopicConfig(num_topics=4, min_count=2, num_passes=10)
    store = prepare_topics(tmp_path / "store", [write(tmp_path / "a.txt", lines)], config)
    assert store.texts(np.arange(5)) == lines[:5]
    found_by_topic = [set(store.topic_NK[topic_N == topic, 0].tolist()) for topic in range(4)]
    assert all(len(found) == 1 for found in found_by_topic)
    assert len(set.union(*found_by_topic)) == 4
    for topic, found in enumerate(found_by_topic):
        assert set(store.topic_words[found.pop()].split()) == set(WORDS[topic])
    assert (np.diff(store.share_NK, axis=1) <= 0).all()
    assert store.share_NK[:, 0].min() > 0.9
    again = prepare_topics(tmp_path / "again", [tmp_path / "a.txt"], config)
    assert (
        again.manifest["files"]
        == open_store(tmp_path / "store", TopicStore, verify=True).manifest["files"]
    )


def test_sentences_are_cleaned_and_short_and_repeated_ones_left_out(tmp_path: Path) -> None:
    lines, _ = sentences(40)
    odd = ["Too, short!", "A0, a1; (A2) a3. a4_a5", "a0 a1 a2 a3 a4a5", "x y z v w"]
    config = TopicConfig(num_topics=3, min_count=2, min_words=4)
    store = prepare_topics(tmp_path / "store", [write(tmp_path / "a.txt", odd + lines)], config)
    assert store.texts(np.arange(2)) == [
        "a0 a1 a2 a3 a4a5",
        lines[0],
    ]  # "x y ..." has no word that counts
    assert store.num_rows == 41
    aside = {reason: facts["count"] for reason, facts in store.manifest["quarantine"].items()}
    assert aside == {"few words": 1, "the same as one before": 1, FEW_COUNTED_WORDS: 1}


def test_too_little_to_tell_topics_by_is_refused(tmp_path: Path) -> None:
    few = write(tmp_path / "a.txt", sentences(20)[0])
    with pytest.raises(
        DataError,
        match=r"a.txt: no word is in 100 or more .* of 20 sentences; want more sentences, or a",
    ):
        prepare_topics(tmp_path / "store", [few])
    with pytest.raises(
        DataError, match=r"empty.txt: has no sentence of 5 words or more, want one a line"
    ):
        prepare_topics(tmp_path / "store", [write(tmp_path / "empty.txt", ["too short"])])
    with pytest.raises(DataError, match="20 sentences remain for 100 topics; want more sentences"):
        prepare_topics(tmp_path / "store", [few], TopicConfig(min_count=1))
    assert not (tmp_path / "store").exists()
