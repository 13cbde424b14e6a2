"use strict";
// The conversation of a trajectory, turn by turn.
(() => {
  const { el, chip, longText, seconds } = Viewer;

  function message(role, text, extra) {
    return el(
      "article",
      { class: `message ${role}`, "aria-label": role },
      el("header", {}, el("b", {}, role), extra),
      longText(text),
    );
  }

  function call(each) {
    const details = [
      chip("plain", seconds(each.seconds)),
      each.wait > 0.01 ? chip("plain", `waited ${seconds(each.wait)}`) : null,
      each.resends ? chip("warn", `sent again ${each.resends}×`) : null,
      each.reward !== null ? Viewer.rewardChip(each.reward, "reward of this call") : null,
      each.server ? chip("plain", each.server) : chip("warn", "not sent"),
      each.fault ? chip("bad", each.fault) : null,
      each.cut_tokens ? chip("warn", `cut by ${each.cut_tokens} tokens`) : null,
    ];
    const simple = each.arguments.length < 90 ? each.arguments.replace(/\s+/g, " ") : each.arguments;
    return el(
      "article",
      {
        class: `call ${each.is_error ? "error" : ""}`,
        "aria-label": `call of ${each.name}${each.is_error ? ", failed" : ""}`,
      },
      el("header", {}, el("b", {}, Viewer.toolName(each.name)), details),
      longText(simple, { kind: "arguments" }),
      each.coerced
        ? [el("small", {}, "sent in place of strings:"), longText(each.coerced, { kind: "arguments" })]
        : null,
      el("div", { class: "result-label" }, each.is_error ? "error" : "result"),
      longText(each.text, { kind: "result" }),
      each.blocks.map((block) => chip("plain", block)),
      each.shown !== null
        ? el("details", {}, el("summary", {}, "what the policy read of it"), longText(each.shown, { kind: "result" }))
        : null,
      each.structured !== null
        ? el("details", {}, el("summary", {}, "structured content"), longText(each.structured, { kind: "result" }))
        : null,
    );
  }

  function events(given) {
    if (!given.requests.length && !given.notifications.length && !given.more) return null;
    const asked = given.requests.map((each) =>
      el(
        "div",
        { class: "event" },
        el("b", {}, `${each.kind} of ${each.tool}`),
        longText(each.asked, { kind: "arguments" }),
        each.answer === null
          ? chip("bad", `refused: ${each.refused || ""}`)
          : longText(each.answer, { kind: "result" }),
      ),
    );
    const notes = given.notifications.map((each) =>
      el(
        "div",
        { class: "event" },
        `${each.kind} of ${each.tool}: `,
        each.progress === null ? "" : `${each.progress}${each.total ? `/${each.total}` : ""} `,
        each.text,
      ),
    );
    const count = given.requests.length + given.notifications.length + given.more;
    return el(
      "details",
      { open: given.requests.length > 0 },
      el("summary", {}, `${count} server events`),
      asked,
      notes,
    );
  }

  function turn(each, index, identity, unit) {
    const isSummary = each.marks.some((mark) => mark.kind === "compacted");
    const chips = [
      chip("plain", `${each.sampled} ${unit}`),
      chip("plain", seconds(each.seconds)),
      each.reward !== null && each.reward !== undefined ? Viewer.rewardChip(each.reward, "reward of this turn") : null,
      each.finish_reason !== "stop" ? chip("warn", each.finish_reason) : null,
      each.trimmed ? chip("warn", `${each.trimmed} ${unit} trimmed`) : null,
      each.marks.map((mark) =>
        el(
          "span",
          { class: "chip warn", title: mark.detail },
          mark.kind,
          mark.action && mark.action !== "mark" ? ` (${mark.action})` : "",
        ),
      ),
    ];
    const tokens = Viewer.filters.address(`t/${encodeURIComponent(identity)}`, { tab: "tokens", turn: index });
    return el(
      "section",
      { class: "turn", id: `turn-${index}`, tabindex: "-1", "aria-label": `turn ${index + 1}` },
      el("header", {}, el("h3", {}, `Turn ${index + 1}${isSummary ? ", a summary" : ""}`), chips, Viewer.link(tokens, "tokens")),
      each.marks
        .filter((mark) => mark.detail)
        .map((mark) => el("p", { class: "mark" }, `${mark.kind}: ${mark.detail}`)),
      each.thinking
        ? el(
            "details",
            { class: "thinking", open: Viewer.thinkingOpen },
            el(
              "summary",
              {},
              `thinking, ${each.thinking.length} characters`,
              el("span", { class: "peek" }, each.thinking.slice(0, 140)),
            ),
            longText(each.thinking),
          )
        : null,
      each.content ? message(isSummary ? "summary" : "assistant", each.content) : null,
      each.calls.map(call),
      events(each.events),
      each.user
        ? message("user", each.user.text, [
            each.user.done ? chip("plain", "the user is done") : null,
            each.user.reward !== null ? Viewer.rewardChip(each.user.reward) : null,
          ])
        : null,
      each.agent ? message("agent", each.agent) : null,
    );
  }

  // Calls of the harness, which the policy has not seen.
  function worldCalls(calls, summary) {
    if (!calls.length) return null;
    const shown = calls.map((each) => [
      each.holds === undefined ? null : chip(each.holds ? "good" : "bad", each.holds ? "holds" : "does not hold"),
      call(each),
    ]);
    return el("details", { open: calls.some((each) => each.holds === false) }, el("summary", {}, summary), shown);
  }

  // Turns with something to look at: [turn, kind, label].
  Viewer.issues = (trace) => {
    const found = [];
    trace.turns.forEach((each, index) => {
      for (const mark of each.marks) found.push([index, "warn", mark.kind]);
      for (const called of each.calls)
        if (called.is_error) found.push([index, "bad", `${called.name || "call"} failed`]);
      if (each.finish_reason === "length") found.push([index, "warn", "cut by its token limit"]);
      const reward = each.reward ?? each.calls.find((called) => called.reward !== null)?.reward ?? each.user?.reward;
      if (reward !== null && reward !== undefined) found.push([index, "good", `reward ${Viewer.number(reward)}`]);
    });
    if (trace.failure) found.push([Math.max(0, trace.turns.length - 1), "bad", `failure: ${trace.failure.kind}`]);
    return found;
  };

  Viewer.conversation = (answer) => {
    const { trace, entry } = answer;
    return [
      el(
        "div",
        { class: "opening" },
        trace.opening.map((each) =>
          each.role === "system" || each.text.length > 1200
            ? el(
                "details",
                { class: "message", open: each.text.length < 600 },
                el("summary", {}, el("b", {}, each.role), ` ${each.text.length} characters`),
                longText(each.text),
              )
            : message(each.role, each.text),
        ),
      ),
      worldCalls(trace.setup, `${trace.setup.length} calls prepared the world`),
      events(trace.server_events),
      trace.turns.map((each, index) => turn(each, index, entry.id, trace.unit)),
      worldCalls(trace.checks, `${trace.checks.filter((each) => each.holds).length} of ${trace.checks.length} checks hold`),
      trace.failure
        ? el("p", { class: "failure" }, el("b", {}, trace.failure.kind), ` ${trace.failure.message}`)
        : null,
    ];
  };
})();
