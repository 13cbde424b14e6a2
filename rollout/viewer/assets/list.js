"use strict";
// The list of trajectories: a page at a time, filtered and sorted by the index.
(() => {
  const { el, number } = Viewer;
  const COLUMNS = [
    ["reward", "reward", (row) => Viewer.rewardChip(row.reward), "-reward"],
    ["step", "step", (row) => (row.step === null ? "–" : row.step)],
    ["validate", "split", (row) => (row.validate ? "held-out" : row.step === null ? "" : "train")],
    [
      "task",
      "task",
      (row) =>
        el(
          "span",
          { class: "task" },
          Viewer.link(`#/t/${encodeURIComponent(row.id)}`, row.task || row.id.slice(0, 12)),
          el("small", {}, row.text),
        ),
    ],
    ["row", "row", (row) => `${row.row}·${row.sample}${row.attempt ? `·${row.attempt}` : ""}`],
    ["turns", "turns", (row) => number(row.turns)],
    ["tool_calls", "calls", (row) => calls(row)],
    ["sampled_tokens", "tokens", (row) => number(row.sampled_tokens)],
    ["thinking_tokens", "thinking", (row) => number(row.thinking_tokens)],
    [
      "stop_reason",
      "ended",
      (row) =>
        el(
          "span",
          {},
          Viewer.chip(ending(row), row.failure || row.stop_reason || "unfinished"),
          Object.keys(row.marks).map((mark) => Viewer.chip("warn", mark)),
        ),
    ],
    ["elapsed_s", "time", (row) => Viewer.seconds(row.elapsed_s)],
  ];
  const LIMITS = ["turn_limit", "user_turn_limit", "tool_call_limit", "token_limit", "time_limit"];
  const CUT = [...LIMITS, "filtered", "bad_summary"];
  const ending = (row) => (row.withdrawn ? "bad" : CUT.includes(row.stop_reason) ? "warn" : "plain");
  Viewer.ending = ending;

  function calls(row) {
    const failed = Object.keys(row.errors).map(Viewer.toolName);
    return el(
      "span",
      {
        title: Object.entries(row.calls)
          .map(([name, count]) => `${Viewer.toolName(name)} ${count}`)
          .join(", "),
      },
      number(row.tool_calls),
      failed.length ? Viewer.chip("bad", `${failed.join(", ")} failed`) : null,
    );
  }

  function heading(given, [name, label, , first]) {
    const current = (given.sort || "").split(",")[0];
    const isSorted = current.replace("-", "") === name;
    const next = isSorted ? (current.startsWith("-") ? name : `-${name}`) : first || name;
    const sign = isSorted ? (current.startsWith("-") ? " ↓" : " ↑") : "";
    const order = isSorted ? (current.startsWith("-") ? "descending" : "ascending") : null;
    return el(
      "th",
      { scope: "col", "aria-sort": order },
      Viewer.link(Viewer.filters.address("list", { ...given, sort: next, page: "" }), label + sign),
    );
  }

  function pager(given, answer) {
    const last = Math.max(0, Math.ceil(answer.total / answer.size) - 1);
    const to = (page, label, key) =>
      page < 0 || page > last || page === answer.page
        ? el("span", { class: "off" }, label)
        : el("a", { href: Viewer.filters.address("list", { ...given, page: page || "" }), "data-key": key }, label);
    return el(
      "nav",
      { class: "pager", "aria-label": "pages" },
      to(0, "first"),
      to(answer.page - 1, "previous", "p"),
      el("span", {}, `page ${answer.page + 1} of ${last + 1}`),
      to(answer.page + 1, "next", "n"),
      to(last, "last"),
    );
  }

  Viewer.views.list = async (given, state) => {
    const { answer, problem } = await Viewer.asked("list", given);
    const options = {
      environment: state.environments.length > 1 ? state.environments : undefined,
      runs: state.runs.length > 1 ? state.runs : undefined,
    };
    const form = Viewer.filters.form("list", given, options);
    if (problem) return [el("h1", {}, "Trajectories"), form, problem];
    Viewer.lastList = { given, ids: answer.rows.map((row) => row.id) };
    const rows = answer.rows.map((row) =>
      el(
        "tr",
        {
          "data-id": row.id,
          onclick: (event) => event.target.closest("a") || (location.hash = `#/t/${encodeURIComponent(row.id)}`),
        },
        COLUMNS.map(([name, label, cell]) => el("td", { class: name, "data-label": label }, cell(row))),
      ),
    );
    const head = el(
      "thead",
      {},
      el(
        "tr",
        {},
        COLUMNS.map((column) => heading(given, column)),
      ),
    );
    return [
      el("h1", {}, "Trajectories ", el("small", { id: "total" }, `${number(answer.total)} of ${number(state.count)}`)),
      form,
      answer.total
        ? el(
            "div",
            { class: "scroll" },
            el("table", { class: "trajectories", "aria-label": "trajectories" }, head, el("tbody", {}, rows)),
          )
        : el("p", { class: "empty" }, "No trajectory matches these filters."),
      answer.total ? pager(given, answer) : null,
    ];
  };
})();
