"""The TypeScript and Go frontends, built with their own tools, print what the Python one prints."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from examples.runs import EXAMPLES, output_tokens, python, run
from support.replies import generate
from support.stack import Stack

pytestmark = [pytest.mark.model, pytest.mark.toolchain, pytest.mark.xdist_group("stack")]

TYPESCRIPT = EXAMPLES / "typescript"
GO = EXAMPLES / "go"
#: Where Debian puts the sources of Go packages.
GO_PACKAGES = Path("/usr/share/gocode")
GO_MODULE = "triptych.example/frontend"
#: Arguments of the frontends; the second answer has characters that are spread over tokens.
RUNS = {
    "plain": ["The capital of France is"],
    "bytes": ["🙂 🙃 🙂 🙃 🙂"],
    "stop": ["--stop=6", "--max-tokens=4000", "1, 2, 3,"],  # cancelled after 8 tokens
}


@pytest.fixture(scope="session")
def typescript() -> list[str]:
    """The command of the TypeScript frontend, type-checked and compiled."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("needs node 20 or newer, with npm")
    if not (TYPESCRIPT / "node_modules").is_dir():
        pytest.skip("needs its packages: make test-examples")
    build(["npm", "run", "build"], TYPESCRIPT)
    return ["node", str(TYPESCRIPT / "dist" / "frontend.js")]


@pytest.fixture(scope="session")
def go(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The command of the Go frontend, built from Debian's packages: nothing is downloaded."""
    needed = ("go", "protoc", "protoc-gen-go", "protoc-gen-go-grpc")
    missing = [tool for tool in needed if shutil.which(tool) is None]
    sources = GO_PACKAGES / "src/google.golang.org"
    missing += [
        f"{name}'s sources" for name in ("grpc", "protobuf") if not (sources / name).is_dir()
    ]
    if missing:
        pytest.skip(f"needs {', '.join(missing)}: examples/README.md says which Debian packages")
    workspace = tmp_path_factory.mktemp("go")
    folder = workspace / "src" / GO_MODULE
    shutil.copytree(GO, folder)
    settings = {
        "GO111MODULE": "off",
        "GOFLAGS": "",
        "GOPATH": f"{workspace}:{GO_PACKAGES}",
        "PROTO": str(EXAMPLES.parent / "proto"),
    }
    for command in (["generate"], ["vet", "-tags=debian"], ["build", "-tags=debian"]):
        build(["go", *command], folder, settings)
    return [str(folder / "frontend")]


def build(command: list[str], folder: Path, settings: dict[str, str] | None = None) -> None:
    done = subprocess.run(
        command,
        check=False,
        cwd=folder,
        env=os.environ | (settings or {}),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout


@pytest.fixture(params=["typescript", "go"])
def frontend(request: pytest.FixtureRequest, stack: Stack, smollm2_dir: Path) -> list[str]:
    """A frontend's command, with the addresses that it needs."""
    language = request.param
    command: list[str] = request.getfixturevalue(language)
    panels = {
        "typescript": [f"--tokenizer={smollm2_dir / 'tokenizer.json'}"],
        "go": [f"--render={stack.render}", f"--derender={stack.derender}"],
    }
    return [*command, f"--generate={stack.generate_grpc}", *panels[language]]


@pytest.mark.parametrize("name", RUNS)
def test_frontend_prints_what_the_python_one_prints(
    frontend: list[str], stack: Stack, smollm2_dir: Path, name: str
) -> None:
    before = output_tokens(stack)
    done = run([*frontend, *RUNS[name]])
    assert (done.returncode, done.stderr) == (0, "")
    assert output_tokens(stack) - before < 100
    tokenizer = f"--tokenizer={smollm2_dir / 'tokenizer.json'}"
    address = f"--generate={stack.generate_grpc}"
    assert done.stdout == python("frontend.py", address, tokenizer, *RUNS[name])


def test_frontend_says_what_generate_refused(frontend: list[str]) -> None:
    done = run([*frontend, ""])
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.lower().replace("_", "") == (
        "generate: invalidargument: tokenids is empty; at least 1 is needed\n"
    )


def test_server_sent_events_give_what_the_whole_answer_has(
    typescript: list[str], stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GENERATE", stack.generate)
    prompt = [504, 3575, 282, 4649, 314]
    script = TYPESCRIPT / "dist" / "sse.js"
    done = run(["node", script, *map(str, prompt)])
    answer = generate(stack, prompt, temperature=0, max_tokens=8, logprobs=2)
    *lines, usage = done.stdout.splitlines()
    assert usage == "8 tokens"
    content = answer["choices"][0]["logprobs"]["content"]
    for line, entry in zip(lines, content, strict=True):
        token_id, _, rank, *best = line.split()
        assert (int(token_id), int(rank)) == (entry["token_id"], entry["rank"])
        found = [(int(each.split(":")[0]), float(each.split(":")[1])) for each in best]
        assert found == [(each["token_id"], each["logprob"]) for each in entry["top_logprobs"]]


def test_server_sent_events_say_what_generate_refused(
    typescript: list[str], stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GENERATE", stack.generate)
    done = run(["node", TYPESCRIPT / "dist" / "sse.js"])
    assert (done.returncode, done.stderr) == (1, "400: token_ids is empty; at least 1 is needed\n")
