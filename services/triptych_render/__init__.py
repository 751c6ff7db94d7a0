"""render: an OpenAI request in, token ids and integer sampling parameters out."""
