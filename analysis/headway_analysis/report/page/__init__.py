"""`report.html`: one run, or several side by side, as a self-contained page.

curves      which metrics are drawn by step, as charts without pixels
drawing     a chart as SVG, whose colours follow the reader's theme
choice      which episodes are shown
episodes    an episode turn by turn, its tokens coloured
model       what a page is made from
reading     the same from a run's files
standing    when signals were raised
training, evaluation, comparison    what each kind of page says
html        the page
"""
