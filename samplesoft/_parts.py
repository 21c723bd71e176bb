"""What a report consists of: each part is said once, and written as Markdown or as HTML."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from samplesoft._html import html_table, html_text
from samplesoft._tables import Column, markdown_table


class Part(Protocol):
    """Something that can be written in both ways."""

    def markdown(self) -> str:
        """Return it as Markdown."""

    def html(self) -> str:
        """Return it as HTML."""


@dataclass(frozen=True)
class Paragraph:
    """Sentences, with code between backticks; in bold type if they are `strong`."""

    text: str
    strong: bool = False

    def markdown(self) -> str:
        """Return it as Markdown."""
        return f"**{self.text}**" if self.strong else self.text

    def html(self) -> str:
        """Return it as HTML."""
        text = html_text(self.text)
        return f"<p><strong>{text}</strong></p>" if self.strong else f"<p>{text}</p>"


@dataclass(frozen=True)
class Heading:
    """The title of what comes next."""

    text: str

    def markdown(self) -> str:
        """Return it as Markdown."""
        return f"**{self.text}**"

    def html(self) -> str:
        """Return it as HTML."""
        return f"<h2>{html_text(self.text)}</h2>"


@dataclass(frozen=True)
class Items:
    """A list of sentences."""

    texts: Sequence[str]

    def markdown(self) -> str:
        """Return it as Markdown."""
        return "\n".join(f"- {text}" for text in self.texts)

    def html(self) -> str:
        """Return it as HTML."""
        return "\n".join(["<ul>", *(f"<li>{html_text(text)}</li>" for text in self.texts), "</ul>"])


@dataclass(frozen=True)
class Table:
    """Rows, and what stands in their columns; Markdown has no captions."""

    rows: Sequence[Any]
    columns: Sequence[Column]
    caption: str

    def markdown(self) -> str:
        """Return it as Markdown."""
        return markdown_table(self.rows, self.columns)

    def html(self) -> str:
        """Return it as HTML."""
        return html_table(self.rows, self.columns, self.caption)


@dataclass(frozen=True)
class Settings:
    """Names with their values."""

    values: Mapping[str, Any]

    def markdown(self) -> str:
        """Return it as Markdown, in one line."""
        text = "; ".join(f"{name}: {value}" for name, value in self.values.items())
        return " ".join(text.split()) + "."

    def html(self) -> str:
        """Return it as HTML."""
        pairs = (
            f"<dt>{html_text(str(name))}</dt><dd>{html_text(_shown(value))}</dd>"
            for name, value in self.values.items()
        )
        return "\n".join(["<dl>", *pairs, "</dl>"])


def _shown(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
