"""What the engine uses on a CUDA device in place of the CPU's packing, attention and steps."""

from collections.abc import Callable

import torch
from torch import Tensor

from triptych.errors import SetupError
from triptych_generate.kernel_steps import KernelSteps
from triptych_generate.kv_cache import KvCache
from triptych_generate.loader import LoadedModel
from triptych_generate.runner import MakeRunner, Runner


def use_cuda(loaded: LoadedModel, *, max_num_sequences: int, use_graphs: bool) -> MakeRunner:
    """Install the batch-invariant operators; what makes runners on their kernels.

    Experts are chosen on the host in each step, so models that have some are never recorded.

    Raises:
        SetupError: Triton is not installed.
    """
    try:
        from triptych_generate import invariant_ops, triton_attention
    except ImportError as error:
        raise SetupError(
            "device cuda needs the package triton, which CUDA builds of torch bring; "
            "is this a CUDA build?"
        ) from error
    if loaded.device.index is not None:
        torch.cuda.set_device(loaded.device)  # of this thread, which also runs the steps
    invariant_ops.install()
    has_experts = bool(loaded.model._can_set_experts_implementation())  # type: ignore[operator]

    def make_runner(loaded: LoadedModel, cache: KvCache) -> Runner:
        steps = KernelSteps(
            loaded.model,
            cache,
            triton_attention.paged_attention,
            device=loaded.device,
            max_num_sequences=max_num_sequences,
            capture=CudaGraphs() if use_graphs and not has_experts else None,
        )
        return Runner(loaded, cache, steps)

    return make_runner


class CudaGraphs:
    """Captures calls as CUDA graphs that share their memory; no two may run at once."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, run: Callable[[], Tensor]) -> Callable[[], Tensor]:
        """Run once to compile kernels and fill caches, as capturing demands, then record.

        Raises:
            SetupError: something in the call cannot be recorded.
        """
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            run()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, pool=self._pool):
                out = run()
        except RuntimeError as error:
            raise SetupError(
                f"a decode step cannot be recorded as a CUDA graph ({error}); "
                f"start with --no-cuda-graphs"
            ) from error

        def replay() -> Tensor:
            graph.replay()
            return out

        return replay
