"""Where the thresholds of the checks come from."""

from typing import Final

from headway_analysis.signals.catalogue.sources import GUIDE as GUIDE

EXACT: Final = "Clopper and Pearson 1934, for intervals"
SEQUENTIAL: Final = (
    "Wald 1945, Sequential tests of statistical hypotheses. Ville 1939, for looking at any time. "
    "Ramdas, Grünwald, Vovk and Shafer 2023 (arXiv 2210.01948)"
)
