"""Two recordings held against each other: quantiles, error ratios and SLO attainment, with intervals and tolerances."""
