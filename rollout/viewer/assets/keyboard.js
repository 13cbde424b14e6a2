"use strict";
// Keys: everything that a mouse can do.
(() => {
  const { el } = Viewer;
  const KEYS = [
    ["o r l", "overview, runs, list"],
    ["/", "first filter"],
    ["j k", "next and previous row; next and previous turn of a conversation"],
    ["Enter", "open the row"],
    ["n p", "next and previous page of the list"],
    ["J K", "next and previous trajectory of the list"],
    ["u", "back to the list"],
    ["1 2 3", "conversation, tokens, siblings"],
    ["] [", "next and previous mark, failure or reward"],
    ["f", "fold or unfold all thinking"],
    ["← → Home End", "move among tokens"],
    ["Esc", "close a token's values, where they lie over the tokens"],
    ["c", "colour tokens by the next value"],
    ["t", "dark or light"],
    ["?", "these keys"],
  ];

  function help() {
    const old = document.querySelector("dialog");
    if (old) return old.remove();
    const close = () => dialog.remove();
    const dialog = el(
      "dialog",
      { "aria-label": "keys", onclose: close },
      el("h2", {}, "Keys"),
      el(
        "dl",
        {},
        KEYS.map(([key, what]) => [el("dt", {}, key), el("dd", {}, what)]),
      ),
      el("button", { onclick: close }, "close"),
    );
    document.body.append(dialog);
    dialog.showModal();
  }
  Viewer.help = help;

  function row(step) {
    const rows = [...document.querySelectorAll("table.trajectories tbody tr")];
    if (!rows.length) return false;
    const at = rows.findIndex((each) => each.classList.contains("current"));
    const next = Math.max(0, Math.min(rows.length - 1, at < 0 ? 0 : at + step));
    if (at >= 0) rows[at].classList.remove("current");
    rows[next].classList.add("current");
    rows[next].querySelector("a").focus();
    rows[next].scrollIntoView({ block: "nearest" });
    return true;
  }

  function turn(step) {
    const turns = [...document.querySelectorAll(".turn")];
    const at = turns.findIndex((each) => each.classList.contains("current"));
    const next = Math.max(0, Math.min(turns.length - 1, at < 0 ? 0 : at + step));
    Viewer.showTurn(next);
  }

  function issue(step) {
    const links = [...document.querySelectorAll(".issues a")];
    if (!links.length) return;
    const at = links.findIndex((each) => each.classList.contains("current"));
    const next = links[(at + step + links.length) % links.length];
    links.forEach((each) => each.classList.toggle("current", each === next));
    if (document.querySelector(".turn")) Viewer.showTurn(Number(next.dataset.turn));
    else next.click();
  }

  function fold() {
    Viewer.thinkingOpen = !Viewer.thinkingOpen;
    for (const each of document.querySelectorAll("details.thinking")) each.open = Viewer.thinkingOpen;
  }

  const ACTIONS = {
    o: () => (location.hash = "#/"),
    r: () => (location.hash = "#/runs"),
    l: () => (location.hash = Viewer.filters.address("list", Viewer.lastList ? Viewer.lastList.given : {})),
    "/": () => (document.querySelector(".filters input") || document.body).focus(),
    j: () => row(1) || turn(1),
    k: () => row(-1) || turn(-1),
    Enter: () => document.querySelector("tr.current a")?.click(),
    "]": () => issue(1),
    "[": () => issue(-1),
    f: fold,
    c: () => Viewer.cycleColour && document.querySelector(".tokens") && Viewer.cycleColour(),
    t: () => Viewer.toggleTheme(),
    "?": help,
  };

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
    if (event.key === "Escape" && event.target.closest("input, select")) return event.target.blur();
    if (event.target.closest("input, select, textarea, dialog[open]")) return;
    if (event.key === "Enter" && event.target.closest("a, button, summary")) return;
    const linked = document.querySelector(`[data-key="${CSS.escape(event.key)}"]`);
    const action = linked ? () => linked.click() : ACTIONS[event.key];
    if (!action) return;
    event.preventDefault();
    action();
  });
})();
