"""The directive ``two-columns``: a Python file as a page, with its words beside its code.

The page is made from the file. On the left stand its docstrings and the comments that begin a line,
on the right the code up to the next of them.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from pathlib import Path

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

HEADING = re.compile(r"^(.*?)\s*-{5,}$")  # a comment that ends in a line is one


@dataclass
class Row:
    """A part of a page: lines of text, and the lines of code that they are about."""

    text: list[str] = field(default_factory=list)
    code: list[str] = field(default_factory=list)

    @property
    def has_code(self) -> bool:
        """Whether a line of it is more than white space."""
        return any(line.strip() for line in self.code)


def rows(source: str) -> list[Row]:
    """Return a file of Python in parts, from its top to its end, without a line lost."""
    lines = source.splitlines()
    found = [Row()]
    past = 0  # the first line that is in no row yet

    def say(text: list[str]) -> None:
        # what follows text without code between them is about the same code
        if found[-1].has_code:
            found.append(Row())
        found[-1].text += ["", *text] if found[-1].text else text

    def take(end: int) -> None:
        nonlocal past
        for line in lines[past:end]:
            if line.startswith("#"):
                say_comment(line[1:].removeprefix(" "))
            else:
                found[-1].code.append(line)
        past = end

    def say_comment(line: str) -> None:
        if found[-1].has_code:
            found.append(Row())
        found[-1].text.append(line)

    module = ast.parse(source)
    for node in module.body:
        first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))]) - 1
        take(first)
        inside = [node] if isinstance(node, ast.Expr) else getattr(node, "body", [])[:1]
        words = inside[0] if inside and isinstance(inside[0], ast.Expr) else None
        value = getattr(words, "value", None)
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            text = ast.literal_eval(value) if node is words else ast.get_docstring(node)
            say(text.strip("\n").splitlines())
            found[-1].code += lines[first : words.lineno - 1]
            past = words.end_lineno
        take(node.end_lineno)
    take(len(lines))
    return found


def prose(text: list[str]) -> list[nodes.Node]:
    """Return text as nodes: headings, paragraphs with `code`, and what is indented as it stands."""
    made: list[nodes.Node] = []
    for block in re.split(r"\n(?:[ \t]*\n)+", "\n".join(text).strip("\n")):
        first, _, rest = block.partition("\n")
        if heading := HEADING.match(first):
            if heading[1]:
                made.append(nodes.rubric("", heading[1].rstrip(".")))
            block = rest
        # lines of a paragraph that are indented after others are formulas too
        for part in re.findall(r"(?:^ {4}.*\n?)+|(?:^(?! {4}).*\n?)+", block, re.MULTILINE):
            part = part.rstrip("\n")
            if part.startswith("    "):
                lines = [line[4:] for line in part.split("\n")]
                if made and isinstance(made[-1], nodes.literal_block):
                    lines = [made.pop().astext(), "", *lines]
                joined = "\n".join(lines)
                made.append(nodes.literal_block(joined, joined, language="text"))
            elif part.strip():
                made.append(paragraph(part))
    return made


def paragraph(text: str) -> nodes.paragraph:
    """Return a paragraph in which what stands in backticks is code."""
    made = nodes.paragraph()
    for i, part in enumerate(re.split(r"`+([^`]+)`+", " ".join(text.split()))):
        if part:
            made += nodes.literal("", part) if i % 2 else nodes.Text(part)
    return made


class TwoColumns(SphinxDirective):
    """``.. two-columns:: PATH``: a Python file, by a path from the folder of the page."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Return its rows."""
        page = Path(self.env.doc2path(self.env.docname))
        file = (page.parent / self.arguments[0]).resolve()
        self.env.note_dependency(str(file))
        table = nodes.container(classes=["two-columns"])
        for i, row in enumerate(rows(file.read_text(encoding="utf-8"))):
            # what a file says of itself is about all of it, and has wide pictures
            text = nodes.container(classes=["two-columns-text" if i else "two-columns-whole"])
            text += prose(row.text)
            if not i:
                table += text
                text = nodes.container(classes=["two-columns-text"])
            code = nodes.container(classes=["two-columns-code"])
            if row.has_code:
                lines = "\n".join(row.code).strip("\n")
                code += nodes.literal_block(lines, lines, language="python")
            table += [text, code]
        return [table]
