"""The parts of docs/RESULTS.md, in the order in which they stand there, each from the result files alone."""
