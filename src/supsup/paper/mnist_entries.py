"""The paper's MNIST half as data: PermutedMNIST, RotatedMNIST and SplitMNIST, with every published number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from supsup.paper.catalogue import Entry, Row, settings_of

LENET, FC = "lenet_300_100", "fc_1024"
STAGES = (10, 50, 100, 150, 200, 250)
LONG_STAGES = (500, 1000, 1500, 2000, 2500)
GAMMAS = ("1/k", 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5)

SUPSUP, ROTATED_SUPSUP, RIVAL, ROTATED_RIVAL, BATCHE_INFERRING = 0.3, 0.5, 2.0, 1.5, 3.0  # tolerances, in points

_SUPSUP = {
    (LENET, 100, "H"): (93.65, 93.68, 93.68, 93.66, 93.64, 93.62),
    (LENET, 100, "G"): (93.69, 93.67, 93.67, 93.66, 93.65, 93.63),
    (LENET, 200, "H"): (93.46, 93.49, 93.48, 93.47, 93.47, 93.46),
    (LENET, 200, "G"): (93.46, 93.48, 93.47, 93.47, 93.47, 93.46),
    (LENET, 25, "H"): (93.71, 93.51, 93.28, 93.10, 93.06, 92.94),
    (LENET, 25, "G"): (93.83, 93.66, 93.60, 93.48, 93.43, 93.36),
    (FC, 200, "H"): (96.28, 96.14, 96.04, 95.91, 95.86, 95.66),
    (FC, 200, "G"): (96.28, 96.19, 96.05, 96.00, 95.99, 95.92),
    (FC, 100, "H"): (95.90, 94.77, 94.02, 93.71, 93.00, 92.84),
    (FC, 100, "G"): (96.31, 95.83, 95.60, 95.32, 95.05, 94.88),
    (FC, 25, "H"): (82.28, 69.06, 64.51, 60.99, 58.15, 57.03),
    (FC, 25, "G"): (96.31, 93.17, 91.20, 90.26, 89.04, 88.19),
    (FC, 500, "H"): (96.29, 95.94, 95.59, 95.40, 95.00, 94.91),
}
_DRAW = (
    "What H infers from few outputs depends on what is drawn, the deviation says how much (also in float32: "
    "results/frozen-network.json). The paper does not say how many runs this column is of. "
)
_REMARKS = {
    (FC, 200): "The published digits are those of Table 4, one of 500 outputs by its caption and the released scripts. "
    "With every random draw of the scripts 500 outputs give them to 0.07 at all stages, while 200 are up to 0.80 below "
    "(results/released-draws.json). Table 7 has lower digits under 500 outputs, near those of 200 here.",
    (FC, 100): _DRAW + "With every random draw of the released scripts no stage is more than 0.26 below "
    "(results/released-draws.json).",
    (FC, 25): _DRAW + "With every random draw of the released scripts it is 0.79 above after 10 tasks, but up to 4.82 "
    "below later (results/released-draws.json), so the published column is not of these draws alone.",
}
# Table 4's caption and the released scripts say 500 outputs; Table 9 prints the same digits under s = 200.
_TABLE_4 = {objective: _SUPSUP[FC, 200, objective] for objective in ("H", "G")}
_RIVALS = {
    (LENET, "psp"): (94.80, 83.58, 64.62, 51.18, 42.69, 36.74),
    (LENET, "batche"): (88.85, 88.33, 88.23, 88.23, 88.22, 88.21),
    (LENET, "lower"): (71.67, 41.82, 30.52, 26.40, 23.31, 20.88),
    (LENET, "upper"): (94.94, 95.01, 94.99, 94.95, 94.91, 94.86),
    (FC, "psp"): (97.16, 94.74, 87.77, 78.35, 69.14, 61.11),
    (FC, "batche"): (92.84, 92.40, 92.36, 92.34, 92.33, 92.32),
    (FC, "lower"): (76.89, 49.40, 38.93, 34.53, 31.30, 29.36),
    (FC, "upper"): (96.76, 96.70, 96.68, 96.66, 96.63, 96.61),
}
_NAMES = {"psp": "PSP (GG)", "batche": "BatchE (GG)", "lower": "Lower Bound", "upper": "Upper Bound"}
_RUNS = {"psp": "psp", "lower": "bounds", "upper": "bounds"}


def _curve(values: Sequence[float], stages: Sequence[int]) -> dict[str, dict[str, float]]:
    return {"accuracy %": {str(stage): value for stage, value in zip(stages, values, strict=True)}}


def _training(net: str, outputs: int, tasks: int, stream: str = "permuted") -> dict[str, Any]:
    return {"stream": stream, "net": net, "outputs": outputs, "tasks": tasks, "steps": 1000}


def _supsup(
    name: str,
    label: str,
    training: Mapping[str, Any],
    stages: Sequence[int],
    published: Sequence[float] = (),
    *,
    tolerance: float = SUPSUP,
    **how: Any,
) -> Row:
    """A row of SupSup; how: fields of the grading other than the paper's usual ones."""
    own = {"scenario": "GNu", "protocol": "paper", "method": "one-shot", "objective": "H", "layers": "all"} | how
    settings = settings_of("supsup", training, own | {"stages": list(stages)})
    if not published:
        return Row(name, label, settings, beyond=True)
    return Row(name, label, settings, _curve(published, stages), tolerance)


def _one_shot(
    net: str,
    outputs: int,
    objective: str,
    name: str | None = None,
    label: str = "",
    published: Sequence[float] | None = None,
) -> Row:
    """A published row of One-Shot with single images, 250 permutations."""
    row = _supsup(
        name or f"supsup-{objective}-s{outputs}",
        f"{label}SupSup (GNu {objective}), s = {outputs}",
        _training(net, outputs, 250),
        STAGES,
        published or _SUPSUP[net, outputs, objective],
        objective=objective,
    )
    return replace(row, remark=_REMARKS.get((net, outputs), ""))


def _many_outputs(net: str, objective: str, short: str, called: str) -> Row:
    """500 outputs, which is what the published column s = 200 seems to be."""
    label = f"{called}SupSup (GNu {objective}), s = 500"
    return _supsup(f"{short}-{objective}-s500", label, _training(net, 500, 250), STAGES, objective=objective)


def _beyond(net: str, outputs: int, tasks: int, stages: Sequence[int]) -> tuple[Row, ...]:
    """What the paper does not show: the first layer's gradient alone, every image on its own, and the task given."""
    training = _training(net, outputs, tasks)
    return (
        _supsup("first-layer-H", "SupSup (GNu H), first layer only", training, stages, layers="first"),
        _supsup("strict-H", "SupSup (GNu H), every image for itself", training, stages[-1:], protocol="strict"),
        _supsup("given", "SupSup (GG), task given", training, stages, scenario="GG"),
    )


def _rival_settings(kind: str, training: dict[str, Any], stages: Sequence[int]) -> dict[str, Any]:
    """BatchE can look back at any stage; the others are graded while they learn."""
    if kind == "batche":
        return settings_of("batche", training, {"scenario": "GG", "stages": list(stages)})
    own = {"keep": kind} if _RUNS[kind] == "bounds" else {}
    return settings_of(_RUNS[kind], training | {"stages": list(stages)}, own)


def _rival(net: str, kind: str, name: str | None = None, label: str = "") -> Row:
    """A published row of a rival on 250 permutations."""
    settings = _rival_settings(kind, _training(net, 10, 250), STAGES)
    return Row(name or kind, label + _NAMES[kind], settings, _curve(_RIVALS[net, kind], STAGES), RIVAL)


def _batche_inferring(name: str, label: str, base: str, protocol: str, published: Sequence[float]) -> Row:
    training = _training(FC, 500, 250) | {"base": base}
    own = {"scenario": "GNu", "protocol": protocol, "method": "one-shot", "objective": "H", "stages": list(STAGES)}
    settings = settings_of("batche", training, own)
    if not published:
        return Row(name, label, settings, beyond=True)
    return Row(name, label, settings, _curve(published, STAGES), BATCHE_INFERRING)


def _consolidation(kind: str, label: str, strength: float, published: float, remark: str = "") -> Row:
    training = {"stream": "permuted", "net": "784-1000-1000", "outputs": 100, "tasks": 10, "steps": 5000}
    training |= {"batch size": 256, "method": kind, "strength": strength, "stages": [10]}
    settings = settings_of("consolidation", training, {})
    return Row(kind, label, settings, {"accuracy %": {"10": published}}, RIVAL, remark=remark)


def _rotated_rival(kind: str, published: float) -> Row:
    settings = _rival_settings(kind, _training(FC, 10, 36, "rotated"), [36])
    return Row(kind, _NAMES[kind], settings, {"accuracy %": {"": published}}, ROTATED_RIVAL)


def _rotated_supsup(name: str, label: str, published: float | None = None, **how: Any) -> Row:
    own = {"scenario": "GNu", "protocol": "paper-full-batch", "method": "binary", "objective": "H", "layers": "all"}
    settings = settings_of("supsup", _training(FC, 200, 36, "rotated"), own | {"stages": [36]} | how)
    if published is None:
        return Row(name, label, settings, beyond=True)
    return Row(name, label, settings, {"accuracy %": {"": published}}, ROTATED_SUPSUP)


def _gamma(name: str, label: str, published: Mapping[str, float]) -> Row:
    own: dict[str, Any] = {"scenario": "GNu", "protocol": "paper-full-batch", "method": "gamma", "objective": "H"}
    own |= {"layers": "all", "gammas": list(GAMMAS), "stages": [36]}
    settings = settings_of("supsup", _training(FC, 200, 36, "rotated"), own)
    return Row(name, label, settings, {"accuracy %": dict(published)}, ROTATED_SUPSUP)


def _abatche(net: str, images: int, objective: str) -> Row:
    own: dict[str, Any] = {"scenario": "GNu", "protocol": "paper-full-batch", "method": "abatche"}
    own |= {"objective": objective, "images": images, "stages": list(STAGES)}
    short, called = ("lenet", "LeNet 300-100") if net == LENET else ("fc", "FC 1024-1024")
    label = f"{called}: ABatchE ({objective}), b = {images}"
    return Row(f"{short}-{objective}-b{images}", label, settings_of("batche", _training(net, 100, 250), own))


def _hopfield(name: str, label: str, procedure: str, tolerance: float | None, remark: str = "") -> Row:
    training = {"units": 2048, "epochs": 1, "starts": 8, "tasks": 5}
    settings = settings_of("hopfield", training, {"procedure": procedure})
    published = {} if tolerance is None else {"accuracy %": {"": 97.43}}
    return Row(name, label, settings, published, tolerance, beyond=tolerance is None, remark=remark)


def _unannounced(name: str, label: str, remark: str = "", **rule: float) -> Row:
    training = _LONG | {"stages": list(LONG_STAGES)} | ({"allocation": rule} if rule else {})
    published = _curve((93.49, 93.46, 93.46, 93.45, 92.54), LONG_STAGES)
    return Row(name, label, settings_of("unannounced", training, {}), published, SUPSUP, remark=remark)


_LONG = _training(LENET, 500, 2500)

ENTRIES = (
    Entry(
        "permuted-lenet",
        "250 permutations of MNIST with LeNet 300-100, the task inferred from one image",
        "Figure 3 (left), Table 3; Lower Bound from Table 8",
        (
            _one_shot(LENET, 100, "H"),
            _one_shot(LENET, 100, "G"),
            *(_rival(LENET, kind) for kind in ("psp", "batche", "lower", "upper")),
            *_beyond(LENET, 100, 250, STAGES),
        ),
        "tasks learned",
    ),
    Entry(
        "permuted-fc",
        "250 permutations of MNIST with FC 1024-1024, the task inferred from one image",
        "Figure 3 (right), Table 4; Lower Bound from Table 9",
        (
            *(_one_shot(FC, 500, objective, published=values) for objective, values in _TABLE_4.items()),
            *(_rival(FC, kind) for kind in ("psp", "batche", "lower", "upper")),
            *_beyond(FC, 500, 250, STAGES),
        ),
        "tasks learned",
        note="500 outputs, as the caption and the released scripts say; the printed table equals the column s = 200 of "
        "Table 9 digit for digit. Table 7 has lower figures for the same experiment (batche-inference).",
    ),
    Entry(
        "permuted-2500",
        "2,500 permutations of MNIST with LeNet 300-100, announced and unannounced",
        "Figure 4, Table 5",
        (
            _supsup("supsup-H", "SupSup (GNu H)", _LONG, LONG_STAGES, (93.49, 93.47, 93.46, 93.45, 93.45)),
            _supsup(
                "supsup-G", "SupSup (GNu G)", _LONG, LONG_STAGES, (93.49, 93.48, 93.46, 93.45, 93.45), objective="G"
            ),
            _unannounced("nns-H", "SupSup (NNs H)"),
            _unannounced(
                "nns-H-paper",
                "SupSup (NNs H), the paper's rule alone",
                "One wrong decision is enough: a mask that learns a second task draws others to itself, and in the end "
                "all that follow (docs/scenarios.md). How soon it comes to that differs from seed to seed.",
                deviations=0,
            ),
            Row(
                "upper",
                "Upper Bound",
                _rival_settings("upper", _training(LENET, 10, 2500), LONG_STAGES),
                _curve((94.71,) * 5, LONG_STAGES),
                RIVAL,
            ),
            _supsup("first-layer-H", "SupSup (GNu H), first layer only", _LONG, LONG_STAGES, layers="first"),
            _supsup(
                "first-layer-G", "SupSup (GNu G), first layer only", _LONG, LONG_STAGES, layers="first", objective="G"
            ),
            _supsup("given", "SupSup (GG), task given", _LONG, LONG_STAGES[-1:], scenario="GG"),
        ),
        "tasks learned",
    ),
    Entry(
        "output-size",
        "More outputs than classes make the task easier to infer: s = 25, 100 and 200",
        "Figure 6, Tables 8 and 9",
        tuple(
            row
            for net, short, called in ((LENET, "lenet", "LeNet 300-100: "), (FC, "fc", "FC 1024-1024: "))
            for row in (
                *(
                    _one_shot(net, outputs, objective, f"{short}-{objective}-s{outputs}", called)
                    for outputs in (200, 100, 25)
                    for objective in ("H", "G")
                ),
                *(_rival(net, kind, f"{short}-{kind}", called) for kind in ("lower", "upper")),
                *(_many_outputs(net, objective, short, called) for objective in ("H", "G")),
            )
        ),
        "tasks learned",
        note="The published column s = 200 of FC 1024-1024 equals Table 4 digit for digit, and that is a table of 500 "
        "outputs by its caption, the released scripts and their draws made again. So 500 outputs are run as well.",
    ),
    Entry(
        "rotated",
        "36 rotations of MNIST by 10° with FC 1024-1024: tasks that are alike",
        "Figure 5 (left), Table 6",
        (
            _rotated_supsup("supsup-binary-H", "SupSup (GNu full batch H), Binary", 96.13),
            *(
                _rotated_rival(kind, value)
                for kind, value in (("psp", 95.87), ("batche", 92.40), ("lower", 48.71), ("upper", 98.01))
            ),
            _rotated_supsup("one-shot-H", "SupSup (GNu full batch H), One-Shot", method="one-shot"),
            _rotated_supsup("given", "SupSup (GG), task given", scenario="GG"),
        ),
        figure="bars",
    ),
    Entry(
        "batche-inference",
        "One-Shot given to BatchE: 250 permutations of MNIST with FC 1024-1024 and 500 outputs",
        "Figure 5 (right), Table 7; Online EWC and SI are cited in section 4.2",
        (
            _one_shot(FC, 500, "H", "supsup-H"),
            _batche_inferring(
                "batche-full-batch",
                "BatchE (GNu full batch H)",
                "random",
                "paper-full-batch",
                (91.94, 91.90, 92.04, 92.04, 92.04, 92.04),
            ),
            _batche_inferring(
                "batche-one-image",
                "BatchE (GNu H)",
                "random",
                "paper",
                (66.08, 61.89, 60.93, 59.33, 57.37, 55.74),
            ),
            _rival(FC, "upper"),
            _batche_inferring(
                "trained-full-batch", "BatchE, W trained (full batch)", "trained", "paper-full-batch", ()
            ),
            _batche_inferring("trained-one-image", "BatchE, W trained (one image)", "trained", "paper", ()),
            _consolidation(
                "ewc",
                "Online EWC (class-incremental, cited)",
                5.0,
                33.88,
                "λ = 5 and γ = 1 as van de Ven and Tolias released them, after trying many on their network; the one "
                "here has no biases and the images are not padded. It may want another: with a fifth of the steps "
                "λ = 5 gives 28.37, 50 gives 36.99 and 500 gives 18.13 (results/ewc-strength.json, one seed).",
            ),
            _consolidation("si", "SI (class-incremental, cited)", 0.1, 29.31),
        ),
        "tasks learned",
        note="BatchE's W is random here; docs/rivals.md says why it cannot have been trained.",
    ),
    Entry(
        "abatche",
        "ABatchE: BatchE that tries every task on b images and takes the surest",
        "Figure 10 (appendix), no numbers printed",
        tuple(_abatche(net, b, goal) for net in (LENET, FC) for goal in ("H", "M") for b in (1, 4, 16)),
        "tasks learned",
    ),
    Entry(
        "gamma",
        "From One-Shot (γ = 1/k) to Binary (γ = 1/2) on 36 rotations of MNIST",
        "Figure 11 (left), no numbers printed; γ = 1/2 is in Table 6",
        (_gamma("full-batch-H", "SupSup (GNu full batch H)", {"0.5": 96.13}),),
        "γ",
    ),
    Entry(
        "hopfield",
        "HopSupSup on SplitMNIST: masks recovered from a memory of constant size",
        "Figures 7 and 8 (appendix)",
        (
            _hopfield(
                "paper",
                "HopSupSup, one descent as published",
                "paper",
                0.3,
                "One descent from μ slid into another task's attractor, or mixed two tasks' masks between the layers, "
                "for 8 of 100 tasks, whose accuracy is then near 0; how the published mean avoids this is not known. "
                "Best of 8 descents, judged by entropy, finds all 100.",
            ),
            _hopfield("best-of", "HopSupSup, best of 8 descents", "best-of", 0.0),
            _hopfield("own", "masks as learned", "own", None),
        ),
        figure="distances",
        note="97.43 is a mean over 20 seeds. One descent as printed sometimes ends in another task's mask or in a "
        "mixture, which costs all of that task's accuracy (docs/hopfield.md). "
        "Best-of is ours, held against the published mean.",
    ),
)
