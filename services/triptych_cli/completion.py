"""``triptych completion``: a script that completes commands, flags and values without Python.

It is made from the same flags as the help, so it says what this version takes.
"""

from collections.abc import Iterator
from typing import ClassVar, Literal

from pydantic import Field
from pydantic_settings import BaseSettings, CliPositionalArg

from triptych.flags import Flag, flags_of
from triptych.settings import settings_config
from triptych_cli.main import COMMANDS

Shell = Literal["bash", "zsh"]


class CompletionSettings(BaseSettings):
    """Print a script that completes commands, options and values in a shell."""

    model_config = settings_config("TRIPTYCH_COMPLETION_", "completion")
    flag_group: ClassVar[str] = "shell"
    flag_examples: ClassVar[tuple[str, ...]] = (
        'eval "$(triptych completion bash)"      # this shell; in ~/.bashrc: every one',
        'triptych completion zsh > "${fpath[1]}/_triptych"',
    )

    shell: CliPositionalArg[Shell] = Field(description="whose script")


def main(settings: CompletionSettings) -> int:
    print(bash_script() if settings.shell == "bash" else zsh_script())
    return 0


def bash_script() -> str:
    """A script for bash 3.2 and newer; ``=`` is a word of its own there."""
    cases = [line for name in COMMANDS for line in _bash_cases(name)]
    return _BASH.format(commands=" ".join(COMMANDS), cases="\n".join(cases))


def zsh_script() -> str:
    """A script for zsh, to be evaluated after ``compinit`` or found by it as ``_triptych``."""
    commands = [_quoted(f"{name}:{command.text}") for name, command in COMMANDS.items()]
    cases = [line for name in COMMANDS for line in _zsh_case(name)]
    return _ZSH.format(commands="\n      ".join(commands), cases="\n".join(cases))


def _flags(command: str) -> list[Flag]:
    return flags_of(COMMANDS[command].settings_class())


def _bash_cases(command: str) -> Iterator[str]:
    """Which words and files may stand after a flag, and what may stand elsewhere."""
    free, names, words, paths = [], ["--help"], "", ""
    for flag in _flags(command):
        if flag.is_positional:
            words, paths = " ".join(flag.words), "1" if flag.takes_path else ""
            continue
        names.extend(flag.names)
        if flag.is_switch:
            continue
        if flag.words or flag.takes_path:
            yield _bash_case(f"{command} {flag.name}", words=flag.words, paths=flag.takes_path)
        else:
            free.append(f'"{command} {flag.name}"')
    if free:
        yield f"    {'|'.join(free)}) return ;;"
    yield f'    "{command} "*) flags="{" ".join(names)}"; words="{words}"; paths="{paths}" ;;'


def _bash_case(pattern: str, *, words: tuple[str, ...], paths: bool) -> str:
    return f'    "{pattern}") words="{" ".join(words)}"; paths="{"1" if paths else ""}" ;;'


def _zsh_case(command: str) -> Iterator[str]:
    yield f"    {command})"
    yield "      _arguments \\"
    yield "        '(- *)'{-h,--help}'[show the help]' \\"
    specs = [spec for flag in _flags(command) for spec in _zsh_specs(flag)]
    yield from (f"        {_quoted(spec)} \\" for spec in specs)
    yield "        && return ;;"


def _zsh_specs(flag: Flag) -> Iterator[str]:
    """What ``_arguments`` is told of a flag."""
    text = "".join("\\" + each if each in "[]:\\" else each for each in flag.text)
    value = f":{flag.metavar}:{_zsh_action(flag)}"
    if flag.is_positional:
        yield ("1" if flag.is_required else "1:") + value
    elif flag.is_switch:
        yield from (f"{name}[{text}]" for name in flag.names)
    else:
        yield f"{flag.name}=[{text}]{value}"


def _zsh_action(flag: Flag) -> str:
    words = " ".join(word.replace(":", "\\:") for word in flag.words)
    if flag.words and flag.takes_path:
        return f" _triptych_or_file {words}"
    if flag.words:
        return f"({words})"
    return "_files" if flag.takes_path else " "


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


_BASH = """\
# bash completion of triptych: eval "$(triptych completion bash)"
_triptych() {{
  local cur="${{COMP_WORDS[COMP_CWORD]}}" prev="${{COMP_WORDS[COMP_CWORD-1]}}"
  local flags="" words="" paths="" IFS=$' \\t\\n'
  COMPREPLY=()
  if (( COMP_CWORD == 1 )); then
    COMPREPLY=($(compgen -W "{commands}" -- "$cur"))
    return
  fi
  if [[ $cur == "=" ]]; then
    cur=""
  elif [[ $prev == "=" ]]; then
    prev="${{COMP_WORDS[COMP_CWORD-2]}}"
  fi
  case "${{COMP_WORDS[1]}} $prev" in
{cases}
  esac
  if [[ $cur == -* || -z $words$paths ]]; then
    COMPREPLY=($(compgen -W "$flags" -- "$cur"))
    return
  fi
  COMPREPLY=($(compgen -W "$words" -- "$cur"))
  if [[ -n $paths ]]; then
    IFS=$'\\n'
    COMPREPLY+=($(compgen -f -- "$cur"))
    compopt -o filenames 2>/dev/null
  fi
}}
complete -F _triptych triptych"""

_ZSH = """\
#compdef triptych
# zsh completion of triptych: triptych completion zsh > "${{fpath[1]}}/_triptych"
_triptych_or_file() {{
  _alternative "words:name:($*)" "files:file:_files"
}}
_triptych() {{
  if (( CURRENT == 2 )); then
    local -a commands
    commands=(
      {commands}
    )
    _describe command commands
    return
  fi
  local command=$words[2]
  shift words
  (( CURRENT-- ))
  case $command in
{cases}
  esac
}}
if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
  _triptych "$@"
else
  compdef _triptych triptych
fi"""
