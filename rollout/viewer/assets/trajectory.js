"use strict";
// One trajectory: head, timeline, and three tabs.
(() => {
  const { el, chip, number, link } = Viewer;
  const TABS = ["conversation", "tokens", "siblings"];

  function head(answer, given) {
    const { entry, trace, group, trained } = answer;
    const own = group.find((each) => each.id === entry.id);
    const reward = trace.reward;
    const where = [
      entry.step === null ? null : `step ${entry.step}${entry.validate ? " (held-out)" : ""}`,
      `row ${entry.row}, sample ${entry.sample}`,
      entry.attempt ? `attempt ${entry.attempt}` : null,
      entry.in !== "." ? entry.in : null,
      entry.engine,
    ];
    const parts = reward ? Object.entries(reward.parts) : [];
    return el(
      "header",
      { class: "trajectory-head" },
      el("h1", {}, entry.task || entry.id.slice(0, 12), " ", el("small", {}, entry.environment)),
      el("p", { class: "where" }, where.filter(Boolean).join(" · "), " · ", el("code", {}, entry.id)),
      el(
        "p",
        { class: "facts" },
        reward ? ["reward ", Viewer.rewardChip(reward.score)] : chip("plain", "no reward"),
        parts.length > 1 || (parts[0] && parts[0][1] !== reward.score)
          ? parts.map(([name, value]) => chip(value > 0 ? "plain" : "bad", `${name} ${number(value)}`))
          : null,
        reward && reward.penalty ? chip("bad", `penalty ${number(reward.penalty)}`) : null,
        own && own.advantage !== null
          ? chip(own.advantage < 0 ? "bad" : "good", `advantage ${number(own.advantage)}`)
          : null,
        trained && trained.dropped ? chip("warn", `not trained on: ${trained.dropped}`) : null,
        chip(Viewer.ending(entry), `ended: ${entry.stop_reason || "unfinished"}`),
        entry.withdrawn ? chip("bad", "withdrawn") : null,
        chip("plain", `${number(entry.turns)} turns`),
        chip(
          "plain",
          `${number(entry.sampled_tokens)} sampled of ${number(entry.tokens)} ${answer.trace.unit}` +
            (answer.trace.unit === "tokens" ? `, ${number(entry.loss_tokens)} in the loss` : ", no token ids"),
        ),
        chip("plain", Viewer.seconds(entry.elapsed_s)),
      ),
      issues(answer, given),
    );
  }

  function issues(answer) {
    const found = Viewer.issues(answer.trace);
    if (!found.length) return null;
    const to = (turn) => Viewer.filters.address(`t/${encodeURIComponent(answer.entry.id)}`, { turn });
    return el(
      "nav",
      { class: "issues", "aria-label": "marks, failures and rewards" },
      found
        .slice(0, 40)
        .map(([turn, kind, label]) =>
          el("a", { href: to(turn), class: `chip ${kind}`, "data-turn": turn }, `${turn + 1}: ${label}`),
        ),
      found.length > 40 ? ` and ${found.length - 40} more` : null,
    );
  }

  function neighbours(id) {
    const ids = Viewer.lastList ? Viewer.lastList.ids : [];
    const at = ids.indexOf(id);
    const to = (other, label, key) =>
      other ? el("a", { href: `#/t/${encodeURIComponent(other)}`, "data-key": key }, label) : null;
    const list = Viewer.filters.address("list", Viewer.lastList ? Viewer.lastList.given : {});
    return el(
      "nav",
      { class: "crumbs", "aria-label": "where" },
      el("a", { href: list, "data-key": "u" }, "← list"),
      at >= 0 ? [to(ids[at - 1], "previous", "K"), to(ids[at + 1], "next", "J")] : null,
    );
  }

  Viewer.views.t = async (given, state, [, id]) => {
    const answer = await Viewer.get("trajectory", { id });
    const tab = TABS.includes(given.tab) ? given.tab : "conversation";
    const address = (change) => Viewer.filters.address(`t/${encodeURIComponent(id)}`, { ...given, ...change });
    // Changes the address without drawing the page again.
    const go = (change) => history.replaceState(history.state, "", address(change));
    const { entry } = answer;
    // Stays in sight: a link may lead to a turn or a token far below the head.
    const tabs = el(
      "div",
      { class: "tabs" },
      el(
        "div",
        { role: "tablist", "aria-label": "parts of the trajectory" },
        TABS.map((name, index) =>
          el(
            "a",
            {
              role: "tab",
              "aria-selected": String(name === tab),
              href: Viewer.filters.address(`t/${encodeURIComponent(id)}`, name === "conversation" ? {} : { tab: name }),
              "data-key": String(index + 1),
            },
            name,
            name === "siblings" && answer.group.length > 1 ? ` ${answer.group.length}` : "",
          ),
        ),
      ),
      el(
        "p",
        { class: "which" },
        entry.reward === null ? null : Viewer.rewardChip(entry.reward),
        `${entry.task || entry.id.slice(0, 12)}${entry.step === null ? "" : ` · step ${entry.step}`}${entry.validate ? " held-out" : ""} · sample ${entry.sample}`,
      ),
    );
    let body;
    if (tab === "tokens") body = await Viewer.tokens(id, given, go);
    else if (tab === "siblings") body = await Viewer.siblings(id, answer);
    else body = Viewer.conversation(answer);
    const jump = (turn) => (location.hash = Viewer.filters.address(`t/${encodeURIComponent(id)}`, { turn }));
    if (tab === "conversation" && given.turn !== undefined) Viewer.shown = () => Viewer.showTurn(Number(given.turn));
    return [
      neighbours(id),
      head(answer, given),
      tab === "conversation" ? Viewer.timeline(answer.trace.timeline, answer.entry.elapsed_s, jump) : null,
      tabs,
      el("div", { role: "tabpanel", class: `panel on-${tab}` }, body),
    ];
  };

  Viewer.showTurn = (turn) => {
    const element = document.getElementById(`turn-${turn}`);
    if (!element) return;
    for (const other of document.querySelectorAll(".turn.current")) other.classList.remove("current");
    element.classList.add("current");
    element.scrollIntoView({ block: "start" });
    element.focus({ preventScroll: true });
  };
})();
