"""The executor: model files, tensors and products; torch is imported here and nowhere below."""
