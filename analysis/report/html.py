"""A report as one HTML file that asks for nothing from outside: pictures, data and script are in it.

Each figure is the very picture of the Markdown report. Over its marks lie invisible points of
plotly, which say the series and the values when the pointer is on them.
"""

from __future__ import annotations

import base64
import html
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from analysis.records import RecordError

_MISSING = "the HTML report needs plotly: pip install 'hippo-sched[html]'"
_MOST = 4000  # points of a figure that answer the pointer; more are thinned out evenly
_POLICY = (
    "default-src 'none'; img-src data: blob:; script-src 'unsafe-inline'; style-src 'unsafe-inline'"
)
_STYLE = """
body { font: 16px/1.5 system-ui, "Noto Sans CJK SC", sans-serif; max-width: 62rem; margin: 2rem auto;
  padding: 0 1rem; color: #222; }
table { border-collapse: collapse; display: block; overflow-x: auto; margin: 1rem 0;
  font-size: 0.85rem; }
th, td { border-bottom: 1px solid #ddd; padding: 0.25rem 0.6rem; }
th { border-bottom: 2px solid #888; }
pre { background: #f5f5f5; padding: 0.8rem; overflow-x: auto; font-size: 0.8rem; }
.figure { width: 100%; } .data { font-size: 0.85rem; }
"""


class Shown(NamedTuple):
    """A picture of the report: its PNG, its marks, and their middles [N, 2] as fractions of it."""

    png: Path
    marks: pd.DataFrame
    places: np.ndarray


def require() -> None:
    """Raises RecordError where what writes HTML is not installed."""
    try:
        import markdown_it  # noqa: F401
        import plotly  # noqa: F401
    except ImportError:
        raise RecordError(_MISSING) from None


def page(markdown: str, pictures: Mapping[str, Shown], language: str) -> str:
    """The whole file.

    Args:
        markdown: the report; it names its pictures figures/NAME.png, their data figures/NAME.csv.
        pictures: by the name of the PNG.
        language: of the text, as HTML says it.
    """
    from markdown_it import MarkdownIt
    from plotly.offline import get_plotlyjs

    body = MarkdownIt("commonmark", {"html": False}).enable("table").render(markdown)
    for number, (name, shown) in enumerate(pictures.items()):
        image = re.compile(rf'<p><img src="figures/{re.escape(name)}" alt="([^"]*)" /></p>')
        body = image.sub(lambda _, i=number, s=shown: _figure(f"figure-{i}", s), body)
        data = base64.b64encode(shown.png.with_suffix(".csv").read_bytes()).decode()
        file = html.escape(Path(name).with_suffix(".csv").name)
        link = f'<a href="data:text/csv;base64,{data}" download="{file}"'
        body = body.replace(f'<a href="figures/{file}"', link)
    title = html.escape(markdown.split("\n", 1)[0].lstrip("# "))
    script = f"<script>{get_plotlyjs()}</script>" if pictures else ""
    return (
        f'<!DOCTYPE html>\n<html lang="{language}"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<link rel='icon' href='data:,'><title>{title}</title><style>{_STYLE}</style>{script}"
        f"</head>\n<body>\n{body}\n</body></html>\n"
    )


def tooltips(marks: pd.DataFrame) -> list[str]:
    """What each mark says: panel and series, then the name or value on either axis."""
    said = []
    for row in marks.to_dict("records"):
        lines = [f"<b>{_plain(row['series'] or row['panel'] or row['mark'])}</b>"]
        for side in "xy":
            label = _plain(row[f"{side}_axis"] or side)
            named = row[f"{side}_name"]
            end = row[f"{side}_to"]
            value = named or f"{row[side]:.4g}"
            if not named and pd.notna(end) and end != row[side]:
                value += f" … {end:.4g}"
            lines.append(f"{label}: {_plain(value)}")
        if pd.notna(row["value"]):
            lines.append(f"= {row['value']:.4g}")
        said.append("<br>".join(lines))
    return said


def _plain(text: str) -> str:
    """Text as plotly shows it: tags are its own, quotes are as they are."""
    return html.escape(text, quote=False)


def _figure(name: str, shown: Shown) -> str:
    """The picture with its tooltips, as wide as the page."""
    import plotly.graph_objects as go
    import plotly.io
    from matplotlib.image import imread

    height, width = imread(shown.png).shape[:2]
    inside = np.isfinite(shown.places).all(axis=1) & (np.abs(shown.places - 0.5) <= 0.5).all(axis=1)
    # A band is an outline of many vertices: its data are in the table, it answers no pointer.
    rows = np.flatnonzero(inside & (shown.marks["mark"] != "band").to_numpy())
    rows = rows[:: -(-len(rows) // _MOST) or 1]
    figure = go.Figure(
        go.Scatter(
            x=(shown.places[rows, 0] * width).round(1).tolist(),
            y=(shown.places[rows, 1] * height).round(1).tolist(),
            mode="markers",
            marker={"size": 10, "opacity": 0},
            hovertext=tooltips(shown.marks.iloc[rows]),
            hoverinfo="text",
        )
    )
    png = base64.b64encode(shown.png.read_bytes()).decode()
    figure.add_layout_image(
        source=f"data:image/png;base64,{png}",
        **{"xref": "x", "yref": "y", "x": 0, "y": height, "sizex": width, "sizey": height},
        **{"sizing": "stretch", "layer": "below"},
    )
    hidden = {"visible": False, "fixedrange": False}
    figure.update_layout(
        template="none",
        margin={side: 0 for side in "lrtb"},
        hovermode="closest",
        xaxis={**hidden, "range": [0, width]},
        yaxis={**hidden, "range": [0, height]},
        showlegend=False,
    )
    drawn = plotly.io.to_html(
        figure,
        full_html=False,
        include_plotlyjs=False,
        div_id=name,
        config={"responsive": True, "displaylogo": False, "displayModeBar": False},
    )
    return f'<div class="figure" style="aspect-ratio: {width} / {height}">{drawn}</div>'
