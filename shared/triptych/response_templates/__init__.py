"""Response templates: which parts of a model's output are reasoning, tool calls and content."""
