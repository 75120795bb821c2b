"""A page in a headless Chromium: what it logs, and its document once its scripts have run."""

import shutil
import subprocess

NAMES = ("chromium", "chromium-browser", "google-chrome")


def browser():
    """The browser's path, or None."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


def opened(page, profile):
    """(document, lines that the page wrote to the console, refused requests and errors included)."""
    command = [browser(), "--headless=new", "--no-sandbox", "--disable-gpu", "--dump-dom"]
    command += [
        "--enable-logging=stderr",
        "--virtual-time-budget=10000",
        f"--user-data-dir={profile}",
    ]
    done = subprocess.run([*command, page.as_uri()], capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]
