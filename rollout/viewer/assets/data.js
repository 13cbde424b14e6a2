"use strict";
// Where the page's values come from: the server, or the scripts of an export, which browsers load from disk.
(() => {
  const loaded = new Map();
  const waiting = new Map();

  // Called by the data files of an export.
  Viewer.register = (name, value) => {
    waiting.get(name)?.(value);
    waiting.delete(name);
  };

  function load(name) {
    if (!loaded.has(name)) {
      loaded.set(
        name,
        new Promise((resolve, reject) => {
          waiting.set(name, resolve);
          const script = document.createElement("script");
          script.src = `data/${name}.js`;
          script.onerror = () => reject(new Error(`data/${name}.js is missing from this export`));
          script.onload = () => script.remove();
          document.head.append(script);
        }),
      );
      if (loaded.size > 40) loaded.delete([...loaded.keys()].find((key) => key.startsWith("t-")));
    }
    return loaded.get(name);
  }

  const numbered = (kind, number) => `${kind}-${String(number).padStart(5, "0")}`;

  async function allRows(summary) {
    const pages = await Promise.all([...Array(summary.list_pages).keys()].map((page) => load(numbered("list", page))));
    return pages.flat().sort((one, other) => one.order - other.order);
  }

  // The parts of one trajectory, `id`: its group's trajectories are in one file.
  async function part(kind, id) {
    const summary = await load("summary");
    const row = (await allRows(summary)).find((each) => each.id === id);
    if (!row) throw new Error("This trajectory is not in this export.");
    const chunk = await load(numbered("t", row.chunk));
    return kind === "siblings" ? chunk.groups[chunk.trajectories[id].siblings] : chunk.trajectories[id][kind];
  }

  const EXPORTED = {
    state: async () => ({ ...(await load("summary")).state, version: 0, indexing: false }),
    explain: async () => (await load("summary")).explain,
    runs: async (given) => {
      const series = (await load("summary")).runs;
      return series.filter(
        (each) =>
          (!given.runs || given.runs.split(",").includes(each.run)) &&
          (!given.environment || given.environment.split(",").includes(each.environment)),
      );
    },
    list: async (given) => {
      const rows = (await allRows(await load("summary"))).filter(Viewer.filters.predicate(given));
      const page = Number(given.page || 0);
      return {
        total: rows.length,
        page,
        size: 100,
        rows: Viewer.filters.sorted(rows, given.sort || "").slice(page * 100, page * 100 + 100),
      };
    },
    trajectory: (given) => part("trajectory", given.id),
    tokens: (given) => part("tokens", given.id),
    siblings: (given) => part("siblings", given.id),
  };

  async function ask(kind, given) {
    const answer = await fetch(`api/${kind}?${new URLSearchParams(given)}`, { cache: "no-store" });
    const value = await answer.json().catch(() => ({ error: `The server answered ${answer.status}.` }));
    if (!answer.ok) throw new Error(value.error);
    return value;
  }

  Viewer.isExport = location.protocol === "file:" || Boolean(window.TRACE_EXPORT);
  Viewer.get = (kind, given = {}) => (Viewer.isExport ? EXPORTED[kind](given) : ask(kind, given));
  // The answer, or why there is none: a view shows that beside its form, in which the filter can be mended.
  Viewer.asked = (kind, given) =>
    Viewer.get(kind, given).then(
      (answer) => ({ answer }),
      (error) => ({ problem: Viewer.el("p", { class: "failure", role: "alert" }, error.message) }),
    );
})();
