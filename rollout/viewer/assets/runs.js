"use strict";
// Runs over steps, several laid over each other.
(() => {
  const { el, number, percent } = Viewer;
  const PLOTS = [
    ["reward", "reward", number],
    ["spread", "spread of groups (best − worst)", number],
    ["flat_groups", "groups without spread", percent],
    ["errors", "tool calls with an error", percent],
    ["truncated", "truncated", percent],
    ["length", "response tokens", (value) => number(value, 0)],
    ["sampled", "sampled tokens", (value) => number(value, 0)],
    ["thinking", "thinking tokens", (value) => number(value, 0)],
    ["turns", "turns", (value) => number(value, 1)],
    ["seconds", "seconds", Viewer.seconds],
    ["queued", "seconds waiting for servers", Viewer.seconds],
  ];
  const MOST_STEPS = 4;
  const name = (each, all) => {
    const several = (key) => new Set(all.map((other) => other[key])).size > 1;
    const parts = [several("run") ? each.run : null, several("environment") ? each.environment : null, each.split];
    return parts.filter(Boolean).join(" · ");
  };

  // Means over all steps; `over` is the column with the number of values in each step's mean. Validations of different
  // steps are different policies on the same tasks: of held-out ones, those of the last step.
  function total(each) {
    const weights = (over) => each[over].map((count, index) => (isCounted(each, index) ? count : 0));
    const sum = weights("count").reduce((one, other) => one + other, 0);
    const mean = (column, over = "count") => {
      const own = weights(over);
      const known = each[column].map((value, index) => [value, own[index]]).filter(([value]) => value !== null);
      const weight = known.reduce((one, [, other]) => one + other, 0);
      return weight ? known.reduce((one, [value, other]) => one + value * other, 0) / weight : null;
    };
    const stops = {};
    for (const [index, step] of each.stops.entries())
      if (isCounted(each, index))
        for (const [reason, count] of Object.entries(step)) stops[reason] = (stops[reason] || 0) + count;
    return { count: sum, mean, stops };
  }

  const isOfLastStep = (each) => each.split === "held-out" && each.steps.length > 1;
  const isCounted = (each, index) => !isOfLastStep(each) || index === each.steps.length - 1;

  function filterOf(each) {
    const last = isOfLastStep(each) ? { step_from: each.steps.at(-1), step_to: each.steps.at(-1) } : {};
    return { runs: each.run, environment: each.environment, split: each.split, ...last };
  }

  // The first step's reward, the last ones', and what is between as far as there is room.
  function rewardByStep(each) {
    if (each.steps.length < 2) return "–";
    const shown = each.steps.map((step, index) => [step, each.reward[index]]);
    const cut = shown.length > MOST_STEPS ? [shown[0], null, ...shown.slice(1 - MOST_STEPS)] : shown;
    return cut.map((one) =>
      one === null
        ? "… "
        : [el("span", { class: "at-step" }, el("small", {}, `${one[0]}: `), Viewer.rewardChip(one[1])), " "],
    );
  }

  function stepsOf(each) {
    if (each.steps.length < 2) return each.steps[0] ?? "–";
    return isOfLastStep(each) ? `${each.steps.at(-1)}, the last one` : `${each.steps[0]} to ${each.steps.at(-1)}`;
  }

  function table(all) {
    const rows = all.map((each, index) => {
      const { count, mean, stops } = total(each);
      const mark = el("i", { class: "swatch" });
      mark.style.background = Viewer.lineColour(index);
      const ended = Object.entries(stops)
        .sort((a, b) => b[1] - a[1])
        .map(([reason, own]) =>
          Viewer.link(
            Viewer.filters.address("list", { ...filterOf(each), stop: reason }),
            `${reason} ${percent(own / count)} `,
          ),
        );
      return el(
        "tr",
        {},
        el("th", { scope: "row" }, mark, Viewer.link(Viewer.filters.address("list", filterOf(each)), name(each, all))),
        el("td", {}, number(count)),
        el("td", {}, stepsOf(each)),
        el("td", {}, Viewer.rewardChip(mean("reward", "rewards"))),
        el("td", { class: "by-step" }, rewardByStep(each)),
        el("td", {}, percent(mean("errors", "calls"))),
        el("td", {}, number(mean("sampled"), 0)),
        el("td", {}, number(mean("turns"), 1)),
        el("td", { class: "ended" }, ended),
      );
    });
    return el(
      "div",
      { class: "scroll" },
      el(
        "table",
        { class: "runs", "aria-label": "runs" },
        el(
          "thead",
          {},
          el(
            "tr",
            {},
            [
              "run",
              "trajectories",
              "steps",
              "reward",
              "reward by step",
              "calls failed",
              "sampled tokens",
              "turns",
              "ended by",
            ].map((label) => el("th", { scope: "col" }, label)),
          ),
        ),
        el("tbody", {}, rows),
      ),
    );
  }

  const lines = (all, column) =>
    all.map((each, index) => ({
      label: name(each, all),
      steps: each.steps,
      values: each[column],
      index,
      dash: each.split === "held-out" ? [5, 4] : undefined,
    }));
  Viewer.runLines = lines;

  function endings(all) {
    return all.flatMap((each) => {
      const reasons = [...new Set(each.stops.flatMap(Object.keys))];
      if (reasons.length < 2 || each.steps.length < 2) return [];
      const own = reasons.map((reason, index) => ({
        label: reason,
        steps: each.steps,
        values: each.stops.map((stops, step) => (stops[reason] || 0) / each.count[step]),
        index,
      }));
      return [Viewer.plot(`how trajectories ended: ${name(each, all)}`, own, { format: percent })];
    });
  }

  Viewer.views.runs = async (given, state) => {
    const { answer: all, problem } = await Viewer.asked("runs", given);
    const options = {
      environment: state.environments.length > 1 ? state.environments : undefined,
      runs: state.runs.length > 1 ? state.runs : undefined,
    };
    const form = Viewer.filters.form("runs", given, options);
    if (problem) return [el("h1", {}, "Runs"), form, problem];
    const plots = PLOTS.map(([column, title, format]) => Viewer.plot(title, lines(all, column), { format }));
    const choice = state.runs.length > 1 ? runChoice(given, state.runs) : null;
    return [
      el("h1", {}, "Runs"),
      form,
      choice,
      all.length ? table(all) : el("p", { class: "empty" }, "No trajectory matches these filters."),
      el("div", { class: "plots" }, plots, endings(all)),
    ];
  };

  function runChoice(given, names) {
    const chosen = new Set(given.runs ? given.runs.split(",") : names);
    const change = (run, isIn) => {
      if (isIn) chosen.add(run);
      else chosen.delete(run);
      location.hash = Viewer.filters.address("runs", {
        ...given,
        runs: chosen.size === names.length ? "" : [...chosen].join(","),
      });
    };
    return el(
      "fieldset",
      { class: "choice" },
      el("legend", {}, "laid over each other"),
      names.map((run) =>
        el(
          "label",
          {},
          el("input", {
            type: "checkbox",
            checked: chosen.has(run),
            onchange: (event) => change(run, event.target.checked),
          }),
          run,
        ),
      ),
    );
  }
})();
