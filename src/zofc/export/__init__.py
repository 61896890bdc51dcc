"""Bundles: a trained model as ONNX graphs, with which it predicts and learns where there is no torch."""
