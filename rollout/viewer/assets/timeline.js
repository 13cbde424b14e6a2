"use strict";
// What a trajectory spent its time on: a row for each kind, seconds from left to right.
(() => {
  const { el } = Viewer;
  const KINDS = { queue: "waiting", generation: "generation", tool: "tools", user: "user" };

  Viewer.timeline = (bars, total, onturn) => {
    const end = Math.max(total || 0, ...bars.map((bar) => bar.start + bar.length), 1e-6);
    const rows = Object.entries(KINDS).map(([kind, label]) => {
      const own = bars.filter((bar) => bar.kind === kind);
      if (!own.length) return null;
      const spent = own.reduce((sum, bar) => sum + bar.length, 0);
      const track = el("div", { class: "track" });
      for (const bar of own) {
        const title = `${bar.label}, ${Viewer.seconds(bar.length)}`;
        const box = el("button", {
          class: `bar ${kind}`,
          title,
          "aria-label": title,
          tabindex: "-1",
          onclick: () => bar.turn >= 0 && onturn(bar.turn),
        });
        box.style.left = `${(100 * bar.start) / end}%`;
        box.style.width = `${Math.max(0.25, (100 * bar.length) / end)}%`;
        track.append(box);
      }
      return el(
        "div",
        { class: "line" },
        el("span", { class: "name" }, label),
        track,
        el("span", { class: "spent" }, `${Viewer.seconds(spent)} · ${Viewer.percent(spent / end)}`),
      );
    });
    return el("section", { class: "timeline", "aria-label": "timeline" }, rows);
  };
})();
