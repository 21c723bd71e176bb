"""A reader of HTML that is stricter than a browser."""

from html.parser import HTMLParser

_EMPTY = {"meta", "br", "img", "link", "hr", "input"}  # elements without an end
_LOADS = {"src", "href", "xlink:href", "srcset", "action", "data", "poster"}


class Reader(HTMLParser):
    """What is in a page: `elements`, `text`, `ids`, `loads`, and `problems` of its form.

    `cells` are the texts of all cells of tables, in order.
    """

    def __init__(self, page):
        super().__init__(convert_charrefs=True)
        self.open, self.problems, self.elements = [], [], []
        self.text, self.cells, self.ids, self.loads = "", [], [], []
        self.feed(page)
        self.close()
        self.problems += [f"{tag} has no end" for tag in self.open]
        self.problems += [f"{one} stands twice" for one in self.ids if self.ids.count(one) > 1]

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in _EMPTY:
            self.handle_endtag(tag)

    def handle_starttag(self, tag, attributes):
        names = [name for name, _ in attributes]
        if len(set(names)) < len(names):
            self.problems.append(f"{tag} has an attribute twice")
        self.elements.append((tag, dict(attributes)))
        for name, value in attributes:
            if name == "id":
                self.ids.append(value)
            if name in _LOADS:
                self.loads.append(value)
            self.loads += [rest.partition(")")[0] for rest in (value or "").split("url(")[1:]]
        if tag in ("td", "th"):
            self.cells.append("")
        if tag not in _EMPTY:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.problems.append(f"{tag} ends where it is not open")

    def handle_data(self, data):
        inside = self.open[-1] if self.open else ""
        if inside == "style":
            self.loads += [rest for word in ("url(", "@import") for rest in data.split(word)[1:]]
        if inside not in ("style", "script"):
            self.text += data
        if {"td", "th"} & set(self.open):
            self.cells[-1] += data

    def named(self, tag):
        """Return the attributes of all elements of a name."""
        return [attributes for name, attributes in self.elements if name == tag]
