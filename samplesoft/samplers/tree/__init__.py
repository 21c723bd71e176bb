"""The kernel tree: sums of features over classes, drawn from and updated."""
