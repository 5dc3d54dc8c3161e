"""P29: packed sequences beside padded ones in float64: states, embeddings and all gradients of each packable encoder.

Sequences of one token and of the longest crop are among them, and a dummy tail that fills a fixed shape.
"""

from _measure import report

from tests.encoders.test_packed import (
    LENGTHS,
    PACKED_TEXTS,
    PACKED_VOCABULARIES,
    labeled_batch,
    outputs,
    protein_encoder,
    text_encoder,
    without_dropout,
)

GOAL = 1e-10


def main() -> None:
    encoders = {name: (text_encoder, name) for name in PACKED_TEXTS}
    encoders |= {f"{name} proteins": (protein_encoder, name) for name in PACKED_VOCABULARIES}
    for name, (build, kind) in encoders.items():
        differences = []
        for pooling in ("mean", "cls"):
            encoder, ids, mask_id = build(kind, pooling)
            without_dropout(encoder)
            batch = labeled_batch(LENGTHS, ids, mask_id)
            padded = outputs(encoder, batch, is_packed=False)
            for options in ({}, {"num_tokens": 2 * sum(LENGTHS)}):
                packed = outputs(encoder, batch, is_packed=True, **options)
                pairs = zip(packed, padded, strict=True)
                differences.append(
                    max(float((ours - theirs).abs().max()) for ours, theirs in pairs)
                )
        largest = max(differences)
        ratio = GOAL / max(largest, 1e-16)
        note = (
            f"largest difference {largest:.1e}, mean and first-token pooling, {len(padded)} tensors"
        )
        report("P29", f"{name}, padded", ratio, ratio, note)


if __name__ == "__main__":
    main()
