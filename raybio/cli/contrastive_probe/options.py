"""Options that the commands of Contrastive-Probe share."""

BENCHMARK_HELP = "folder of the benchmark: MedLAMA's files, or a source of BioLAMA"
POOLING_HELP = (
    "pooling of a text's states: cls (the paper) or mean; default: from the model's folder, "
    "else cls"
)
QUERIES_HELP = "size of a fixed random sample of queries of each relation; default: all"
