"use strict";
// The address: `#/view?filters`. A view can be sent as a link. `rollout/viewer/filters.py` has the same filters in SQL.
(() => {
  const NAMES = {
    text: ["contains", "id, task or first message"],
    runs: ["run", ""],
    environment: ["environment", ""],
    split: ["split", "train, held-out"],
    step_from: ["step from", ""],
    step_to: ["step to", ""],
    reward_from: ["reward from", ""],
    reward_to: ["reward to", ""],
    stop: ["stop reason", "user_done,token_limit"],
    tool: ["calls tool", ""],
    failed_tool: ["tool failed", ""],
    mark: ["mark", "malformed_call"],
    task: ["task", ""],
    uid: ["group", ""],
    failure: ["failure", ""],
    calls: ["calls exactly", ""],
    where: ["SQL", "turns > 3 and reward < 0.5"],
  };
  const FIRST = ["text", "split", "step_from", "step_to", "reward_from", "reward_to", "stop", "failed_tool"];
  // As `UNREADABLE` in `filters.py`.
  Viewer.toolName = (name) => name || "(unreadable call)";

  const parse = () => {
    const [path, query] = location.hash.replace(/^#\/?/, "").split(/\?(.*)/s);
    return {
      path: path.split("/").map(decodeURIComponent),
      given: Object.fromEntries(new URLSearchParams(query || "")),
    };
  };
  const address = (path, given = {}) => {
    const kept = Object.entries(given).filter(([, value]) => value !== "" && value !== null && value !== undefined);
    const query = new URLSearchParams(kept).toString();
    return `#/${path}${query ? `?${query}` : ""}`;
  };

  Viewer.filters = {
    parse,
    address,
    names: NAMES,
    // A form with the most used filters, the ones in the address, and a menu with the others.
    form: (view, given, options = {}) => {
      const { el } = Viewer;
      const go = (change) => (location.hash = address(view, { ...given, page: "", ...change }));
      const shown = [...FIRST, ...Object.keys(NAMES).filter((name) => given[name] && !FIRST.includes(name))];
      const fields = shown.map((name) => {
        const [label, hint] = NAMES[name];
        const known = name === "split" ? ["train", "held-out", "evaluation"] : options[name];
        const input = known
          ? el(
              "select",
              { id: `filter-${name}`, onchange: (event) => go({ [name]: event.target.value }) },
              el("option", { value: "" }, "any"),
              known.map((each) => el("option", { value: each, selected: given[name] === each }, each)),
            )
          : el("input", {
              id: `filter-${name}`,
              value: given[name] || "",
              placeholder: hint,
              onchange: (event) => go({ [name]: event.target.value.trim() }),
            });
        return el("div", { class: `field ${name}` }, el("label", { for: `filter-${name}` }, label), input);
      });
      const others = Object.keys(NAMES).filter(
        (name) => !shown.includes(name),
      );
      const more = el(
        "select",
        {
          "aria-label": "add a filter",
          onchange: (event) => {
            const name = event.target.value;
            event.target.closest("form").insertBefore(added(name), event.target.closest(".field"));
            event.target.value = "";
            document.getElementById(`filter-${name}`).focus();
          },
        },
        el("option", { value: "" }, "+ filter"),
        others.map((name) => el("option", { value: name }, NAMES[name][0])),
      );
      const added = (name) =>
        el(
          "div",
          { class: `field ${name}` },
          el("label", { for: `filter-${name}` }, NAMES[name][0]),
          el("input", {
            id: `filter-${name}`,
            placeholder: NAMES[name][1],
            onchange: (event) => go({ [name]: event.target.value.trim() }),
          }),
        );
      const clear =
        Object.keys(given).some((name) => NAMES[name]) &&
        el("button", { type: "button", onclick: () => (location.hash = address(view, { sort: given.sort })) }, "clear");
      const isWide = matchMedia("(min-width: 641px)").matches;
      const isUsed = Object.keys(given).some((name) => NAMES[name] && given[name]);
      const form = el(
        "form",
        { class: "filters", "aria-label": "filters", onsubmit: (event) => event.preventDefault() },
        fields,
        el("div", { class: "field" }, el("label", {}, " "), more),
        clear && el("div", { class: "field" }, el("label", {}, " "), clear),
      );
      return el("details", { class: "filter-box", open: isWide || isUsed }, el("summary", {}, "filters"), form);
    },
  };
})();
