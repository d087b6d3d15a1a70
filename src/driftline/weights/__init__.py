"""Weights between trainer and engine: publisher, assembly with digests, vLLM backend, export."""
