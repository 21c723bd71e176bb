"""Real input: text, vocabularies, embeddings from counts, and loaders of files that users hold."""

from samplesoft.data.embeddings import Embeddings, examples_from_corpus
from samplesoft.data.interactions import load_interactions
from samplesoft.data.loaders import load_embeddings, load_logits
from samplesoft.data.ppmi import ppmi_svd
from samplesoft.data.text import EOS, read_tokens, stdlib_tokens
from samplesoft.data.vocabulary import UNK, Vocabulary, build_vocabulary
from samplesoft.data.xml_repository import SparseExamples, load_xml_repository

__all__ = [
    "EOS",
    "UNK",
    "Embeddings",
    "SparseExamples",
    "Vocabulary",
    "build_vocabulary",
    "examples_from_corpus",
    "load_embeddings",
    "load_interactions",
    "load_logits",
    "load_xml_repository",
    "ppmi_svd",
    "read_tokens",
    "stdlib_tokens",
]
