"""Draws the dashboard's panels from what Prometheus recorded, for people to look at: what Grafana would show, roughly."""

import json

from prometheus import DEPLOY


def legend_of(template, labels):
    for name, value in labels.items():
        template = template.replace("{{" + name + "}}", value)
    return template


def draw(prometheus, variables, begin, end, path):
    import matplotlib  # only where a picture is asked for
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    panels = [panel for panel in json.loads((DEPLOY / "grafana" / "eps-run.json").read_text())["panels"]
              if panel["type"] != "row"]
    bottom = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in panels)
    figure = plt.figure(figsize=(24, bottom * 0.42))
    for panel in panels:
        at = panel["gridPos"]
        axes = figure.add_axes([(at["x"] + 0.9) / 24, 1 - (at["y"] + at["h"] - 0.8) / bottom, (at["w"] - 1.3) / 24,
                                (at["h"] - 2.0) / bottom])
        axes.set_title(f"{panel['title']} ({panel['fieldConfig']['defaults']['unit']})", fontsize=9)
        axes.tick_params(labelsize=7)
        for target in panel["targets"]:
            expr = target["expr"]
            for name, value in variables.items():
                expr = expr.replace(f"${name}", value)
            for series in prometheus.series(expr, begin, end):
                points = [(float(t) - begin, float(v)) for t, v in series["values"]]
                axes.plot(*zip(*points), label=legend_of(target["legendFormat"], series["metric"]), linewidth=1)
        if axes.lines and len(panel["targets"][0]["legendFormat"]) > 0:
            axes.legend(fontsize=6, loc="upper left")
        if "min" in panel["fieldConfig"]["defaults"]:
            axes.set_ylim(bottom=0)
    figure.savefig(path, dpi=70)
