"""A picture of curves that were measured: points with their spread, a line through them, a legend."""

import math
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 760, 420
LEFT, RIGHT, TOP, BOTTOM = 70, 180, 50, 55
COLORS = ("#1b6ca8", "#c8553d", "#588b3f", "#8a5fa8", "#444444")


@dataclass
class Line:
    name: str
    points: list  # (x, y), or (x, y, least, most)
    dashed: bool = False


def ticks(most, count=6):
    """Round numbers from 0 up to `most`."""
    rough = most / count
    power = 10 ** math.floor(math.log10(rough))
    step = next(power * k for k in (1, 2, 5, 10) if power * k >= rough)
    return [i * step for i in range(int(most / step) + 1)]


def draw(title, x_label, y_label, lines):
    most_x = 1.05 * max(point[0] for line in lines for point in line.points)
    most_y = 1.1 * max(max(point[1:]) for line in lines for point in line.points)
    x_of = lambda x: LEFT + x / most_x * (WIDTH - LEFT - RIGHT)  # noqa: E731
    y_of = lambda y: HEIGHT - BOTTOM - y / most_y * (HEIGHT - TOP - BOTTOM)  # noqa: E731
    bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">',
           f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
           f'<text x="{LEFT}" y="26" font-size="15">{escape(title)}</text>']
    for y in ticks(most_y):
        out.append(f'<path d="M{LEFT} {y_of(y):.1f}H{right}" stroke="#ddd"/>'
                   f'<text x="{LEFT - 8}" y="{y_of(y) + 4:.1f}" text-anchor="end">{y:g}</text>')
    for x in ticks(most_x):
        out.append(f'<path d="M{x_of(x):.1f} {bottom}v5" stroke="#888"/>'
                   f'<text x="{x_of(x):.1f}" y="{bottom + 20}" text-anchor="middle">{x:g}</text>')
    out.append(f'<path d="M{LEFT} {TOP}V{bottom}H{right}" fill="none" stroke="#888"/>')
    out.append(f'<text x="{(LEFT + right) / 2}" y="{HEIGHT - 12}" text-anchor="middle">{escape(x_label)}</text>')
    out.append(f'<text transform="translate(18 {(TOP + bottom) / 2}) rotate(-90)" text-anchor="middle">{escape(y_label)}</text>')
    for i, line in enumerate(lines):
        color, dash = COLORS[i % len(COLORS)], ' stroke-dasharray="5 4"' if line.dashed else ""
        path = "L".join(f"{x_of(point[0]):.1f} {y_of(point[1]):.1f}" for point in line.points)
        out.append(f'<path d="M{path}" fill="none" stroke="{color}" stroke-width="2"{dash}/>')
        for x, y, *spread in line.points:
            out.append(f'<circle cx="{x_of(x):.1f}" cy="{y_of(y):.1f}" r="3" fill="{color}"/>')
            if spread:
                out.append(f'<path d="M{x_of(x):.1f} {y_of(spread[0]):.1f}V{y_of(spread[1]):.1f}" stroke="{color}"/>')
        y = TOP + 20 * i + 10
        out.append(f'<path d="M{right + 15} {y}h24" stroke="{color}" stroke-width="2"{dash}/>'
                   f'<text x="{right + 45}" y="{y + 4}">{escape(line.name)}</text>')
    return "\n".join([*out, "</svg>", ""])
