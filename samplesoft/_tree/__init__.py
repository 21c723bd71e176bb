"""The kernel tree, of which `samplesoft.tree` is the public face."""
