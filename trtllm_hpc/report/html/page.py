"""The page: one HTML file with everything in it, that asks nothing of any network."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup, escape

from trtllm_hpc.render.environment import PackagedTemplates
from trtllm_hpc.report.html.chart import Chart, Section, altair, for_page
from trtllm_hpc.report.html.theme import dark, light

_FOLDER = "report"


def render_page(sections: Sequence[Section], **values: Any) -> str:
    """The page as text; ``values`` are the template's."""
    environment = _environment()
    draw = _source("charts.js.j2")
    library = drawing_library()
    return environment.get_template(f"{_FOLDER}/page.html.j2").render(
        sections=sections,
        style=Markup(_source("style.css.j2")),
        library=Markup(library),
        draw=Markup(draw),
        chart_data=Markup(_chart_data(sections)),
        script_hashes=[_hash(library), _hash(draw)],
        **values,
    )


@lru_cache(maxsize=1)
def drawing_library() -> str:
    """Vega, Vega-Lite and vega-embed as one script that may stand within HTML."""
    altair()
    import vl_convert

    bundle: str = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    # An HTML parser ends the element here, wherever in the script it stands.
    return re.sub(r"</(?=script)", r"<\\/", bundle, flags=re.IGNORECASE).replace("<!--", r"<\!--")


def _chart_data(sections: Sequence[Section]) -> str:
    charts = [for_page(chart) for section in sections for chart in section.charts if isinstance(chart, Chart)]
    return json_in_html({"charts": charts, "themes": {"light": light(), "dark": dark()}})


def json_in_html(plain: Any) -> str:
    """JSON that may stand in a ``script`` element: no text in it can end the element or open a comment."""
    text = json.dumps(plain, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _hash(script: str) -> str:
    """How a Content-Security-Policy names a script (CSP level 3, hash-source)."""
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


@lru_cache(maxsize=1)
def _environment() -> Environment:
    made = Environment(
        loader=PackagedTemplates(),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=True,
    )
    made.filters["breakable"] = _breakable
    return made


def _breakable(name: str) -> Markup:
    """A name that a narrow column may break after ``.`` and ``_``."""
    return Markup(re.sub(r"([._])", r"\1<wbr>", str(escape(name))))


def _source(name: str) -> str:
    environment = _environment()
    text, _, _ = PackagedTemplates().get_source(environment, f"{_FOLDER}/{name}")
    return text
