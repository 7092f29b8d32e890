"""A palette for colour-blind readers, after Okabe and Ito (2008): for white pages and for dark ones."""

BLUE, VERMILION, GREEN = ("#0072b2", "#4aa8e0"), ("#d55e00", "#f0813a"), ("#009e73", "#2cc79a")
PURPLE, ORANGE, SKY = ("#b45a8c", "#dd8fb8"), ("#b87f00", "#f0b429"), ("#3a9bd0", "#7cc7f0")
BLACK, GREY = ("#222222", "#e8e8e8"), ("#808080", "#9a9a9a")
CYCLE = (BLUE, VERMILION, GREEN, BLACK, GREY, PURPLE, ORANGE, SKY)

DASHED, DOTTED, DASH_DOT = "6 3", "2 2", "7 2 2 2"
DASHES = ("", DASHED, DOTTED, DASH_DOT)
