"""generate: token ids in, token ids and integer logprobs out; no tokenizer."""
