"""``triptych bench``: load on a running OpenAI-compatible server, and what it answers how fast."""
