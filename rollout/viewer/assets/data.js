"use strict";
// Where the page's values come from.
(() => {
  Viewer.get = async (kind, given = {}) => {
    const answer = await fetch(`api/${kind}?${new URLSearchParams(given)}`, { cache: "no-store" });
    const value = await answer.json().catch(() => ({ error: `The server answered ${answer.status}.` }));
    if (!answer.ok) throw new Error(value.error);
    return value;
  };
  // The answer, or why there is none: a view shows that beside its form, in which the filter can be mended.
  Viewer.asked = (kind, given) =>
    Viewer.get(kind, given).then(
      (answer) => ({ answer }),
      (error) => ({ problem: Viewer.el("p", { class: "failure", role: "alert" }, error.message) }),
    );
})();
