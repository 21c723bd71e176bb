"""Losses of the softmax layer, forward and backward by hand."""
