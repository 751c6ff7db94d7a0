"""Which models the engine can serve: those whose paged forward was compared with a plain one."""

from typing import Any

from triptych.errors import SetupError

#: ``model_type`` values whose output equals a plain transformers forward.
SUPPORTED_FAMILIES = frozenset(
    {
        "cohere2",
        "deepseek_v3",
        "gemma2",
        "gemma3_text",
        "gemma4_text",
        "glm4",
        "gpt2",
        "gpt_neox",
        "gpt_oss",
        "granite",
        "llama",
        "mistral",
        "mixtral",
        "olmo2",
        "phi",
        "phi3",
        "qwen2",
        "qwen3",
        "qwen3_moe",
        "smollm3",
    }
)
#: Why others are refused, where more can be said than that nobody has compared them.
_REASONS = {
    "falcon": "its attention does not go through transformers' attention interface",
    "llama4": "its chunked attention masks are not supported",
    "qwen3_next": "its recurrent layers are not supported",
}
_LAYER_TYPES = frozenset({"full_attention", "sliding_attention"})
#: RoPE kinds whose factor depends on the longest sequence in the batch.
_BATCH_DEPENDENT_ROPES = frozenset({"dynamic", "longrope"})


def check_config(config: Any) -> None:
    """Refuse a transformers configuration that the engine would serve wrongly.

    Raises:
        SetupError: with the reason.
    """
    family = config.model_type
    _check_layer_types(config)
    _check_rope(config)
    if family not in SUPPORTED_FAMILIES:
        reason = _REASONS.get(family, f"supported are {', '.join(sorted(SUPPORTED_FAMILIES))}")
        raise SetupError(f"models of type {family} cannot be served: {reason}")


def _check_layer_types(config: Any) -> None:
    strange = sorted(set(getattr(config, "layer_types", None) or ()) - _LAYER_TYPES)
    if strange:
        raise SetupError(
            f"{config.model_type} has {', '.join(strange)} layers; "
            f"only full and sliding attention can be served"
        )


def _check_rope(config: Any) -> None:
    for kind in sorted(_rope_types(config)):
        if kind in _BATCH_DEPENDENT_ROPES:
            raise SetupError(
                f"{config.model_type} uses {kind} RoPE, whose angles depend on the longest "
                f"sequence in a batch; it cannot be served"
            )


def _rope_types(config: Any) -> set[str]:
    """All RoPE kinds of a configuration; some models have one per layer type."""
    parameters = getattr(config, "rope_parameters", None) or {}
    nested = [value for value in parameters.values() if isinstance(value, dict)]
    return {str(entry.get("rope_type", "default")) for entry in nested or [parameters]}
