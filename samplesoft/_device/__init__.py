"""Where arrays lie and kernels run: on the processor, or on a GPU with CUDA; read in this order.

- `select`: checks a `device`, and chooses the class that works there (`select.twin`).
- `arrays`, ``arrays_cuda``: arrays that functions take, checked, and small work on them.
- ``draws_cuda``: uniforms for draws, and batches in parts that fit in memory.
- ``sort_ids_cuda``: equal ids brought together.
"""
