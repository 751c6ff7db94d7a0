"""A gateway per scripted answer, in one process: prints their addresses, ends with stdin."""

import asyncio
import contextlib
import json
import sys
from pathlib import Path

from browser.scripts import ANSWERS, Answer
from support.scripted import ScriptedGenerate, encoded, scripted_stack, text_panels
from triptych.errors import InternalError
from triptych.logprobs import pack_logprobs
from triptych.models import resolve
from triptych.wire import ChoiceDelta, GenerateDelta, GenerateRequest

#: Logprobs of the sampled tokens, again and again; and how much lower each further candidate is.
_OWN = (-0.02, -0.5, -3.0, -0.1, -1.5, -6.0)
_STEP = 0.7


class ScriptedScores(ScriptedGenerate):
    """Sends the answer with as many candidates as are asked for."""

    def __init__(self, answer: Answer, token_ids: list[int]) -> None:
        super().__init__(token_ids, answer.finish_reason)
        self._ids = token_ids
        self._answer = answer

    def _delta(self, asked: GenerateRequest, position: int) -> GenerateDelta:
        if position == self._answer.breaks_after:
            raise InternalError("the worker broke in its fifth step")
        token_id, own = self._ids[position], _OWN[position % len(_OWN)]
        num = asked.sampling_params.logprobs or 0
        others = [
            ((token_id + 1 + i) % 49152, own - _STEP * (i + 1), i + 2) for i in range(num - 1)
        ]
        is_last = position == len(self._ids) - 1
        choice = ChoiceDelta(
            index=0,
            token_ids=[token_id],
            logprobs=pack_logprobs([[(token_id, own, 1), *others]]),
            finish_reason=self._answer.finish_reason if is_last else None,
        )
        return GenerateDelta(request_id=asked.request_id or "", choices=[choice])


async def main() -> None:
    model_dir: Path = resolve("smollm2").directory
    texts = text_panels(model_dir, "qwen3")
    async with contextlib.AsyncExitStack() as stacks:
        addresses = {}
        for name, answer in ANSWERS.items():
            token_ids = encoded(model_dir, answer.text)[: answer.num_tokens]
            generate = ScriptedScores(answer, token_ids)
            stack = await stacks.enter_async_context(scripted_stack(texts, generate))
            addresses[name] = stack.gateway
        sys.stdout.write(json.dumps(addresses) + "\n")
        sys.stdout.flush()
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main())
