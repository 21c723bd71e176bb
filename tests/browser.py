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
addEventListener("load", () => {{
  const answers = [...document.querySelectorAll("iframe")].map((frame, k) =>
    questions[k](frame.contentDocument, frame.contentWindow));
  document.getElementById("answers").textContent = JSON.stringify(answers);
}});
</script>
"""


def ask(folder, *questions):
    """Return what JavaScript functions of (document, window) answer.

    A question is the page, the width of the window that it is loaded in, and the function.
    """
    program = next(filter(None, map(shutil.which, _NAMES)), None)
    if program is None:
        pytest.skip(f"needs a browser: {' or '.join(_NAMES)}")
    frames = "\n".join(
        f'<iframe width="{width}" height="900" style="border: 0" srcdoc="{escape(page)}"></iframe>'
        for page, width, _ in questions
    )
    text = _ASK.format(frames=frames, questions=", ".join(f"({code})" for *_, code in questions))
    (folder / "ask.html").write_text(text, encoding="utf-8")
    switches = ["--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=20000"]
    done = subprocess.run(
        [program, *switches, f"--user-data-dir={folder / 'profile'}", "--dump-dom"]
        + [(folder / "ask.html").as_uri()],
        capture_output=True,
        text=True,
        timeout=120,
    )
    answers = re.search(r'<pre id="answers">(.*?)</pre>', done.stdout, re.DOTALL)
    assert answers is not None and answers[1] != "none", done.stderr
    return json.loads(unescape(answers[1]))
