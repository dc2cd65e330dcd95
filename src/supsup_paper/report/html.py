"""The report as one HTML page: no scripts, no network, light and dark, for phone and desktop."""

from __future__ import annotations

from base64 import b64encode
from html import escape

from supsup_paper.report.entry_plots import EntryPlot, entry_plots
from supsup_paper.report.grids import (
    Cell,
    Grid,
    GridRow,
    figure_grids,
    origin_grid,
    remarks,
    shown_time,
    tolerance_grid,
)
from supsup_paper.report.summary import EntrySummary, Summary
from supsup_paper.report.verdicts import ALWAYS_COUNTED, BETTER, REPRODUCED, RULES, WORSE

_STYLE = """
:root{color-scheme:light dark;--paper:#ffffff;--ink:#1c1e21;--faint:#5c6370;--rule:#d5d9de;--link:#0b62a8;
--good:#17693b;--bad:#a8231b;--tint:#f4f6f8}
@media(prefers-color-scheme:dark){:root{--paper:#15181c;--ink:#e8eaed;--faint:#a3abb6;--rule:#3a4048;--link:#6db3f2;
--good:#74d49b;--bad:#ff9c92;--tint:#1e2329}}
*{box-sizing:border-box}
html{background:var(--paper);color:var(--ink);font:16px/1.5 system-ui,sans-serif;-webkit-text-size-adjust:100%}
body{margin:0 auto;padding:1rem;max-width:80rem;overflow-wrap:break-word}
h1{font-size:1.7rem;line-height:1.2;margin:.5rem 0}h2{font-size:1.25rem;margin:0}
a{color:var(--link)}code{font-size:.9em}
.faint,.where{color:var(--faint)}.faint{white-space:nowrap}.where{margin:.1rem 0 .6rem;font-size:.92rem}
.counts{display:flex;flex-wrap:wrap;gap:.6rem;padding:0;margin:1rem 0;list-style:none}
.counts li{background:var(--tint);border-radius:.5rem;padding:.5rem .9rem}
.counts b{display:block;font-size:1.4rem;line-height:1.2}
nav ol{columns:20rem;column-gap:2.5rem;padding-left:1.6rem;margin:.4rem 0 1rem}nav li{break-inside:avoid}
.pair{display:flex;flex-wrap:wrap;gap:0 2.5rem;align-items:flex-start}
section{border-top:1px solid var(--rule);padding:1.4rem 0 1rem}
.plot{display:block;flex:1 1 30rem;min-width:0;max-width:min(100%,36rem);height:auto;margin:0 0 1rem;background:#fff;
border-radius:.4rem}
.scroll{overflow-x:auto;max-width:100%;margin:0 0 1rem}.scroll:focus-visible{outline:2px solid var(--link)}
table{border-collapse:collapse;font-size:.88rem;line-height:1.3;font-variant-numeric:tabular-nums}
caption{text-align:left;font-weight:600;padding:.2rem 0 .4rem;white-space:nowrap}
th,td{padding:.35rem .7rem .35rem 0;text-align:left;vertical-align:top;border-bottom:1px solid var(--rule)}
thead th{color:var(--faint);font-weight:500}td{white-space:nowrap}
tbody th{font-weight:500;min-width:12rem;max-width:18rem}
td small{display:block;color:var(--faint);font-size:.8rem}
.good{color:var(--good)}.bad,td.bad small{color:var(--bad)}
.ours{color:var(--faint);border:1px solid var(--rule);border-radius:.6rem;padding:0 .4rem;font-size:.75rem;
white-space:nowrap}
.long td:last-child{white-space:normal;min-width:18rem}
details{margin:0 0 1rem}summary{cursor:pointer;color:var(--link);padding:.2rem 0}
dl{margin:0 0 1rem;max-width:46rem}dt{font-weight:600}dd{margin:0 0 .5rem}
@media(max-width:480px){tbody th{min-width:7.5rem;max-width:8.5rem}th,td{padding-right:.55rem}}
""".strip()


def page(summary: Summary) -> str:
    """The whole page; the same results give the same bytes."""
    parts = [
        "<!doctype html>",
        '<html lang="en">',
        "<head>",
        '<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width,initial-scale=1">',
        "<title>Supermasks in Superposition, reproduced</title>",
        f"<style>\n{_STYLE}\n</style>",
        "</head>",
        "<body>",
        "<header>",
        "<h1>Supermasks in Superposition, reproduced</h1>",
        "<p>Every table and figure of the paper (Wortsman et al., NeurIPS 2020): our mean over seeds ± the sample "
        "deviation beside the published numbers. Made by <code>supsup report</code> from the files that "
        "<code>supsup reproduce</code> wrote.</p>",
        _counts(summary),
        "<details><summary>How verdicts are given, and the tolerances t</summary>",
        f"<dl>{''.join(f'<dt>{word}</dt><dd>{escape(text)}</dd>' for word, text in RULES)}</dl>",
        _table(tolerance_grid(), "scroll long"),
        "</details>",
        "</header>",
        _damaged(summary),
        _contents(summary),
        "<main>",
        *(_section(entry) for entry in summary.entries),
        "</main>",
        "</body>",
        "</html>",
    ]
    return "\n".join(part for part in parts if part) + "\n"


def _counts(summary: Summary) -> str:
    tiles = [
        f"<li><b{_tone(status) if count else ''}>{count}</b>rows {status}</li>"
        for status, count in summary.counts.items()
        if count or status in ALWAYS_COUNTED
    ]
    if summary.repeats:
        tiles.append(f"<li><b>{summary.repeats}</b>rows that repeat others</li>")
    if summary.mnist_time is not None:
        device = escape(summary.mnist_time.device)
        tiles.append(f"<li><b>{shown_time(summary.mnist_time.seconds)}</b>MNIST half, one seed, {device}</li>")
    return f'<ul class="counts" aria-label="Summary">{"".join(tiles)}</ul>'


def _damaged(summary: Summary) -> str:
    if not summary.damaged:
        return ""
    files = "".join(f"<li>{escape(line)}</li>" for line in summary.damaged)
    return f'<section id="damaged"><h2 class="bad">Files that could not be used</h2><ul>{files}</ul></section>'


def _contents(summary: Summary) -> str:
    items = []
    for entry in summary.entries:
        done = sum(bool(row.results) for row in entry.rows)
        items.append(
            f'<li><a href="#{escape(entry.entry.name)}">{escape(entry.entry.title)}</a> '
            f'<span class="faint">{done}/{len(entry.rows)} rows run</span></li>'
        )
    return f'<nav aria-label="Contents"><ol>{"".join(items)}</ol></nav>'


def _section(summary: EntrySummary) -> str:
    entry = summary.entry
    name = escape(entry.name)
    first, *others = figure_grids(summary)
    parts = [
        f'<section id="{name}" aria-labelledby="{name}-title">',
        f'<h2 id="{name}-title">{escape(entry.title)}</h2>',
        f'<p class="where">{escape(entry.where)} · <code>supsup reproduce {name} --scale full</code></p>',
        f"<p>{escape(entry.note)}</p>" if entry.note else "",
    ]
    parts.append(f'<div class="pair">{"".join(map(_figure, entry_plots(summary)))}{_table(first)}</div>')
    said = "".join(f"<dt>{escape(label)}</dt><dd>{escape(text)}</dd>" for label, text in remarks(summary))
    parts.append(f"<dl>{said}</dl>" if said else "")
    for grid in others:
        parts.append(f"<details><summary>{escape(grid.caption)}</summary>{_table(grid)}</details>")
    if summary.has_results:
        origin = origin_grid(summary)
        parts.append(f"<details><summary>{escape(origin.caption)}</summary>{_table(origin)}</details>")
    parts.append("</section>")
    return "\n".join(part for part in parts if part)


def _figure(plot: EntryPlot) -> str:
    """The plot is inside the page: nothing is loaded from elsewhere."""
    source = b64encode(plot.svg.encode()).decode()
    return f'<img class="plot" alt="{escape(plot.title)}" src="data:image/svg+xml;base64,{source}">'


def _table(grid: Grid, kind: str = "scroll") -> str:
    headings = ["row", *(["verdict", "t"] if grid.statuses else []), *grid.headings]
    head = "".join(f'<th scope="col">{escape(heading)}</th>' for heading in headings)
    body = "".join(_row(row, grid.statuses) for row in grid.rows)
    label = escape(grid.caption)
    return (
        f'<div class="{kind}" role="region" tabindex="0" aria-label="{label}"><table><caption>{label}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _row(row: GridRow, statuses: bool) -> str:
    mark = ' <span class="ours">ours, not in the paper</span>' if row.beyond else ""
    verdict = f"<td{_tone(row.status)}>{_verdict(row)}</td><td>{row.tolerance}</td>" if statuses else ""
    cells = "".join(_cell(cell) for cell in row.cells)
    return f'<tr><th scope="row">{escape(row.label)}{mark}</th>{verdict}{cells}</tr>'


def _verdict(row: GridRow) -> str:
    counted = f"<small>counted in {escape(row.repeats.partition('/')[0])}</small>" if row.repeats else ""
    return escape(row.status) + counted


def _cell(cell: Cell) -> str:
    below = ""
    if cell.published:
        difference = f" ({escape(cell.difference)})" if cell.difference else ""
        below = f"<small>paper {escape(cell.published)}{difference}</small>"
    return f"<td{_tone(cell.verdict) if cell.verdict == WORSE else ''}>{escape(cell.text)}{below}</td>"


def _tone(status: str) -> str:
    tone = {REPRODUCED: "good", BETTER: "good", WORSE: "bad"}.get(status)
    return f' class="{tone}"' if tone else ""
