"""Questions to a page in a headless Chromium, which is not there everywhere."""

import json
import re
import shutil
import subprocess
from html import escape, unescape

import pytest

_NAMES = ("chromium", "chromium-browser", "google-chrome")
_ASK = """
<!DOCTYPE html>
{frames}
<pre id="answers">none</pre>
<script>
const questions = [{questions}];
addEventListener("load", () => setTimeout(() => {{
  const answers = [...document.querySelectorAll("iframe")].map((frame, k) =>
    questions[k](frame.contentDocument, frame.contentWindow));
  document.getElementById("answers").textContent = JSON.stringify(answers);
}}, {delay}));
</script>
"""


def ask(folder, *questions):
    """Return what JavaScript functions of (document, window) answer.

    A question is the page, the width of the window that it is loaded in, and the function. A page
    is its text, or the address of a file.
    """
    return ask_and_listen(folder, *questions)[0]


def ask_and_listen(folder, *questions, delay=0):
    """Return the answers of `ask`, and what pages wrote to the console.

    `delay` is the time of the pages, in milliseconds, that they have for their scripts.
    """
    program = next(filter(None, map(shutil.which, _NAMES)), None)
    if program is None:
        pytest.skip(f"needs a browser: {' or '.join(_NAMES)}")
    frames = "\n".join(
        f'<iframe width="{width}" height="900" style="border: 0" '
        f'{"src" if page.startswith("file:") else "srcdoc"}="{escape(page)}"></iframe>'
        for page, width, _ in questions
    )
    codes = ", ".join(f"({code})" for *_, code in questions)
    text = _ASK.format(frames=frames, questions=codes, delay=delay)
    (folder / "ask.html").write_text(text, encoding="utf-8")
    switches = ["--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=20000"]
    switches += ["--allow-file-access-from-files", "--enable-logging=stderr"]
    done = subprocess.run(
        [program, *switches, f"--user-data-dir={folder / 'profile'}", "--dump-dom"]
        + [(folder / "ask.html").as_uri()],
        capture_output=True,
        text=True,
        timeout=120,
    )
    answers = re.search(r'<pre id="answers">(.*?)</pre>', done.stdout, re.DOTALL)
    assert answers is not None and answers[1] != "none", done.stderr
    console = [line for line in done.stderr.splitlines() if ":CONSOLE" in line]
    return json.loads(unescape(answers[1])), console
