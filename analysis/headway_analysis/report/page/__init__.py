"""`report.html`: one run, or several side by side, as a self-contained page.

curves      the data of the charts: which metrics are drawn by step
drawing     a chart as SVG, whose colours follow the reader's theme
choice      which episodes are shown
episodes    an episode turn by turn, its tokens coloured
model       the data from which a page is made
reading     reads this data from a run's files
standing    when signals were raised
training, evaluation, comparison    the contents of each kind of page
html        the page
"""
