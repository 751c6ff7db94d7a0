"""What a body may be refused for that is valid by the OpenAPI documents."""

import re

#: Refusals that no schema can say, by the words of the error.
RULES = {
    # between two values of one body
    "min_tokens is at most max_tokens": r"min_tokens is .* at most max_tokens",
    "min_tokens fits the room": r"min_tokens is .* leaves room",
    "best_of is n": r"best_of is .* only the value of n",
    "choice_index is below the last choice": r"choice_index is \d+; it must be between 0 and",
    "resume_from is below the ids": r"resume_from is \d+; it must be between 0 and",
    "one choice is resumed": r"resume_from continues one choice",
    "output fits max_tokens": r"resume_from is \d+; it must be at most max_tokens",
    "a named function is among the tools": r"tool_choice names",
    "functions that are required have plain names": r"tool_choice can require functions",
    "as many scores as tokens": r"has \d+ positions",
    "scores are those of the tokens": r"scores .*, .* is \d+",
    "as many prompts as answers": r"has \d+ entries, there are \d+",
    "each choice once": r"as in an earlier choice",
    "echo has the prompt": r"echo needs prompt_token_ids",
    "texts are bounded together": r"has [\d,]+ characters, limit is",
    # of this deployment
    "ids are in the vocabulary": r"is \d+; token ids are between 0 and",
    "candidates are bounded": r"(logprobs|candidates).*(at most \d+|limit is \d+)",
    "text fits the context": r"prompt has [\d,]+ (tokens|characters), limit is",
    "output fits the context": r"it must be at most the context|has [\d,]+ ids, limit is",
    "ids as keys have 32 bits": r"<= 2147483647 - at `key`",
    "lists of ids fit the vocabulary": r"(is|has) [\d,]+ entries; it must be at most",
    "templates of requests are off": r"chat_template is not allowed",
    "there is a response template": r"tool_choice can be none or auto here",
    "the template takes the messages": r"the chat template refused",
    # of another language than JSON
    "schemas can be held": r"(\.json|guided_json|\.schema)\b[^ ]* (can|is no schema|has|must be)",
    "text is JSON": r"is not valid JSON",
    "state is derender's": r"stream_state",
    "a checksum holds": r"sha256",
}
_RULES = [re.compile(pattern) for pattern in RULES.values()]


def is_by_rule(message: str) -> bool:
    """Whether an error is of a kind that no schema can say."""
    return any(rule.search(message) for rule in _RULES)
