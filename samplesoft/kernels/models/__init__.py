"""Gates of an LSTM, and the steps of optimizers; read in this order.

- `optimizer_rows`: SGD, momentum, Adagrad and Adam over rows that have a gradient;
  ``optimizer_rows_cuda``: the same bodies, a thread for each number.
- `lstm_gates`: one step of an LSTM, forward and backward.
"""
