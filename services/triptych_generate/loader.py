"""Loads a causal language model from a local Hugging Face directory; never a tokenizer."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

from triptych.errors import SetupError
from triptych_generate import attention, experts
from triptych_generate.families import check_config
from triptych_generate.native import Kernels, kernels_for
from triptych_generate.options import EngineOptions

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model in evaluation mode on its device, and what requests need to know of it.

    ``family`` is transformers' ``model_type``; ``max_positions`` what the model was built for, in
    tokens; ``kernels`` the compiled ones, where they are used.
    """

    model: nn.Module
    family: str
    device: torch.device
    dtype: torch.dtype
    vocab_size: int
    max_positions: int
    eos_token_ids: frozenset[int]
    kernels: Kernels | None


def load_model(options: EngineOptions) -> LoadedModel:
    """The model in ``options.model_dir``.

    Raises:
        SetupError: no such directory or file, a family that cannot be served, no such device.
    """
    config = _load_config(options.model_dir)
    check_config(config)
    device = _device(options.device)
    dtype = _DTYPES[options.dtype]
    transformers_logging.disable_progress_bar()
    attention.register()
    experts.register()
    model = _load_weights(options.model_dir, config, dtype).to(device).eval()
    model.requires_grad_(requires_grad=False)
    return LoadedModel(
        model=model,
        family=config.model_type,
        device=device,
        dtype=dtype,
        vocab_size=config.vocab_size,
        max_positions=config.max_position_embeddings,
        eos_token_ids=_eos_token_ids(options.model_dir, config.vocab_size),
        kernels=kernels_for(device, dtype) if options.use_kernels else None,
    )


def _load_config(model_dir: Path) -> Any:
    if not model_dir.is_dir():
        raise SetupError(f"model directory {model_dir} does not exist")
    if not (model_dir / "config.json").is_file():
        raise SetupError(f"model directory {model_dir} has no config.json")
    try:
        return AutoConfig.from_pretrained(model_dir, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, KeyError) as error:
        raise SetupError(f"{model_dir / 'config.json'} cannot be read: {error}") from error


def _load_weights(model_dir: Path, config: Any, dtype: torch.dtype) -> nn.Module:
    try:
        model, report = AutoModelForCausalLM.from_pretrained(
            model_dir,
            config=config,
            dtype=dtype,
            local_files_only=True,
            trust_remote_code=False,
            output_loading_info=True,
        )
    except (OSError, ValueError, RuntimeError, ImportError, SafetensorError) as error:
        raise SetupError(f"weights in {model_dir} cannot be loaded: {error}") from error
    missing = sorted(report["missing_keys"])
    if missing:
        raise SetupError(f"weights in {model_dir} lack {len(missing)} tensors, first {missing[0]}")
    loaded: nn.Module = model
    return loaded


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise SetupError(f"device {name} cannot be used: {str(error).splitlines()[0]}") from error
    return device


def _eos_token_ids(model_dir: Path, vocab_size: int) -> frozenset[int]:
    """From generation_config.json, else from config.json; none is possible.

    An id that has no logit, such as -1 for "none", is never sampled, and must not be masked either.
    """
    for name in ("generation_config.json", "config.json"):
        path = model_dir / name
        eos = json.loads(path.read_bytes()).get("eos_token_id") if path.is_file() else None
        if eos is not None:
            ids = eos if isinstance(eos, list) else [eos]
            return frozenset(token_id for token_id in ids if 0 <= token_id < vocab_size)
    return frozenset()
