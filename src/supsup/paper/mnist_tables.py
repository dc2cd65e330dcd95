"""Numbers printed in the paper for 250 permutations of MNIST, and what is known where ours differ.

SupSup's stand by network, outputs and objective, the rivals' by network and rival: accuracy in % after 10, 50, 100,
150, 200 and 250 tasks.
"""

from __future__ import annotations

from supsup.paper.mnist_experiments import FC, LENET

SUPSUP = {
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
REMARKS = {
    (FC, 200): "The published digits are those of Table 4, one of 500 outputs by its caption and the released scripts. "
    "With every random draw of the scripts 500 outputs give them to 0.07 at all stages, while 200 are up to 0.80 below "
    "(results/released-draws.json). Table 7 has lower digits under 500 outputs, near those of 200 here.",
    (FC, 100): _DRAW + "With every random draw of the released scripts no stage is more than 0.26 below "
    "(results/released-draws.json).",
    (FC, 25): _DRAW + "With every random draw of the released scripts it is 0.79 above after 10 tasks, but up to 4.82 "
    "below later (results/released-draws.json), so the published column is not of these draws alone.",
}
# Table 4's caption and the released scripts say 500 outputs; Table 9 prints the same digits under s = 200.
TABLE_4 = {objective: SUPSUP[FC, 200, objective] for objective in ("H", "G")}
RIVALS = {
    (LENET, "psp"): (94.80, 83.58, 64.62, 51.18, 42.69, 36.74),
    (LENET, "batche"): (88.85, 88.33, 88.23, 88.23, 88.22, 88.21),
    (LENET, "lower"): (71.67, 41.82, 30.52, 26.40, 23.31, 20.88),
    (LENET, "upper"): (94.94, 95.01, 94.99, 94.95, 94.91, 94.86),
    (FC, "psp"): (97.16, 94.74, 87.77, 78.35, 69.14, 61.11),
    (FC, "batche"): (92.84, 92.40, 92.36, 92.34, 92.33, 92.32),
    (FC, "lower"): (76.89, 49.40, 38.93, 34.53, 31.30, 29.36),
    (FC, "upper"): (96.76, 96.70, 96.68, 96.66, 96.63, 96.61),
}
