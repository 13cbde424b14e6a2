"use strict";
// The trajectories of a group side by side, aligned by turn; what equals the first column is dimmed up to where it differs.
(() => {
  const { el, number, link } = Viewer;
  const page = (id, given) => Viewer.filters.address(`t/${encodeURIComponent(id)}`, given);

  function shared(one, other) {
    let length = 0;
    while (length < one.length && length < other.length && one[length] === other[length]) length++;
    return length;
  }

  function cell(turn, base, isBase) {
    if (!turn) return el("td", { class: "absent" }, "ended");
    if (!isBase && JSON.stringify(turn) === JSON.stringify(base)) return el("td", { class: "same" }, "the same");
    let same = !isBase;
    const parts = turn.map(([kind, text], index) => {
      const other = same && base && base[index] && base[index][0] === kind ? base[index][1] : null;
      const length = other === null ? 0 : shared(text, other);
      const body = text.length > 1500 ? `${text.slice(0, 1500)} … (${text.length} characters)` : text;
      const shown =
        other === null || isBase
          ? body
          : [
              el("span", { class: "shared" }, body.slice(0, length)),
              length < body.length ? el("mark", {}, body.slice(length)) : null,
            ];
      same = same && other === text;
      return el("div", { class: `part ${kind}` }, el("small", {}, kind), el("span", { dir: "auto" }, shown));
    });
    return el("td", {}, parts);
  }

  // Members without copies: [member, samples that are the same]; the chosen one first, then by reward.
  function distinct(answer, at, facts) {
    const kinds = new Map();
    answer.members.forEach((member, index) => {
      const key = JSON.stringify([member.length, member.turns, answer.shared[at][index]]);
      kinds.set(key, [...(kinds.get(key) || []), member]);
    });
    const reward = (member) => facts.get(member.id)?.reward ?? -Infinity;
    return [...kinds.values()]
      .map((own) => [own.find((each) => each === answer.members[at]) || own[0], own])
      .sort(([one], [other]) =>
        one === answer.members[at] ? -1 : other === answer.members[at] ? 1 : reward(other) - reward(one),
      );
  }

  function heading(member, own, base, facts, answer, at) {
    const fact = facts.get(member.id) || {};
    const common = answer.shared[at][answer.members.indexOf(member)];
    const copies = own
      .filter((each) => each !== member)
      .map((each) => link(page(each.id, { tab: "siblings" }), `${facts.get(each.id)?.sample ?? "?"} `));
    return el(
      "th",
      { scope: "col", class: member === base ? "base" : "" },
      el("div", {}, link(page(member.id, { tab: "siblings" }), `sample ${fact.sample ?? "?"}`)),
      // One line per fact, present in every column, so that siblings line up.
      el("div", {}, "reward ", Viewer.rewardChip(fact.reward)),
      el("div", {}, "advantage ", Viewer.chip("plain", number(fact.advantage))),
      el(
        "small",
        {},
        fact.stop_reason || "unfinished",
        " · ",
        link(
          page(
            member.id,
            member === base ? { tab: "tokens" } : { tab: "tokens", token: Math.min(common, member.length - 1) },
          ),
          "tokens",
        ),
      ),
      el("small", {}, member === base ? "compared with" : `differs from token ${number(common)} on`),
      copies.length ? el("small", {}, "copies: ", copies) : null,
    );
  }

  function comparison(id, answer, group) {
    const at = Math.max(
      0,
      answer.members.findIndex((each) => each.id === id),
    );
    const base = answer.members[at];
    const facts = new Map(group.map((each) => [each.id, each]));
    const columns = distinct(answer, at, facts);
    const members = columns.map(([member]) => member);
    const rows = Math.max(...members.map((each) => each.turns.length));
    const head = columns.map(([member, own]) => heading(member, own, base, facts, answer, at));
    const body = [...Array(rows).keys()].map((turn) => {
      const texts = members.map((each) => JSON.stringify(each.turns[turn]));
      if (texts.every((text) => text === texts[0])) {
        const inner = el("table", {}, el("tbody", {}, el("tr", {}, cell(members[0].turns[turn], null, true))));
        return el(
          "tr",
          { class: "all-same" },
          el("th", { scope: "row" }, `${turn + 1}`),
          el(
            "td",
            { colspan: members.length },
            el("details", {}, el("summary", {}, "turn ", turn + 1, " is the same in all"), inner),
          ),
        );
      }
      return el(
        "tr",
        {},
        el("th", { scope: "row" }, `${turn + 1}`),
        members.map((each) => cell(each.turns[turn], base.turns[turn], each === base)),
      );
    });
    const first = body.findIndex((row) => !row.classList.contains("all-same"));
    if (first >= 0) body[first].id = "first-difference";
    return el(
      "div",
      { class: "scroll" },
      el(
        "table",
        { class: "siblings", "aria-label": "siblings side by side" },
        el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "turn"), head)),
        el("tbody", {}, body),
      ),
    );
  }

  // Each trajectory as a bar over its tokens; one that shares its beginning starts where it branched off its parent.
  function tree(group, id) {
    const known = new Map(group.map((each) => [each.id, each]));
    if (!group.some((each) => each.parent)) return null;
    const end = Math.max(...group.map((each) => each.prompt_tokens + each.response_tokens));
    const lines = [];
    const add = (each, depth) => {
      const start = each.parent && each.branched_at ? each.branched_at : 0;
      const bar = el(
        "a",
        {
          class: `branch ${each.id === id ? "current" : ""}`,
          href: page(each.id),
          "aria-label": `sample ${each.sample}, from token ${start}`,
        },
        Viewer.rewardChip(each.reward),
      );
      bar.style.left = `${(100 * start) / end}%`;
      bar.style.width = `${Math.max(2, (100 * (each.prompt_tokens + each.response_tokens - start)) / end)}%`;
      const name = el("span", { class: "name" }, `${"· ".repeat(depth)}sample ${each.sample}`);
      lines.push(
        el(
          "div",
          { class: "line" },
          name,
          el("div", { class: "track" }, bar),
          el("span", { class: "spent" }, start ? `from token ${number(start)}` : ""),
        ),
      );
      group.filter((other) => other.parent === each.id).forEach((other) => add(other, depth + 1));
    };
    group.filter((each) => !each.parent || !known.has(each.parent)).forEach((each) => add(each, 0));
    return el("section", { class: "timeline tree", "aria-label": "tree" }, el("h3", {}, "Shared beginnings"), lines);
  }

  function overSteps(rows, id) {
    if (rows.length < 2) return null;
    const steps = new Map();
    for (const each of rows) {
      const key = `${each.step ?? "–"}${each.validate ? " held-out" : ""}`;
      steps.set(key, [...(steps.get(key) || []), each]);
    }
    const lines = [...steps].map(([step, own]) =>
      el(
        "tr",
        {},
        el("th", { scope: "row" }, step),
        el(
          "td",
          {},
          own.map((each) =>
            el(
              "a",
              { href: page(each.id), class: each.id === id ? "current" : "", title: each.stop_reason || "" },
              Viewer.rewardChip(each.reward),
            ),
          ),
        ),
      ),
    );
    return el(
      "section",
      {},
      el("h3", {}, "The same task in other steps"),
      el(
        "table",
        { class: "over-steps" },
        el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "step"), el("th", { scope: "col" }, "rewards"))),
        el("tbody", {}, lines),
      ),
    );
  }

  Viewer.siblings = async (id, answer) => {
    const group = answer.group;
    const compared =
      group.length > 1
        ? comparison(id, await Viewer.get("siblings", { id }), group)
        : el("p", { class: "empty" }, "This trajectory has no siblings.");
    return [
      tree(group, id),
      group.length > 1 ? el("h3", {}, `${group.length} trajectories of one group`) : null,
      compared,
      overSteps(answer.same_task, id),
    ];
  };
})();
