"""The list of plots, which the files plots_*.py fill. stories.py says what a plot is.

Each plot fixes a cause and its effects in the rows of its tables, so that whatever is chosen, the
place where a thing is found, the help that is given and the lesson all belong together.
"""

PLOTS = []


def plot(text, hero="any", weight=1, **tables):
    """Add a plot. hero: child, animal or any; weight: how often it is told, compared to others;
    tables: rows of values, named by their first row."""
    PLOTS.extend([(hero, text.strip(), tables)] * weight)
