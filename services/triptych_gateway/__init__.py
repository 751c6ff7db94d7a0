"""gateway: chains render, generate and derender for OpenAI clients."""
