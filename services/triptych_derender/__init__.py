"""derender: token ids and integer logprobs in, OpenAI replies out."""
