"""Link retrieval by embeddings in one call."""

import torch

from raybio.methods.sppt.link_retrieval import LinkRetrieval, embedding_scores, rank_links


def link_retrieval(
    embedding_ND, indptr, indices, *, metric="euclidean", score_dtype=torch.float64, **options
) -> LinkRetrieval:
    in_group = embedding_scores(embedding_ND, metric, score_dtype)
    return rank_links(in_group, indptr, indices, **options)
