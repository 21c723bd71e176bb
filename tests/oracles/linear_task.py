"""A small task for the trainer, and what a task must have: linear regression by minibatches."""

import numpy as np

from samplesoft.training import Task


class LinearTask(Task):
    """Fit ``y = X w + b`` with a carried state and a sum that drifts, as a sampler's do."""

    def __init__(self, seed=0, dim=7, num_steps=9, batch=8):
        rng = np.random.default_rng(seed)
        self.seed, self.num_steps, self.num_examples = seed, num_steps, batch
        self.x = rng.standard_normal((60, dim)).astype(np.float32)
        noise = 0.1 * rng.standard_normal(60).astype(np.float32)
        self.y = self.x @ rng.standard_normal(dim).astype(np.float32) + noise
        self.parameters = {"w": np.zeros(dim, np.float32), "b": np.zeros(1, np.float32)}
        self.carried = np.zeros(1, np.float32)
        self.drifting = np.float32(0.0)  # the sum of w, updated and not computed
        self.before = self.parameters["w"].copy()

    def config(self):
        return {"model": "linear", "seed": self.seed, "dim": len(self.parameters["w"])}

    def step(self, epoch, index):
        rng = np.random.default_rng((self.seed, epoch, index))
        rows = rng.integers(0, 50, self.num_examples)
        x = self.x[rows]
        residual = self.predict(x) + 1e-2 * self.carried + 1e-2 * self.drifting - self.y[rows]
        self.carried = residual[:1].copy()
        gradients = {"w": x.T @ residual / len(x), "b": residual.mean(keepdims=True)}
        return float(0.5 * np.mean(residual**2)), gradients

    def predict(self, x):
        return x @ self.parameters["w"] + self.parameters["b"]

    def after_step(self, gradients):
        for new, old in zip(self.parameters["w"], self.before, strict=True):
            self.drifting += new - old
        self.before = self.parameters["w"].copy()

    def refresh(self):
        self.drifting = self.parameters["w"].sum()
        self.before = self.parameters["w"].copy()

    def validate(self):
        residual = self.predict(self.x[50:]) - self.y[50:]
        return {"loss": float(0.5 * np.mean(residual**2)), "bias": float(residual.mean())}

    def examples(self):
        return {"x": self.x[50:]}

    def state(self):
        return {"carried": self.carried}

    def load_state(self, state):
        self.carried = state["carried"]
