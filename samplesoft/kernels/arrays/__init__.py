"""Checks and sorting of whole arrays; read in this order.

- ``elementwise_cuda``: numbers written, drawn, moved and averaged; the simplest kernels for a GPU.
- ``checks_cuda``: searches for what a function must refuse.
- ``search_cuda``: binary search among rising numbers.
- `sort_ids`: runs of equal ids, so that one thread adds up all rows of a class.
- ``sort_ids_cuda``: the same by a radix sort: count digits, sum the counts, move.
"""
