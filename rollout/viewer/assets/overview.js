"use strict";
// The first page: what a practitioner looks for first, each finding with trajectories that show it.
(() => {
  const { el, link, number } = Viewer;
  const RETRY_MS = 700;

  const address = (example) => Viewer.filters.address(`t/${encodeURIComponent(example.id)}`, example.view);

  function example(each) {
    const moved = (each.tokens || []).map((token) =>
      el(
        "a",
        {
          class: "moved",
          href: Viewer.filters.address(`t/${encodeURIComponent(each.id)}`, {
            tab: "tokens",
            color: "push",
            token: token.index,
          }),
        },
        "▼ ",
        el("code", {}, token.text.trim() || `id ${token.id}`),
        el("small", {}, ` p ${number(token.probability)}`),
      ),
    );
    return el(
      "li",
      {},
      link(address(each), each.title),
      " ",
      each.reward === null ? null : Viewer.rewardChip(each.reward),
      el("span", { class: "because" }, ` ${each.note}`),
      moved.length ? el("div", { class: "moved-list" }, "pushed down most: ", moved) : null,
    );
  }

  function card(each) {
    return el(
      "article",
      { class: `finding ${each.weight}`, "aria-label": each.title },
      el("h3", {}, each.title),
      each.scope ? el("p", { class: "scope" }, each.scope) : null,
      el("p", {}, each.detail),
      each.groups.map((group) =>
        el(
          "section",
          {},
          el("h4", {}, group.title),
          el("ol", {}, group.examples.map(example)),
          group.filters
            ? link(Viewer.filters.address("list", group.filters), `all ${number(group.total)} in the list`)
            : null,
        ),
      ),
      el("p", { class: "threshold" }, `Reported when: ${each.threshold}`),
    );
  }

  async function findings() {
    const answer = await Viewer.get("explain");
    if (answer.status === "computing") {
      setTimeout(() => document.getElementById("findings")?.isConnected && fill(), RETRY_MS);
      return el("p", { class: "empty", role: "status" }, "Reading the traces …");
    }
    if (answer.problem) return el("p", { class: "failure", role: "alert" }, answer.problem);
    const absent = answer.absent.length
      ? el(
          "details",
          { class: "absent" },
          el("summary", {}, `${answer.absent.length} things were looked for and not found`),
          el(
            "ul",
            {},
            answer.absent.map((each) => el("li", {}, el("b", {}, each.title), ` (reported when: ${each.threshold})`)),
          ),
        )
      : null;
    return [
      answer.findings.length ? answer.findings.map(card) : el("p", { class: "empty" }, "Nothing stands out."),
      absent,
    ];
  }

  async function fill() {
    const place = document.getElementById("findings");
    const content = await findings().catch((error) => el("p", { class: "failure", role: "alert" }, error.message));
    place?.replaceChildren(...Viewer.nodes([content]));
  }

  // Drawn when they are there: the rest of the page does not wait for them.
  async function plots() {
    const all = await Viewer.get("runs");
    const [small, whole] = [{ height: 150 }, (value) => number(value, 0)];
    const drawn = [
      Viewer.plot("reward", Viewer.runLines(all, "reward"), small),
      Viewer.plot("tool calls with an error", Viewer.runLines(all, "errors"), { ...small, format: Viewer.percent }),
      Viewer.plot("sampled tokens", Viewer.runLines(all, "sampled"), { ...small, format: whole }),
    ].filter(Boolean);
    const place = document.getElementById("plots");
    place?.replaceChildren(...(drawn.length ? drawn : [el("p", { class: "empty" }, "These trajectories have no steps.")]));
    Viewer.drawn();
  }

  function summary(state) {
    return el(
      "p",
      { class: "summary" },
      link("#/list", `${number(state.count)} trajectories`),
      ` of ${state.environments.join(", ") || "no environment"}`,
      state.runs.length > 1 ? `, ${state.runs.length} runs` : "",
      state.withdrawn
        ? [", ", link(Viewer.filters.address("list", { stop: "failed,aborted" }), `${number(state.withdrawn)} withdrawn`)]
        : null,
      ". ",
      state.held_out ? [link("#/list?sort=reward,-step&split=held-out", "Worst held-out trajectories"), ". "] : null,
      state.trained ? [link("#/list?sort=reward,-step&split=train", "Worst in training"), ". "] : null,
    );
  }

  Viewer.views[""] = async (_, state) => {
    requestAnimationFrame(() => {
      fill();
      plots().catch(() => null); // the findings show why
    });
    return [
      el("h1", {}, state.directory),
      summary(state),
      el(
        "div",
        { class: "overview" },
        el(
          "section",
          { "aria-label": "findings" },
          el("h2", {}, "What stands out"),
          el("div", { id: "findings", class: "findings" }),
        ),
        el("section", { "aria-label": "over steps" }, el("h2", {}, "Over steps"), el("div", { id: "plots" })),
      ),
    ];
  };
})();
