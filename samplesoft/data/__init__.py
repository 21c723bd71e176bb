"""Data from files: texts and their vocabularies, word vectors from counts, labelled examples."""

from samplesoft.data.embeddings import Embeddings, load_embeddings, load_logits
from samplesoft.data.interactions import load_interactions
from samplesoft.data.ppmi import examples_from_corpus, ppmi_svd
from samplesoft.data.text import EOS, UNK, read_tokens, stdlib_tokens
from samplesoft.data.xml_repository import SparseExamples, load_xml_repository

__all__ = [
    "EOS",
    "UNK",
    "Embeddings",
    "SparseExamples",
    "examples_from_corpus",
    "load_embeddings",
    "load_interactions",
    "load_logits",
    "load_xml_repository",
    "ppmi_svd",
    "read_tokens",
    "stdlib_tokens",
]
