"use strict";
// The page: its frame, the view that the address names, and following a run that goes on.
(() => {
  const { el, number } = Viewer;
  const POLL_MS = 3000;
  const main = el("main", { id: "main", tabindex: "-1" });
  const status = el("span", { class: "status", role: "status" });
  const NAVIGATION = [
    ["", "Overview"],
    ["runs", "Runs"],
    ["list", "Trajectories"],
  ];
  const places = new Map();
  let state = null;
  let drawing = 0;

  // The name of the history's present entry, by which `places` has how far it was scrolled.
  function entry() {
    if (!history.state?.entry) history.replaceState({ entry: `${performance.timeOrigin}-${performance.now()}` }, "");
    return history.state.entry;
  }
  history.scrollRestoration = "manual";
  let shownEntry = entry();

  Viewer.toggleTheme = () => {
    const dark = matchMedia("(prefers-color-scheme: dark)").matches;
    const theme = (document.documentElement.dataset.theme || (dark ? "dark" : "light")) === "dark" ? "light" : "dark";
    document.documentElement.dataset.theme = theme;
    try {
      localStorage.setItem("theme", theme);
    } catch {
      // A browser may refuse to store anything for files; the theme then lasts as long as the page.
    }
    draw();
  };

  function frame() {
    try {
      const theme = localStorage.getItem("theme");
      if (theme) document.documentElement.dataset.theme = theme;
    } catch {
      // As above.
    }
    const follow = el(
      "label",
      { class: "follow" },
      el("input", { type: "checkbox", id: "follow", checked: true }),
      "follow",
    );
    const top = el(
      "header",
      { class: "top" },
      el("a", { href: "#/", class: "brand" }, "mcp-rollout"),
      el("nav", { id: "navigation", "aria-label": "views" }),
      el("span", { class: "fill" }),
      status,
      follow,
      el("button", { onclick: Viewer.toggleTheme, "aria-label": "dark or light", title: "dark or light (t)" }, "◐"),
      el("button", { onclick: Viewer.help, "aria-label": "keys", title: "keys (?)" }, "?"),
    );
    // What sticks below the header, and what is scrolled to, has to know its height.
    new ResizeObserver(() => document.documentElement.style.setProperty("--top", `${top.offsetHeight}px`)).observe(top);
    document.body.append(
      el(
        "a",
        {
          href: "#main",
          class: "skip",
          onclick: (event) => {
            event.preventDefault();
            main.focus();
          },
        },
        "skip to the content",
      ),
      top,
      main,
    );
  }

  function show() {
    const { path } = Viewer.filters.parse();
    document
      .getElementById("navigation")
      .replaceChildren(
        ...NAVIGATION.map(([name, label]) =>
          el(
            "a",
            { href: `#/${name}`, "aria-current": (path[0] === "t" ? "list" : path[0]) === name ? "page" : null },
            label,
          ),
        ),
      );
    status.replaceChildren(
      ...Viewer.nodes([
        state.indexing ? "indexing … " : "",
        `${number(state.count)} trajectories`,
        state.last_step === null ? "" : `, step ${state.last_step}`,
      ]),
    );
    document.title = Viewer.plain(
      `${path[0] === "t" ? path[1].slice(0, 8) : path[0] || "Traces"} · ${state.directory}`,
    );
  }

  // Scrolls to where the reader was. Parts of a page arrive after the rest of it, so that it may be too short at first.
  function returnTo(place) {
    const grows = new ResizeObserver(() => {
      scrollTo(0, place);
      if (Math.abs(scrollY - place) < 2) grows.disconnect();
    });
    for (const type of ["wheel", "touchstart", "mousedown", "keydown"])
      addEventListener(type, () => grows.disconnect(), { once: true });
    grows.observe(main);
  }

  // Draws the view of the address. `quietly` keeps the place on the page: the run went on. `place` is one to return to.
  async function draw(quietly = false, place = undefined) {
    const number = ++drawing;
    const { path, given } = Viewer.filters.parse();
    main.setAttribute("aria-busy", "true");
    Viewer.shown = null;
    let content;
    try {
      state = state || (await Viewer.get("state"));
      content = await (Viewer.views[path[0]] || Viewer.views[""])(given, state, path);
    } catch (error) {
      content = [el("p", { class: "failure", role: "alert" }, error.message)];
    }
    if (number !== drawing) return;
    if (state) show();
    main.replaceChildren(...Viewer.nodes(content));
    main.removeAttribute("aria-busy");
    Viewer.drawn?.();
    if (quietly) return;
    if (place !== undefined) return returnTo(place);
    window.scrollTo(0, 0);
    Viewer.shown?.();
  }

  // A trajectory does not change, and a form in use stays as it is.
  const isCalm = () =>
    !["t"].includes(Viewer.filters.parse().path[0]) && !document.activeElement.closest?.(".filters, dialog");

  async function poll() {
    try {
      if (document.getElementById("follow").checked && !document.hidden) {
        const now = await Viewer.get("state");
        const changed =
          !state || now.count !== state.count || now.indexing !== state.indexing || now.last_step !== state.last_step;
        state = now;
        show();
        if (changed && isCalm()) await draw(true);
      }
    } catch {
      status.textContent = "the server has ended";
    }
    setTimeout(poll, POLL_MS);
  }

  frame();
  addEventListener("hashchange", () => {
    places.set(shownEntry, scrollY);
    shownEntry = entry();
    draw(false, places.get(shownEntry));
  });
  draw().then(() => setTimeout(poll, POLL_MS));
})();
