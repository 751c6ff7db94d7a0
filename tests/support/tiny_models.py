"""Random models of every supported family, small enough to load in a moment."""

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils import logging

VOCAB_SIZE = 199
MAX_POSITIONS = 512
#: Shorter than the tests' prompts, so that windows matter.
WINDOW = 24
#: The token of ``make_poisoned_model``.
POISON = 13

_COMMON: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": MAX_POSITIONS,
    "initializer_range": 0.2,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
_EXPERTS: dict[str, Any] = {"num_experts_per_tok": 2, "num_local_experts": 4}

#: What each family adds to the common configuration.
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {},
    "qwen3": {"head_dim": 32},
    "qwen3_moe": {
        "head_dim": 16,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
    },
    "mistral": {"sliding_window": WINDOW},
    "mixtral": {**_EXPERTS, "sliding_window": None},
    "phi": {},
    "phi3": {"sliding_window": WINDOW},
    "gemma2": {
        "head_dim": 16,
        "sliding_window": WINDOW,
        "attn_logit_softcapping": 5.0,
        "final_logit_softcapping": 30.0,
        "query_pre_attn_scalar": 16,
    },
    "gemma3_text": {
        "head_dim": 16,
        "sliding_window": WINDOW,
        "attn_logit_softcapping": 5.0,
        "final_logit_softcapping": 30.0,
        "query_pre_attn_scalar": 16,
    },
    "gemma4_text": {
        "head_dim": 16,
        "global_head_dim": 32,
        "sliding_window": WINDOW,
        "layer_types": ["sliding_attention", "full_attention"],
        "vocab_size_per_layer_input": VOCAB_SIZE,
        "hidden_size_per_layer_input": 8,
        "num_kv_shared_layers": 0,
    },
    "gpt_oss": {**_EXPERTS, "head_dim": 16, "sliding_window": WINDOW},
    "deepseek_v3": {
        "num_key_value_heads": 4,
        "q_lora_rank": 16,
        "kv_lora_rank": 16,
        "qk_nope_head_dim": 8,
        "qk_rope_head_dim": 8,
        "v_head_dim": 12,
        "moe_intermediate_size": 32,
        "n_routed_experts": 4,
        "n_shared_experts": 1,
        "n_group": 2,
        "topk_group": 1,
        "num_experts_per_tok": 2,
        "first_k_dense_replace": 1,
    },
    "olmo2": {},
    "granite": {"attention_multiplier": 0.25},
    "cohere2": {"sliding_window": WINDOW},
    "smollm3": {"no_rope_layers": [1, 0]},
    "glm4": {"head_dim": 16},
    "gpt2": {},
    "gpt_neox": {},
}


def tiny_config(family: str, **changes: Any) -> Any:
    """A transformers configuration of ``family`` with the tests' sizes."""
    return AutoConfig.for_model(family, **{**_COMMON, **FAMILIES.get(family, {}), **changes})


def make_tiny_model(
    family: str, directory: Path, *, eos_token_id: int | list[int] | None = None, **changes: Any
) -> Path:
    """Save a random model of ``family`` in ``directory``; the same one every time."""
    logging.disable_progress_bar()
    torch.manual_seed(5)
    model = AutoModelForCausalLM.from_config(tiny_config(family, **changes)).eval()
    _spread_constants(model)
    model.generation_config.eos_token_id = eos_token_id
    model.save_pretrained(directory)
    return directory


def make_poisoned_model(directory: Path) -> Path:
    """A llama that gives NaN wherever the token ``POISON`` was seen."""
    make_tiny_model("llama", directory, tie_word_embeddings=False)
    path = directory / "model.safetensors"
    tensors = load_file(path)
    tensors["model.embed_tokens.weight"][POISON] = float("nan")
    save_file(tensors, path, metadata={"format": "pt"})
    return directory


def plain_model(directory: Path, dtype: torch.dtype = torch.float32) -> Any:
    """The model as transformers runs it: the reference."""
    return AutoModelForCausalLM.from_pretrained(directory, dtype=dtype).eval()


def _spread_constants(model: nn.Module) -> None:
    """Random values for what starts as all zeros or ones, so that leaving it out shows."""
    for parameter in model.parameters():
        values = parameter.detach()
        if values.numel() > 1 and bool((values == values.flatten()[0]).all()):
            nn.init.normal_(parameter, mean=values.flatten()[0].item(), std=0.1)
