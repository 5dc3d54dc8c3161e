import numpy as np
import pyarrow as pa
import pytest

from raybio.methods.sppt.proteins.formats.residues import PROTEIN_SCHEMA, clean
from raybio.store.quarantine import Quarantine
from raybio.store.ragged import Ragged

ALPHABET = np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZacdxz*-1 .\xff", dtype=np.uint8)


def records(sequences, keys=None):
    keys = keys or [f"p{number}" for number in range(len(sequences))]
    lines = range(10, 10 + len(sequences))
    columns = [
        pa.array(keys, pa.string()),
        pa.array([""] * len(keys), pa.string()),
        pa.array(sequences, pa.large_binary()),
        pa.array(lines, pa.int64()),
    ]
    return pa.record_batch(columns, schema=PROTEIN_SCHEMA)


def cleaned_slowly(sequences, strip_stop, max_length):
    """The rule, a letter at a time: kept (number, sequence), and the reasons of skipped ones."""
    kept, reasons = [], {}
    for number, sequence in enumerate(sequences):
        text = (
            sequence.decode("latin-1").upper() if b"\xff" not in sequence else "?" * len(sequence)
        )
        if strip_stop and text.endswith("*"):
            text = text[:-1]
        illegal = [letter for letter in text if not ("A" <= letter <= "Z")]
        if not text or sequence == b"NaN":
            reasons[number] = "no sequence"
        elif len(text) > max_length:
            reasons[number] = f"sequence longer than {max_length:,} letters"
        elif illegal:
            is_stop = illegal[0] == "*"
            reasons[number] = "stop" if is_stop else "letter that is not an amino acid"
        else:
            kept.append((number, text.encode()))
    return kept, reasons


@pytest.mark.parametrize("strip_stop", [False, True])
def test_cleaning_a_block_equals_cleaning_it_a_letter_at_a_time(strip_stop):
    rng = np.random.default_rng(0)
    weights = np.array([20.0] * 26 + [3.0] * 5 + [1.5] + [0.1] * 5)
    sequences = [
        rng.choice(ALPHABET, int(rng.integers(0, 14)), p=weights / weights.sum()).tobytes()
        for _ in range(2000)
    ] + [b"", b"*", b"**", b"NaN", b"A*"]
    quarantine = Quarantine()
    batch = clean(records(sequences), quarantine, "x.fa", strip_stop=strip_stop, max_length=12)
    kept, reasons = cleaned_slowly(sequences, strip_stop, 12)
    assert batch.column("sequence").to_pylist() == [sequence for _, sequence in kept]
    assert batch.column("key").to_pylist() == [f"p{number}" for number, _ in kept]
    assert batch.column("line").to_pylist() == [number + 10 for number, _ in kept]
    counted = {
        reason.split(" symbol")[0]: count for reason, count in quarantine.count_by_reason.items()
    }
    wanted = list(reasons.values())
    assert counted == {reason: wanted.count(reason) for reason in set(wanted)}


def test_every_letter_of_the_iupac_alphabet_is_kept_as_it_is():
    batch = clean(
        records([b"ABCDEFGHIJKLMNOPQRSTUVWXYZ"]),
        Quarantine(),
        "x.fa",
        strip_stop=False,
        max_length=30,
    )
    assert batch.column("sequence").to_pylist() == [b"ABCDEFGHIJKLMNOPQRSTUVWXYZ"]


def test_the_message_names_record_letter_and_line():
    quarantine = Quarantine()
    clean(
        records([b"ACD", b"AC7"], ["good", "bad"]),
        quarantine,
        "x.fa",
        strip_stop=False,
        max_length=30,
    )
    (example,) = quarantine.examples_by_reason["letter that is not an amino acid"]
    assert str(example) == "x.fa:11 (bad: '7')"


def test_records_without_an_id_are_set_aside_whatever_stands_for_nothing():
    quarantine = Quarantine()
    keys = ["", "NaN", "null", "N/A", "ok"]
    batch = clean(records([b"AC"] * 5, keys), quarantine, "x.fa", strip_stop=False, max_length=30)
    assert batch.column("key").to_pylist() == ["ok"]
    assert quarantine.count_by_reason["no id"] == 4


def test_ragged_and_arrow_are_two_views_of_the_same_bytes():
    array = pa.array([b"AC", b"", b"DEF", b"G"], pa.large_binary())
    ragged = Ragged.of(array.slice(1, 3))
    assert ragged.value_T.tobytes() == b"DEFG"
    assert ragged.indptr_N1.tolist() == [0, 0, 3, 4]
    assert ragged.to_arrow().to_pylist() == [b"", b"DEF", b"G"]
