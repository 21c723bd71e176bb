"""Where arrays lie and kernels run: on the processor, or on a GPU with CUDA."""
