"""Blocks of code in Markdown, and running them as a reader would: in order, in one namespace."""

import contextlib
import io
import re
from dataclasses import dataclass

# of a directive such as {math} the language is the whole first line
FENCE = re.compile(r"^```([^`\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass
class Block:
    """A fenced block: its language, text and first line, and the output printed below it."""

    language: str
    text: str
    line: int
    output: str | None = None


def blocks(markdown):
    """Return the fenced blocks; a ```text block right below a ```python block is its output."""
    found, end = [], -1
    for match in FENCE.finditer(markdown):
        language, text = match.groups()
        follows = end >= 0 and not markdown[end : match.start()].strip()
        if language == "text" and follows and found[-1].language == "python":
            found[-1].output = text
        else:
            found.append(Block(language, text, markdown[: match.start(2)].count("\n") + 1))
        end = match.end()
    return found


def run(block, namespace, filename):
    """Run a block of Python and return what it prints; tracebacks show the document's lines."""
    source = "\n" * (block.line - 1) + block.text
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(source, filename, "exec"), namespace)
    return printed.getvalue()
