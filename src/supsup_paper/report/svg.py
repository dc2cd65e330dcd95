"""SVG plots without a library: lines, points and bars, and several of them side by side in one file.

Text is text and colours are CSS variables, so a plot follows a light or dark page and scales to any width. The same
plot stands alone as a file when its style is put into it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, LEFT, RIGHT, TOP, PLOT = 360.0, 44.0, 10.0, 10.0, 190.0
COLOURS = 8
MOST_MARKERS = 24  # a curve of more points is a line alone
_DASHES = ("", "6 3", "2 2", "8 3 2 3")
_SHAPES = ("circle", "square", "triangle", "diamond")

VARIABLES = """
:root{--paper:#ffffff;--ink:#1c1e21;--faint:#5c6370;--rule:#d5d9de;
--c0:#0b62a8;--c1:#b5460f;--c2:#1a7a4c;--c3:#7b3fa0;--c4:#8a6100;--c5:#b0266b;--c6:#0f7480;--c7:#4d4f55}
@media(prefers-color-scheme:dark){:root{--paper:#15181c;--ink:#e8eaed;--faint:#a3abb6;--rule:#3a4048;
--c0:#6db3f2;--c1:#f59a62;--c2:#63cf97;--c3:#c79be8;--c4:#e0b64a;--c5:#f58ac0;--c6:#5fd0dc;--c7:#c3c7ce}}
""".strip()
STYLE = """
.plot text{font:11px system-ui,sans-serif;fill:var(--ink)}
.plot .tick{fill:var(--faint);font-size:10px}.plot .grid{stroke:var(--rule);stroke-width:.6}
.plot .line{fill:none;stroke-width:1.5}.plot .published{stroke-width:1;stroke-dasharray:1 2.5;fill:none}
.plot .bar{opacity:.85}.plot .heading{font-weight:600}
""".strip()
WIDE_STYLE = (
    "@media(min-width:720px){.plot text{font-size:8.5px}.plot .tick{font-size:8px}}"  # where a plot is enlarged
)


@dataclass(frozen=True)
class Point:
    """A point of a curve; `deviation` draws a whisker."""

    x: float
    y: float
    deviation: float | None = None


@dataclass(frozen=True)
class Curve:
    """What was measured under one label, and what was published for it; `thick` sets it apart from the others."""

    label: str
    ours: Sequence[Point]
    published: Sequence[Point] = ()
    thick: bool = False


@dataclass(frozen=True)
class Axis:
    """What an axis shows.

    names   stand at 0, 1, 2, … where positions are not numbers
    marks   ticks, in place of round numbers
    format  the text of a tick
    top     the largest value there can be
    """

    label: str
    log: bool = False
    names: Sequence[str] = ()
    marks: Sequence[float] = ()
    format: Callable[[float], str] = lambda value: f"{value:,.6g}"
    top: float = math.inf


@dataclass(frozen=True)
class Bar:
    """One bar, with a mark at the published value."""

    label: str
    ours: float | None
    published: float | None = None


@dataclass(frozen=True)
class Chart:
    """A plot as SVG.

    plot    without its legend
    legend  what is in it: a swatch, drawn around (9, 0), and a label for each row
    whole   with the legend under it
    """

    plot: str
    legend: tuple[tuple[str, str], ...]
    whole: str

    @property
    def file(self) -> str:
        """A file of its own, with the legend, twice its size at most."""
        return _standalone(self.whole, f"{STYLE}\n{WIDE_STYLE}", enlarged=2)


def line_chart(
    title: str, lines: Sequence[Curve], x: Axis, y: Axis, heading: str = "", beside: Sequence[Curve] = ()
) -> Chart | None:
    """Lines with markers over an axis; what was published is dotted with crosses, in the colour of its row.

    A line without points keeps its colour from the others, so that plots side by side agree.
    beside  curves of other plots, for which the axes leave room
    """
    if not any(line.ours or line.published for line in lines):
        return None
    points = [point for line in (*lines, *beside) for point in (*line.ours, *line.published)]
    scale_x = _scale([p.x for p in points], x, LEFT, WIDTH - RIGHT)
    heights = [end for p in points for end in _whisker(p, y)]
    scale_y = _scale(heights, y, TOP + PLOT, TOP)
    parts = [_x_axis(x, scale_x), _y_axis(y, scale_y)]
    for number, line in reversed(list(enumerate(lines))):  # the first rows lie on top
        parts.append(_published([(scale_x(p.x), scale_y(p.y)) for p in line.published], number))
        parts.append(_ours([(scale_x(p.x), scale_y(p.y)) for p in line.ours], number, line.thick))
        for p in line.ours:
            if p.deviation:
                low, high = _whisker(p, y)
                ends = f'y1="{scale_y(low):.1f}" y2="{scale_y(high):.1f}"'
                at = f"{scale_x(p.x):.1f}"
                parts.append(f'<line x1="{at}" x2="{at}" {ends} stroke="var(--c{number % COLOURS})"/>')
    legend, start = _legend(lines), TOP + PLOT + 44
    under, bottom = _under(legend, start)
    return Chart(_svg(title, start - 10, parts, heading), legend, _svg(title, bottom, [*parts, under], heading))


def _whisker(point: Point, axis: Axis) -> tuple[float, float]:
    """One deviation down and up, but not beyond what the axis can show."""
    deviation = point.deviation or 0
    return point.y - deviation, min(point.y + deviation, axis.top)


def side_by_side(title: str, charts: Sequence[Chart], columns: int = 2) -> str:
    """A file with several plots of the same curves and one legend, that of the first."""
    head, gap = 26.0, 10.0
    sizes = [_size(chart.plot) for chart in charts]
    wide, deep = WIDTH + gap, max(height for _, height in sizes) + gap
    lines, free = math.ceil(len(charts) / columns), -len(charts) % columns
    parts = [f'<text x="{LEFT:g}" y="13" class="heading">{escape(title)}</text>']
    for index, (chart, (width, height)) in enumerate(zip(charts, sizes)):
        corner = f'x="{index % columns * wide:g}" y="{head + index // columns * deep:g}"'
        parts.append(chart.plot.replace("<svg ", f'<svg {corner} width="{width:g}" height="{height:g}" ', 1))
    # The legend takes the cell that is free in the last line, else a line of its own.
    legend, bottom = _under(charts[0].legend, head + ((lines - 1) * deep + 30 if free else lines * deep + gap))
    parts.append(f'<g transform="translate({(columns - free) % columns * wide:g} 0)">{legend}</g>')
    return _standalone(_svg(title, max(head + lines * deep, bottom), parts, width=columns * wide - gap), STYLE)


def bar_chart(title: str, bars: Sequence[Bar], label: str) -> Chart | None:
    """Lying bars from 0, each under its label; a tick marks the published value."""
    values = [v for bar in bars for v in (bar.ours, bar.published) if v is not None]
    if not values:
        return None
    scale = _scale([0.0, max(values)], Axis(label), 8, WIDTH - 8)
    parts, y = [], TOP
    for number, bar in enumerate(bars):
        said = "not run" if bar.ours is None else f"{bar.ours:,.4g}"
        parts.append(f'<text x="8" y="{y + 9:.1f}">{escape(_fitted(bar.label, 48))}</text>')
        parts.append(f'<text x="{WIDTH - 8:g}" y="{y + 9:.1f}" text-anchor="end">{said}</text>')
        if bar.ours is not None:
            width = f"{max(0.0, scale(bar.ours) - scale(0)):.1f}"
            shape = f'x="8" y="{y + 13:.1f}" width="{width}" height="11" fill="var(--c{number % COLOURS})"'
            parts.append(f'<rect class="bar" {shape}/>')
        if bar.published is not None:
            at = f"{scale(bar.published):.1f}"
            ends = f'x1="{at}" x2="{at}" y1="{y + 11:.1f}" y2="{y + 26:.1f}"'
            parts.append(f'<line {ends} stroke="var(--ink)" stroke-width="2"/>')
        y += 32
    parts.append(f'<text x="8" y="{y + 14:.1f}">{escape(label)}</text>')
    if any(bar.published is not None for bar in bars):
        parts.append(
            f'<line x1="12" x2="12" y1="{y + 20:.1f}" y2="{y + 32:.1f}" stroke="var(--ink)" stroke-width="2"/>'
            f'<text x="24" y="{y + 30:.1f}">published</text>'
        )
    plot = _svg(title, y + 38, parts)
    return Chart(plot, (), plot)


def ticks(low: float, high: float, log: bool = False, most: int = 6) -> list[float]:
    """Round values from low to high; on a logarithmic axis 1, 2, 5 times powers of ten, or the powers alone."""
    if log:
        exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        for factors in ((1, 2, 5), (1, 3), (1,)):
            values = [f * 10.0**e for e in exponents for f in factors if low <= f * 10.0**e <= high]
            if len(values) <= most:
                break
        return values or [low, high]
    rough = (high - low) / most
    size = 10.0 ** math.floor(math.log10(rough))
    step = next(size * factor for factor in (1, 2, 5, 10) if size * factor >= rough)
    first = math.ceil(low / step - 1e-9)
    return [round((first + i) * step, 10) for i in range(math.floor(high / step + 1e-9) - first + 1)]


class _Scale:
    """From values to coordinates, with round ticks."""

    def __init__(self, low: float, high: float, log: bool, start: float, end: float) -> None:
        self.low, self.high, self.log, self.start, self.end = low, high, log, start, end

    def __call__(self, value: float) -> float:
        low, high = (math.log(self.low), math.log(self.high)) if self.log else (self.low, self.high)
        part = ((math.log(value) if self.log else value) - low) / (high - low)
        return self.start + part * (self.end - self.start)


def _scale(values: Sequence[float], axis: Axis, start: float, end: float) -> _Scale:
    low, high = min(values), max(values)
    if axis.names:
        return _Scale(-0.4, len(axis.names) - 0.6, False, start, end)
    if axis.log:
        pad = (high / low) ** 0.06 if high > low else 2.0
        return _Scale(low / pad, high * pad, True, start, end)
    pad = 0.06 * (high - low) or abs(high) * 0.05 or 1.0
    floor = 0.0 if low >= 0 and low < pad * 3 else low - pad
    ceiling = axis.top if high <= axis.top <= high + 3 * pad else high + pad
    return _Scale(floor, ceiling, False, start, end)


def _x_axis(axis: Axis, scale: _Scale) -> str:
    bottom = TOP + PLOT
    marks = (
        [(float(i), name) for i, name in enumerate(axis.names)]
        if axis.names
        else [(value, axis.format(value)) for value in axis.marks or ticks(scale.low, scale.high, axis.log)]
    )
    parts = [f'<line class="grid" x1="{LEFT:g}" x2="{WIDTH - RIGHT:g}" y1="{bottom:g}" y2="{bottom:g}"/>']
    for value, name in marks:
        at = f"{scale(value):.1f}"
        parts.append(f'<line class="grid" x1="{at}" x2="{at}" y1="{TOP:g}" y2="{bottom + 3:g}"/>')
        parts.append(f'<text class="tick" x="{at}" y="{bottom + 14:g}" text-anchor="middle">{escape(name)}</text>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text x="{middle:g}" y="{bottom + 29:g}" text-anchor="middle">{escape(axis.label)}</text>')
    return "".join(parts)


def _y_axis(axis: Axis, scale: _Scale) -> str:
    parts = []
    for value in ticks(scale.low, scale.high, axis.log):
        at = scale(value)
        parts.append(f'<line class="grid" x1="{LEFT - 3:g}" x2="{WIDTH - RIGHT:g}" y1="{at:.1f}" y2="{at:.1f}"/>')
        shown = escape(axis.format(value))
        parts.append(f'<text class="tick" x="{LEFT - 5:g}" y="{at + 3.5:.1f}" text-anchor="end">{shown}</text>')
    middle = TOP + PLOT / 2
    parts.append(
        f'<text x="10" y="{middle:g}" text-anchor="middle" transform="rotate(-90 10 {middle:g})">'
        f"{escape(axis.label)}</text>"
    )
    return "".join(parts)


def _ours(points: Sequence[tuple[float, float]], number: int, thick: bool = False) -> str:
    colour = f"var(--c{number % COLOURS})"
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dash = _DASHES[number // COLOURS % len(_DASHES)]
    look = (f' stroke-dasharray="{dash}"' if dash else "") + (' style="stroke-width:3"' if thick else "")
    line = f'<polyline class="line" points="{path}" stroke="{colour}"{look}/>' if len(points) > 1 else ""
    few = points if len(points) <= MOST_MARKERS else []
    return line + "".join(_marker(x, y, number) for x, y in few)


def _published(points: Sequence[tuple[float, float]], number: int) -> str:
    colour = f"var(--c{number % COLOURS})"
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    line = f'<polyline class="published" points="{path}" stroke="{colour}"/>' if len(points) > 1 else ""
    return line + "".join(_cross(x, y, colour) for x, y in points)


def _cross(x: float, y: float, colour: str) -> str:
    arm = 3.2
    strokes = f"M{x - arm:.1f} {y - arm:.1f}l{2 * arm:g} {2 * arm:g}m0 {-2 * arm:g}l{-2 * arm:g} {2 * arm:g}"
    return f'<path d="{strokes}" stroke="{colour}" fill="none" stroke-width="1.3"/>'


def _marker(x: float, y: float, number: int) -> str:
    colour, size = f"var(--c{number % COLOURS})", 2.9
    shape = _SHAPES[number % len(_SHAPES)]
    if shape == "circle":
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{size:g}" fill="{colour}"/>'
    corners = {
        "square": ((-1, -1), (1, -1), (1, 1), (-1, 1)),
        "triangle": ((0, -1.3), (1.2, 0.9), (-1.2, 0.9)),
        "diamond": ((0, -1.4), (1.4, 0), (0, 1.4), (-1.4, 0)),
    }[shape]
    path = " ".join(f"{x + size * dx:.1f},{y + size * dy:.1f}" for dx, dy in corners)
    return f'<polygon points="{path}" fill="{colour}"/>'


def _legend(lines: Sequence[Curve]) -> tuple[tuple[str, str], ...]:
    shown: list[tuple[str, str]] = []
    for number, line in enumerate(lines):
        if not (line.ours or line.published):
            continue
        if line.ours:
            swatch = _ours([(0.0, 0.0), (18.0, 0.0)] if len(line.ours) > 1 else [(9.0, 0.0)], number)
        else:
            swatch = _published([(4.0, 0.0), (14.0, 0.0)], number)
        shown.append((swatch, line.label))
    if any(line.published for line in lines) and any(line.ours for line in lines):
        shown.append((_cross(9, 0, "var(--ink)"), "published"))
    return tuple(shown)


def _under(shown: Sequence[tuple[str, str]], top: float) -> tuple[str, float]:
    """The legend under its plot, in two columns where labels are short; and where it ends."""
    columns = 2 if max(len(label) for _, label in shown) <= 22 else 1
    deep = math.ceil(len(shown) / columns)
    parts = []
    for index, (swatch, label) in enumerate(shown):
        x, y = 14 + (index // deep) * (WIDTH - 20) / columns, top + 14 * (index % deep)
        text = f'<text x="25" y="3.5">{escape(_fitted(label, 56))}</text>'
        parts.append(f'<g transform="translate({x:g} {y:g})">{swatch}{text}</g>')
    return "".join(parts), top + 14 * deep


def _fitted(label: str, most: int) -> str:
    return label if len(label) <= most else f"{label[: most - 1].rstrip()}…"


def _svg(title: str, height: float, parts: Sequence[str], heading: str = "", width: float = WIDTH) -> str:
    body = "".join(parts)
    if heading:
        height += 16
        head = f'<text x="{LEFT:g}" y="13" class="heading">{escape(_fitted(heading, 48))}</text>'
        body = f'{head}<g transform="translate(0 16)">{body}</g>'
    return (
        f'<svg class="plot" role="img" aria-label="{escape(title)}" viewBox="0 0 {width:g} {height:g}">'
        f"<title>{escape(title)}</title>{body}</svg>"
    )


def _standalone(svg: str, style: str, enlarged: int = 1) -> str:
    """A plot as a file, on the page's background and with its style inside."""
    width, height = _size(svg)
    opening, _, rest = svg.partition(">")
    page = '<rect width="100%" height="100%" fill="var(--paper)"/>'
    size = f'width="{enlarged * width:g}" height="{enlarged * height:g}"'
    namespace = 'xmlns="http://www.w3.org/2000/svg"'
    return f"{opening} {size} {namespace}><style>{VARIABLES}{style}</style>{page}{rest}\n"


def _size(svg: str) -> tuple[float, float]:
    """Width and height of a plot, from its view box."""
    width, height = re.findall(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg)[0]
    return float(width), float(height)
