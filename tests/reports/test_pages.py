"""Reports as pages: the words and numbers of the text, and nothing from elsewhere."""

import re

import numpy as np
import pytest
from browser import ask
from checking.twins import log_uniform, make
from html_reader import Reader
from matplotlib.figure import Figure

from samplesoft import check_loss, tune, verify
from samplesoft.reports.figures import save_figure
from samplesoft.reports.parts import Column, Heading, Items, Paragraph, Settings, Table
from samplesoft.reports.report import Report

NASTY = "<b>a</b> & \"b\" <script>alert('c')</script> | `d`"
INF = float("inf")
# values and how they are written, from the smallest to the largest, then text, then what is absent
CELLS = [
    *((-INF, "-inf"), (-3, "-3"), (-2.5e-3, "-2.5e-03"), (0, "0"), (1.5e-6, "1.5e-06")),
    *((0.12, "12%"), (0.5, ".5"), (2, "2"), (7, "7 (+2)"), (10, "10"), (1000, "1,000")),
    *((1e5, "1e+05"), (INF, "inf"), ("3rd", "3rd"), ("abc", "abc"), (None, "-"), ("", "")),
]
NUMBERS = [text for value, text in CELLS if isinstance(value, (int, float))]
ORDER = tuple(range(len(CELLS)))


class Small(Report):
    """A report with every part, and text that is not meant well."""

    _title = f"Small {NASTY}"
    _figure_title = f"Figure {NASTY}"

    def __init__(self, order=ORDER):
        self.order = order

    def _values(self):
        return {}

    def _parts(self):
        columns = [
            Column("name", lambda k: f"{NASTY} {k}"),
            Column(NASTY, lambda k: CELLS[k][0], lambda k: CELLS[k][1]),
            Column("", lambda k: "all one"),
        ]
        return [
            Paragraph(f"Verdict {NASTY}", is_verdict=True),
            Settings({"given": NASTY}),
            Heading(f"Heading {NASTY}"),
            Table(self.order, columns, f"Caption {NASTY}"),
            Items(["first", NASTY]),
        ]

    def _figure(self):
        figure = Figure(figsize=(8, 3))
        figure.subplots().plot([1, 2], label=NASTY.replace("$", ""))
        figure.axes[0].legend()
        figure.axes[0].scatter([1, 1], [1, 2], rasterized=True)
        return figure

    def _settings(self):
        return {"own": NASTY}


def of_verify():
    rng = np.random.default_rng(0)
    h, c = rng.normal(size=(2, 4)), rng.normal(size=(30, 4))
    q = {NASTY: np.full(30, 1 / 30), "other": rng.dirichlet(np.ones(30))}
    vectors = {"h": h, "class_embeddings": c}
    return verify(h @ c.T, [1, 2], q, (5, 50), **vectors, num_trials=1000, settings={"x": NASTY})


def of_tune():
    c = np.random.default_rng(0).normal(size=(60, 5))
    return tune(c, c[:8], np.arange(8), samplers=["uniform", "unigram"], num_sampled=[5, 20])


def of_check():
    return check_loss(make("masked", "uncorrected"), log_uniform, 10)


MAKERS = {"small": Small, "verify": of_verify, "tune": of_tune, "check": of_check}


@pytest.fixture(scope="module")
def made():
    """Return a report and its page by name; each is made once."""
    kept = {}

    def make_once(name):
        if name not in kept:
            report = MAKERS[name]()
            kept[name] = report, report.to_html()
        return kept[name]

    return make_once


REAL = [pytest.param(name, marks=pytest.mark.slow) for name in MAKERS if name != "small"]


@pytest.fixture(params=["small", *REAL])
def both(request, made):
    return made(request.param)


def tables_of(report):
    return [part for part in [*report._parts(), *report._details()] if isinstance(part, Table)]


# the form of a page ------------------------------------------------------------------------------


def test_it_is_a_whole_page_that_loads_nothing(both):
    _, text = both
    found = Reader(text)
    assert not found.problems
    assert text.startswith("<!DOCTYPE html>\n") and text.endswith("</html>\n")
    assert found.named("html") == [{"lang": "en"}]
    assert {"charset": "utf-8"} in found.named("meta")
    assert "width=device-width" in str(found.named("meta"))
    for tag in ("title", "h1", "main", "img", "script", "style"):
        assert len(found.named(tag)) == 1, tag
    assert found.loads and all(one.startswith("data:image/svg+xml;base64,") for one in found.loads)
    assert "http:" not in text and "https:" not in text
    assert len(text) < 300_000


def test_the_page_has_the_cells_of_the_text(both):
    report, text = both
    found = Reader(text)
    tables = tables_of(report)
    assert len(found.named("table")) == len(found.named("caption")) == len(tables) > 0
    wanted = [
        cell
        for table in tables
        for line in [
            [column.title or "note" for column in table.columns],
            *([column.cell_text(row) for column in table.columns] for row in table.rows),
        ]
        for cell in line
    ]
    assert found.cells == [cell.replace("`", "") for cell in wanted]
    words = report.to_text(details=True).split()
    assert set(" ".join(wanted).replace("note", "").split()) <= set(words)


def test_the_page_has_the_words_of_the_text(both):
    report, page = both
    words = " ".join(Reader(page).text.split())
    lines = " ".join(report.to_text(details=True).split())
    for part in [*report._parts(), *report._details()]:
        if isinstance(part, (Paragraph, Heading)):
            said = " ".join((part.content if isinstance(part, Paragraph) else part.title).split())
            assert said in lines
            assert said.replace("`", "") in words


def test_text_is_in_short_lines_but_for_wide_tables(both):
    report, _ = both
    parts = [part for part in report._parts() if not isinstance(part, (Table, Heading))]
    assert max(len(line) for part in parts for line in part.text().splitlines()) <= 80


def test_settings_and_versions_are_at_the_end():
    text = Reader(Small().to_html({"from": "here", "several": ["a", "b"]})).text
    end = text[text.index("Settings") :]
    for words in ("own", "from", "here", "several", "a, b", "samplesoft", "NumPy", np.__version__):
        assert words in end
    assert re.search(r"threads\s*\d+\s", end)


def test_the_same_report_has_the_same_page():
    assert Small().to_html() == Small().to_html()


def test_the_reader_sees_what_is_wrong():
    for wrong, words in {
        "<p>a": "p has no end",
        "<p><b>a</p></b>": "p ends where it is not open",
        "<p id='a'></p><b id='a'></b>": "a stands twice",
        "<p class='a' class='b'></p>": "an attribute twice",
    }.items():
        assert any(words in problem for problem in Reader(wrong).problems), wrong
    outside = "<img src='x.png'><p style='background: url(y.png)'></p><style>@import 'z'</style>"
    assert Reader(outside).loads == ["x.png", "y.png", " 'z'"]


# its text ----------------------------------------------------------------------------------------


def test_text_stays_text():
    found = Reader(Small().to_html({"also": NASTY, NASTY: 1}))
    assert not found.problems
    assert len(found.named("script")) == 1 and not found.named("b")
    plain = NASTY.replace("`", "")
    for words in ("Small", "Verdict", "Heading", "Caption"):
        assert words in found.text
    assert found.text.count(plain) >= 5 + len(CELLS)
    assert f"Figure {NASTY}" in [one.get("alt") for one in found.named("img")]


def test_columns_have_titles_and_rows_have_names():
    found = Reader(Small().to_html())
    heads = [attributes for attributes in found.named("th") if attributes["scope"] == "col"]
    assert len(heads) == 3
    assert len(found.named("th")) - len(heads) == len(CELLS)
    assert found.cells[2] == "note"


def test_numbers_are_known_and_set_to_the_right():
    columns = [
        Column("a", lambda row: row[0]),
        Column("b", lambda row: row[1], ","),
        Column("c", lambda row: row[1], lambda row: f"{row[1]} OUT"),
        Column("d", lambda row: row[2]),
    ]
    table = Table([("x", 1000, "3"), ("3", None, None), ("y", np.int64(7), "12%")], columns, "t")
    assert table.text().splitlines() == [
        "a      b         c  d",
        "-  -----  --------  ---",
        "x  1,000  1000 OUT  3",
        "3      -         -  -",
        "y      7     7 OUT  12%",
    ]
    cells = Reader(table.html()).named("td")
    assert [one.get("class") for one in cells] == ["number", "number", None] * 3
    assert [one.get("data-value") for one in cells] == [
        *("1000.0", "1000.0", None, None, None, None, "7.0", "7.0", None)
    ]
    empty = Table([], columns, "none")
    assert Reader(empty.html()).cells == ["a", "b", "c", "d"]
    assert empty.text() == "a  b  c  d\n-  -  -  -"


# its figure --------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", [".svg", ".pdf", ".png"])
def test_equal_figures_are_equal_files(ending, tmp_path):
    files = [tmp_path / f"{k}{ending}" for k in range(2)]
    for path in files:
        save_figure(Small()._figure(), path)
    first, second = (path.read_bytes() for path in files)
    assert first == second and b"Date" not in first
    assert len(list(tmp_path.iterdir())) == 2


# in a browser ------------------------------------------------------------------------------------

CLICKS = """(page) => {
  const titles = [...page.querySelectorAll("thead th")], state = () => ({
    order: [...page.querySelectorAll("tbody tr")].map((row) => row.cells[1].textContent),
    names: [...page.querySelectorAll("tbody tr")].map((row) => row.cells[0].textContent),
    sorted: titles.map((title) => title.getAttribute("aria-sort")),
  });
  const found = [state()];
  for (const column of [1, 1, 2, 0]) {
    titles[column].querySelector("button").click();
    found.push(state());
  }
  const buttons = titles.map((title) => title.firstElementChild);
  buttons[1].focus();
  return {
    found,
    titles: titles.map((title) => title.textContent),
    keys: buttons.every((one) => one.tagName === "BUTTON" && one.tabIndex === 0),
    focus: page.activeElement === buttons[1],
  };
}"""
WIDTHS = """(page, window) => ({
  page: page.documentElement.scrollWidth,
  boxes: [...page.querySelectorAll(".scroll")].filter((box) => box.scrollWidth > box.clientWidth)
    .length,
  loaded: window.performance.getEntriesByType("resource").map((one) => one.name)
    .filter((name) => !name.startsWith("data:")),
  images: [...page.images].map((image) => image.naturalWidth),
  title: page.title,
  figure: page.querySelector("img").getBoundingClientRect().width,
})"""


@pytest.mark.slow
def test_a_click_on_a_title_sorts(tmp_path):
    order = np.random.default_rng(0).permutation(len(CELLS))
    assert [*order] != [*ORDER]
    [answer] = ask(tmp_path, (Small([*order]).to_html(), 1000, CLICKS))
    given, up, down, same, by_name = answer["found"]
    texts = [text for _, text in CELLS]
    assert given["order"] == [texts[k] for k in order] and not any(given["sorted"])
    absent = [cell for cell in given["order"] if cell in ("", "-")]
    assert up["order"] == [*NUMBERS, "3rd", "abc", *absent]
    assert down["order"] == [*NUMBERS[::-1], "abc", "3rd", *absent]
    assert up["sorted"] == [None, "ascending", None]
    assert down["sorted"] == [None, "descending", None]
    assert same["order"] == down["order"] and same["sorted"] == [None, None, "ascending"]
    assert [int(name.split()[-1]) for name in by_name["names"]] == [*range(len(CELLS))]
    assert by_name["order"] == texts  # rows move as a whole
    assert answer["titles"] == ["name", NASTY.replace("`", ""), "note"]
    assert answer["keys"] and answer["focus"]


@pytest.mark.slow
def test_pages_fit_and_load_nothing(made, tmp_path):
    pages = [made(name)[1] for name in MAKERS]
    small = pages[0]
    without = re.sub(r"<meta http-equiv.*?>", "", small)
    save_figure(Small()._figure(), tmp_path / "a.png")
    loads = '<img src="http://127.0.0.1:9/a.png"><img src="a.png">'
    loads += '<script>document.title = "changed"</script></main>'
    answers = ask(
        tmp_path,
        *((text, width, WIDTHS) for text in pages for width in (400, 1280)),
        (small.replace("overflow-x: auto", "overflow-x: visible"), 400, WIDTHS),
        (small.replace("</main>", loads), 400, WIDTHS),
        (without.replace("</main>", loads), 400, WIDTHS),
    )
    *real, wide, guarded, open_ = answers
    for answer, width in zip(real, (400, 1280) * len(pages), strict=True):
        assert answer["page"] <= width and not answer["loaded"]
    assert all(answer["boxes"] > 0 for answer in real[::2])  # what is wide is in a box
    assert all(
        answer["figure"] > 1000 and answer["images"][0] > 0 for answer in real[1::2]
    )  # figures use the width
    assert wide["page"] > 400
    assert open_["loaded"] and open_["images"][2] > 0 and open_["title"] == "changed"
    assert guarded["images"][1:] == [0, 0] and guarded["title"] != "changed"  # it was told not to
