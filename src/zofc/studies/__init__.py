"""Studies: grids of recipes whose runs, side by side, answer a question."""
