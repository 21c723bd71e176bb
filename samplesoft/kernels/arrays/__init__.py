"""Checks and sorting of whole arrays; read in this order.

- ``elementwise_cuda``: numbers written, drawn, moved and averaged; the simplest kernels for a GPU.
- ``checks_cuda``: searches for what a function must refuse.
- ``search_cuda``: binary search among rising numbers.
- ``sort_ids_cuda``: runs of equal ids by a radix sort: count digits, sum the counts, move.
"""
