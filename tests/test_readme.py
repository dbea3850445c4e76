"""README.md and docs/ say nothing that does not run.

- A `python` block runs as a script of its own, in an empty folder.
- In a `console` block the lines after `$ ` are commands, in a `sh` block every line is. They run
  one after the other in an empty folder: `demur ...` as this interpreter's, `python ...` as this
  interpreter with `examples/...` and the like found in the repository. `make NAME` is not run, but
  has to exist. Anything else, and whatever must not run here, belongs in a `sh no-run` block.
- A `toml` block parses. `text` and `proto` blocks are for reading. Every block names its language.
- A link to a file or heading leads somewhere, and the map of the repository (the section with
  "map" in its heading) names only what exists: in code, or first in a line of a `text` block.
"""

import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
TIMEOUT_S = 300

FENCE = re.compile(r"^(?P<indent> *)(?P<fence>`{3,}|~{3,}) *(?P<info>[^`]*)$")
HEADING = re.compile(r"^(?P<level>#{1,6}) +(?P<title>.*?)[ #]*$")
LINK = re.compile(r"\]\(<?(?P<target>[^)\s>]+)>?(?: +\"[^\"]*\")?\)|^ *\[[^\]]+\]: *(?P<ref>\S+)")
CODE = re.compile(r"`([^`]+)`")
OPERATORS = {"|", "||", "&", "&&", ";", ">", ">>", "<", "2>"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One fenced block."""

    page: Path
    line: int  #: of the opening fence, from 1
    info: tuple[str, ...]  #: the words after the fence; the first is the language
    text: str

    @property
    def language(self) -> str:
        return self.info[0] if self.info else ""

    @property
    def runs(self) -> bool:
        return "no-run" not in self.info

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT).as_posix()}:{self.line}:{self.language}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A page, taken apart."""

    prose: list[str]  #: its lines, those of blocks blanked
    blocks: list[Block]


def parse(path: Path, text: str) -> Page:
    """Split a page into prose and fenced blocks."""
    prose: list[str] = []
    blocks: list[Block] = []
    opening: re.Match[str] | None = None
    start = 0
    inside: list[str] = []
    for number, line in enumerate(text.splitlines(), start=1):
        match = FENCE.match(line)
        if opening is None:
            prose.append("" if match else line)
            if match:
                opening, start, inside = match, number, []
            continue
        prose.append("")
        if match and not match["info"] and match["fence"].startswith(opening["fence"]):
            info = tuple(opening["info"].split())
            body = "".join(f"{each}\n" for each in inside)
            blocks.append(Block(page=path, line=start, info=info, text=body))
            opening = None
        else:
            inside.append(line.removeprefix(opening["indent"]))
    assert opening is None, f"{path}:{start}: the block is never closed"
    return Page(prose=prose, blocks=blocks)


def read(path: Path) -> Page:
    return parse(path, path.read_text(encoding="utf-8"))


def commands(block: Block) -> Iterator[str]:
    """The commands of a console or sh block, continued lines joined."""
    for line in block.text.replace("\\\n", " ").splitlines():
        if block.language == "console" and not line.startswith("$ "):
            continue  # what the command printed
        command = line.removeprefix("$ ").strip()
        if command and not command.startswith("#"):
            yield command


def words(command: str) -> list[str]:
    return shlex.split(command, comments=True)


def without_bin(program: str) -> str:
    return program.removeprefix(".venv/bin/")


def is_target(name: str) -> bool:
    """Whether the Makefile has a rule for the target, a pattern rule included."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    rules = re.findall(r"^([\w%-]+):", makefile, re.MULTILINE)
    patterns = [re.escape(rule).replace("%", ".+") for rule in rules]
    return any(re.fullmatch(pattern, name) for pattern in patterns)


def check_make(command: str) -> None:
    targets = [word for word in words(command)[1:] if "=" not in word and word[0] != "-"]
    missing = [target for target in targets if not is_target(target)]
    assert not missing, f"`{command}`: the Makefile has no {', '.join(missing)}"


def run(arguments: list[str], folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, (
        f"`{shlex.join(arguments)}` exited {done.returncode}:\n{done.stdout}"
    )


def check_shell(block: Block, folder: Path) -> None:
    for command in commands(block):
        program, *arguments = words(command)
        match without_bin(program):
            case "make":
                check_make(command)
            case _ if not block.runs:
                pass
            case _ if OPERATORS & set(arguments):
                pytest.fail(f"`{command}` needs a shell: say `sh no-run`")
            case "demur":
                run(["-m", "demur_sim.cli", *arguments], folder)
            case "python" | "python3":
                here = [str(ROOT / word) if (ROOT / word).is_file() else word for word in arguments]
                run(here, folder)
            case _:
                pytest.fail(f"`{command}` is not run by this test: say `sh no-run`")


def check_python(block: Block, folder: Path) -> None:
    script = folder / "block.py"
    # Blank lines first, so that a traceback's line numbers are those of the page.
    script.write_text("\n" * block.line + block.text, encoding="utf-8")
    compile(script.read_bytes(), str(block), "exec")
    if block.runs:
        run([script.name], folder)


def check(block: Block, folder: Path) -> None:
    """Fail unless the block does what a reader would expect of it."""
    match block.language:
        case "python":
            check_python(block, folder)
        case "console" | "sh":
            check_shell(block, folder)
        case "toml":
            tomllib.loads(block.text)
        case "text" | "proto":
            pass
        case "":
            pytest.fail(f"{block} names no language: say `text` if nothing runs")
        case other:
            pytest.fail(f"{block}: no test knows what a block of {other} should do")


def slug(title: str) -> str:
    """The anchor that GitHub gives a heading."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def anchors(path: Path) -> set[str]:
    found: dict[str, int] = {}
    names = set()
    for line in read(path).prose:
        if heading := HEADING.match(line):
            name = slug(heading["title"])
            again = found[name] = found.get(name, -1) + 1
            names.add(f"{name}-{again}" if again else name)
    return names


def broken_links(path: Path, prose: list[str]) -> list[str]:
    """The links on a page that stay inside the repository and lead nowhere."""
    broken = []
    for number, line in enumerate(prose, start=1):
        for match in LINK.finditer(CODE.sub("", line)):
            target = match["target"] or match["ref"]
            if re.match(r"[a-z][a-z0-9+.-]*:", target):
                continue
            name, _, anchor = target.partition("#")
            there = (path.parent / name).resolve() if name else path
            if (
                not there.is_relative_to(ROOT)
                or not there.exists()
                or (anchor and there.suffix == ".md" and anchor not in anchors(there))
            ):
                broken.append(f"line {number}: {target}")
    return broken


def map_section(page: Page) -> tuple[list[str], list[Block]]:
    """Prose and blocks of the section whose heading speaks of a map."""
    inside = 0  # the level of the map's heading, 0 outside of it
    prose: list[str] = []
    lines: set[int] = set()
    for number, line in enumerate(page.prose, start=1):
        if heading := HEADING.match(line):
            level = len(heading["level"])
            if inside and level <= inside:
                inside = 0
            if not inside and re.search(r"\bmap\b", heading["title"], re.IGNORECASE):
                inside = level
        if inside:
            prose.append(line)
            lines.add(number)
    return prose, [block for block in page.blocks if block.line in lines]


def mapped_paths(page: Page) -> list[str]:
    """What the map calls a path: in code, with a slash or a suffix; or first in a text line."""
    prose, blocks = map_section(page)
    candidates = CODE.findall("\n".join(prose))
    for block in blocks:
        if block.language == "text":
            candidates += [line.split()[0] for line in block.text.splitlines() if line.strip()]
    return [
        word for word in candidates if re.fullmatch(r"(?=.*\w)(?!/)[\w.*-]*[/.][\w./*-]*", word)
    ]


BLOCKS = [block for path in PAGES for block in read(path).blocks]


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_a_block_does_what_it_says(block: Block, tmp_path: Path) -> None:
    check(block, tmp_path)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(path: Path) -> None:
    assert broken_links(path, read(path).prose) == []


def test_the_map_names_only_what_exists() -> None:
    missing = [name for name in mapped_paths(read(ROOT / "README.md")) if not [*ROOT.glob(name)]]

    assert missing == []


def page(text: str) -> Page:
    return parse(ROOT / "README.md", text)


@pytest.mark.parametrize(
    "text",
    [
        "```\nwhat is this\n```",
        "```rust\nfn main() {}\n```",
        "```python\nassert False\n```",
        "```python no-run\nassert(\n```",
        "```toml\na = = 1\n```",
        "```sh\ncurl example.org\n```",
        "```sh\nmake no-such-target\n```",
        "```sh no-run\ngit clone it\nmake no-such-target\n```",
        "```sh\npython -V | head\n```",
        "```console\n$ demur no-such-command\n```",
        "```console\n$ python -c \\\n    'raise SystemExit(3)'\nprinted\n```",
    ],
)
def test_a_block_that_does_not_is_noticed(text: str, tmp_path: Path) -> None:
    (block,) = page(text).blocks

    with pytest.raises(
        (AssertionError, SyntaxError, tomllib.TOMLDecodeError, pytest.fail.Exception)
    ):
        check(block, tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        "```python\nimport anyio\n\nanyio.run(anyio.sleep, 0)\n```",
        "1. In a list:\n\n   ~~~python\n   if True:\n       pass\n   ~~~\n",
        "````text\n```\n````",
        "```sh\n# a remark\nmake test bench-x ARGS=--quick  # slow\n```",
        "```sh no-run\ngit clone it\n```",
        '```console\n$ python -c \'open("made", "w")\'\nprinted, not run\n$ python -c \'open("made")\'\n```',
    ],
)
def test_a_block_that_does_is_accepted(text: str, tmp_path: Path) -> None:
    (block,) = page(text).blocks

    check(block, tmp_path)


def test_a_link_that_leads_nowhere_is_noticed() -> None:
    text = "[a](gone.md) `[b](code.md)` [c](LICENSE) [d](#gone) [e](https://x.org)\n[f]: gone.png\n"

    broken = broken_links(ROOT / "README.md", page(text).prose)

    assert broken == ["line 1: gone.md", "line 1: #gone", "line 2: gone.png"]


def test_the_map_is_read_from_code_and_from_text() -> None:
    text = (
        "# demur\n`not/here`\n## Map of the repository\n`proto/` `make test` `Makefile.x` word\n"
        "```text\nsim/demur_sim/   people\ntests/*.py       checks\n```\n### More\n`a/b.py`\n"
        "## After\n`not/here`\n"
    )

    names = mapped_paths(page(text))

    assert names == ["proto/", "Makefile.x", "a/b.py", "sim/demur_sim/", "tests/*.py"]
