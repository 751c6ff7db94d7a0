"""What a generate worker says of itself over gRPC: its load, its version, that it can resume."""

from pathlib import Path

from support.generate_runs import answer, ask, front_doors, running_service
from support.tiny_models import make_tiny_model
from triptych.v1 import generate_pb2
from triptych.version import VERSION


async def test_get_info_tells_load_and_that_requests_can_be_resumed(tmp_path: Path) -> None:
    async with (
        running_service(make_tiny_model("llama", tmp_path)) as service,
        front_doors(service) as doors,
    ):
        idle = await doors.grpc.GetInfo(generate_pb2.GetInfoRequest())
        await answer(service, ask(range(5), max_tokens=4))
        after = await doors.grpc.GetInfo(generate_pb2.GetInfoRequest())
    assert idle.can_resume
    assert idle.version == VERSION
    assert idle.HasField("load")
    assert (idle.load.num_running, idle.load.num_waiting, idle.load.num_steps) == (0, 0, 0)
    assert idle.load.num_free_blocks == idle.load.num_blocks > 0
    assert after.load.num_steps == 4
