"""Work on a CUDA device that several parts of the library share."""
