"use strict";
// Lines over steps, drawn by uPlot.
(() => {
  const { el } = Viewer;
  const COLOURS = ["--line-1", "--line-2", "--line-3", "--line-4", "--line-5", "--line-6", "--line-7", "--line-8"];
  const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const made = [];

  Viewer.lineColour = (index) => `var(${COLOURS[index % COLOURS.length]})`;

  // Lines with the same x-axis: [{label, steps, values, index}] to a plot, or null where there is nothing over steps.
  Viewer.plot = (title, lines, { height = 170, format = (value) => Viewer.number(value), sync = "steps" } = {}) => {
    const usable = lines.filter(
      (line) =>
        line.steps.filter((step, index) => step !== null && line.values[index] !== null).length > 0 &&
        line.steps.some((step) => step !== null),
    );
    if (!usable.length) return null;
    const steps = [...new Set(usable.flatMap((line) => line.steps))]
      .filter((step) => step !== null)
      .sort((a, b) => a - b);
    const columns = usable.map((line) => {
      const at = new Map(line.steps.map((step, index) => [step, line.values[index]]));
      return steps.map((step) => at.get(step) ?? null);
    });
    const box = el(
      "figure",
      {
        class: "plot",
        role: "img",
        "aria-label": `${title}: ${usable
          .map((line, index) => {
            const known = columns[index].filter((value) => value !== null);
            return `${line.label} from ${format(known[0])} to ${format(known.at(-1))}`;
          })
          .join("; ")}`,
      },
      el("figcaption", {}, title),
    );
    const draw = () => {
      const axis = {
        stroke: style("--dim"),
        grid: { stroke: style("--grid"), width: 1 },
        ticks: { stroke: style("--grid") },
        font: "11px system-ui",
      };
      const options = {
        width: Math.max(220, box.clientWidth - 2),
        height,
        padding: [8, 10, 0, 0],
        legend: { live: true },
        cursor: { sync: { key: sync }, drag: { x: true, y: false } },
        scales: {
          x: { time: false },
          y: {
            range: (_, low, high) =>
              low === high ? [low - 0.5, high + 0.5] : [Math.min(low, low >= 0 ? 0 : low), high * 1.02],
          },
        },
        axes: [
          { ...axis, size: 26 },
          { ...axis, size: 48, values: (_, splits) => splits.map((value) => format(value)) },
        ],
        series: [
          { label: "step" },
          ...usable.map((line) => ({
            label: Viewer.plain(line.label),
            stroke: style(COLOURS[line.index % COLOURS.length]),
            width: 2,
            dash: line.dash,
            spanGaps: true,
            points: { show: steps.length < 40, size: 5 },
            value: (_, value) => (value === null || value === undefined ? "–" : format(value)),
          })),
        ],
      };
      const plot = new uPlot(options, [steps, ...columns], box);
      plot.setLegend({ idx: steps.length - 1 });
      return plot;
    };
    made.push({ box, draw });
    return box;
  };

  // Plots need the width of their place, which they have once they are on the page.
  Viewer.drawn = () => {
    for (const each of made.splice(0)) {
      if (!each.box.isConnected) continue;
      const plot = each.draw();
      new ResizeObserver(() => {
        plot.setSize({ width: Math.max(220, each.box.clientWidth - 2), height: plot.height });
        plot.setLegend({ idx: plot.data[0].length - 1 });
      }).observe(each.box);
    }
  };
})();
