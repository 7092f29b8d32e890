"""The ablation of the regression weight α (paper, Figure 2 centre): W2 on Ant, and full regression beside it.

The figure's text does not give the values of α; these span two orders of magnitude around the tables' 8.
"""

from typing import Any

DESCRIPTION = "Figure 2 (center): the weight α of the regression penalty, and full regression, W2 on Ant"
ENV_ID = "Ant-v4"
SOURCE = "paper, Figure 2 (center) and table of MuJoCo hyperparameters; values of α are this project's"
WEIGHTS = (0.5, 2.0, 8.0, 32.0, 128.0)
FULL_REGRESSION = {"regression": "full", "regression_weight": 0.0, "regression_epochs": 10}

VARIANTS: tuple[dict[str, Any], ...] = (
    *({"regression_weight": weight, "source": SOURCE} for weight in WEIGHTS),
    {**FULL_REGRESSION, "source": SOURCE},
)
