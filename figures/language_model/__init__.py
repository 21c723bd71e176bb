"""The recurrent language model of the papers' experiments on the Penn Treebank."""
