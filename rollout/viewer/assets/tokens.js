"use strict";
// The tokens of a trajectory: real text in chunks that the browser lays out when they come into view, so that its own
// find works and 30,000 tokens scroll.
(() => {
  const { el, number } = Viewer;
  const CHUNK = 160;
  const COLOURS = Viewer.tokenColours;
  const spelled = (text) => text.replaceAll("\n", "\\n").replaceAll("\t", "\\t");
  function view(segment, given, go) {
    const read = Viewer.tokenReader(segment);
    const count = segment.ids.length;
    const all = Array.from({ length: count }, (_, index) => read(index));
    const token = (index) => all[index];
    const texts = segment.texts.some((text) => text !== "");
    const has = (name) => {
      for (let index = segment.prompt; index < count; index++) if (COLOURS[name][2](token(index)) !== null) return true;
      return false;
    };
    const usable = Object.keys(COLOURS).filter(has);
    let colour = usable.includes(given.color) ? given.color : usable.find((name) => name !== "ratio") || "kind";
    const elements = new Array(count);
    const holder = el("div", {
      class: `tokens ${texts ? "" : "ids"}`,
      tabindex: "0",
      role: "application",
      "aria-label": "tokens; arrow keys move, their values are read below",
      "aria-describedby": "token-details",
    });

    function chunks() {
      let chunk = null;
      let last = null;
      // The browser's find opens it.
      const folded = el(
        "details",
        { class: "prompt-fold" },
        el("summary", { class: "token-label" }, `prompt, ${number(segment.prompt)} ${segment.unit}`),
      );
      if (segment.prompt) holder.append(folded);
      for (let index = 0; index < count; index++) {
        const each = token(index);
        const kind = each.kind === "prompt" ? "prompt" : each.kind === "context" ? "context" : "sampled";
        const key = `${kind}-${each.turn}`;
        const isLong =
          chunk &&
          chunk.childNodes.length >= CHUNK &&
          (segment.texts[index - 1].includes("\n") || chunk.childNodes.length >= 4 * CHUNK);
        if (key !== last || isLong) {
          if (key !== last && kind !== "prompt") {
            const label = kind === "context" ? `context after turn ${each.turn + 1}` : `turn ${each.turn + 1}`;
            holder.append(
              el("div", { class: `token-label ${kind}`, "data-turn": kind === "sampled" ? each.turn : null }, label),
            );
          }
          chunk = el("div", { class: `chunk ${kind}` });
          (kind === "prompt" ? folded : holder).append(chunk);
          last = key;
        }
        const span = document.createElement("span");
        span.dataset.i = index;
        if (!texts) span.textContent = `${each.id} `;
        else if (Viewer.isPlain(each.text)) span.textContent = each.text;
        else span.append(...Viewer.visible(each.text));
        elements[index] = span;
        chunk.append(span);
      }
    }

    function paint() {
      const value = COLOURS[colour][2];
      let most = 0;
      for (let index = segment.prompt; index < count; index++) {
        const each = value(token(index));
        if (typeof each === "number") most = Math.max(most, Math.abs(each));
      }
      const classOf = COLOURS[colour][3](most || 1);
      for (let index = 0; index < count; index++) {
        const each = token(index);
        const name = each.place < 0 && colour !== "kind" ? "" : classOf(value(each));
        elements[index].className =
          `${name}${each.kind === "thinking" ? " thought" : ""}${each.text.includes("\n") ? " line-end" : ""}`;
      }
      legend.replaceChildren(...Viewer.nodes([COLOURS[colour][1], scale(colour, most)]));
      choose(current, false);
    }

    function scale(name, most) {
      if (name === "mask" || name === "kind") return null;
      const levels = [1, 2, 3, 4, 5, 6];
      const boxes =
        Viewer.isDiverging(name)
          ? [...levels.map((n) => `down${7 - n}`), ...levels.map((n) => `up${n}`)]
          : levels.map((n) => `heat${n}`);
      const low = Viewer.isDiverging(name) ? -most : 0;
      return el(
        "span",
        { class: "scale", "aria-label": `from ${number(low, 3)} to ${number(most, 3)}` },
        number(low, 3),
        boxes.map((each) => el("i", { class: each })),
        number(most, 3),
      );
    }

    const close = () => {
      details.classList.add("closed");
      holder.focus({ preventScroll: true });
    };
    const details = el("aside", { id: "token-details", "aria-live": "polite", "aria-label": "the token" });
    let current = Math.min(count - 1, given.token ? Number(given.token) : firstOf(given.turn));
    function firstOf(turn) {
      if (turn === undefined) return strongest(1)[0]?.index ?? segment.prompt;
      const span = segment.spans.find(([kind, own]) => own === Number(turn) && kind !== "context");
      return span ? segment.prompt + span[2] : segment.prompt;
    }

    function choose(index, scrolls = true) {
      elements[current]?.classList.remove("current");
      current = Math.max(0, Math.min(count - 1, index));
      elements[current].classList.add("current");
      const fold = elements[current].closest("details");
      if (fold) fold.open = true;
      details.classList.remove("closed");
      if (scrolls) elements[current].scrollIntoView({ block: "center" });
      const each = token(current);
      const line = (name, value) =>
        value === null || value === undefined ? null : [el("dt", {}, name), el("dd", {}, value)];
      details.replaceChildren(
        ...Viewer.nodes([
          // On a phone the values lie over the tokens.
          el("button", { class: "close", "aria-label": "close", onclick: close }, "×"),
          el("div", { class: "token-text" }, texts ? spelled(each.text) || "(part of a character)" : `id ${each.id}`),
          el(
            "dl",
            {},
            line("id", String(each.id)),
            line("position", each.place < 0 ? `${each.index} of the prompt` : `${each.place} of the response`),
            line("turn", each.turn < 0 ? null : String(each.turn + 1)),
            line("kind", each.kind),
            line("in the loss", each.place < 0 || segment.unit !== "tokens" ? null : each.mask ? "yes" : "no"),
            each.trainedMask !== null && each.trainedMask !== each.mask
              ? line("trained on", each.trainedMask ? "yes" : "no")
              : null,
            line("probability", each.logprob === null ? null : probability(each.logprob)),
            line("log-probability", each.logprob === null ? null : number(each.logprob, 4)),
            line("… in training", each.trainer === null ? null : number(each.trainer, 4)),
            line("ratio", each.ratio === null ? null : number(each.ratio, 4)),
            line("advantage", each.advantage === null ? null : number(each.advantage, 4)),
            line(
              "push",
              each.push === null
                ? null
                : `${number(each.push, 4)} ${each.push < 0 ? "(down)" : each.push > 0 ? "(up)" : ""}`,
            ),
            line("entropy", each.entropy === null ? null : number(each.entropy, 4)),
          ),
        ]),
      );
    }
    const probability = (logprob) => {
      const value = Math.exp(logprob);
      return value > 0.9999 ? "> 0.9999" : number(value, 4);
    };

    function strongest(most) {
      const found = [];
      for (let index = segment.prompt; index < count; index++) {
        const each = token(index);
        if (each.push) found.push(each);
      }
      const cut = found.reduce((high, each) => Math.max(high, Math.abs(each.push)), 0) / 50;
      return found
        .filter((each) => Math.abs(each.push) >= cut)
        .sort((a, b) => Math.abs(b.push) - Math.abs(a.push))
        .slice(0, most);
    }
    const pushes = strongest(8);
    const list =
      pushes.length &&
      el(
        "section",
        { class: "pushes", "aria-label": "tokens that the training moved most" },
        el("h3", {}, "What the training moved most"),
        pushes.map((each) =>
          el(
            "button",
            {
              class: each.push < 0 ? "down" : "up",
              onclick: () => {
                choose(each.index);
                holder.focus({ preventScroll: true });
              },
            },
            el("b", {}, each.push < 0 ? "▼ down" : "▲ up"),
            el("code", {}, texts ? each.text.trim() || spelled(each.text) : String(each.id)),
            el(
              "small",
              {},
              `turn ${each.turn + 1} · probability ${probability(each.trainer ?? each.logprob)} · advantage ${number(each.advantage)}`,
            ),
          ),
        ),
      );

    const legend = el("p", { class: "legend" });
    const menu = el(
      "select",
      {
        id: "colour",
        onchange: (event) => {
          colour = event.target.value;
          paint();
          go({ color: colour });
        },
      },
      usable.map((name) => el("option", { value: name, selected: name === colour }, COLOURS[name][0])),
    );
    chunks();
    paint();
    holder.addEventListener("click", (event) => {
      const span = event.target.closest("[data-i]");
      if (span) choose(Number(span.dataset.i), false);
    });
    const moves = { ArrowRight: 1, ArrowLeft: -1 };
    holder.addEventListener("keydown", (event) => {
      if (moves[event.key]) choose(current + moves[event.key]);
      else if (event.key === "Home") choose(segment.prompt);
      else if (event.key === "End") choose(count - 1);
      else if (event.key === "Escape") close();
      else return;
      event.preventDefault();
    });
    Viewer.cycleColour = () => {
      colour = usable[(usable.indexOf(colour) + 1) % usable.length];
      menu.value = colour;
      paint();
      go({ color: colour });
    };
    Viewer.shown = () => {
      if (given.token !== undefined || given.turn !== undefined) choose(current);
    };
    choose(current, false);
    return el(
      "div",
      { class: "token-view" },
      el(
        "div",
        { class: "token-main" },
        el("div", { class: "token-bar" }, el("label", { for: "colour" }, "colour by"), menu, legend),
        holder,
      ),
      el("div", { class: "token-side" }, details, list),
    );
  }

  Viewer.tokens = async (id, given, go) => {
    const answer = await Viewer.get("tokens", { id });
    const segments = answer.segments;
    const chosen = segments[Number(given.segment ?? segments.length - 1)] || segments.at(-1);
    const trained = chosen.trained;
    return [
      answer.note ? el("p", { class: "note" }, answer.note) : null,
      segments.length > 1
        ? el(
            "nav",
            { class: "pager", "aria-label": "training samples" },
            segments.map((each) =>
              Viewer.link(
                Viewer.filters.address(`t/${encodeURIComponent(id)}`, { tab: "tokens", segment: each.number }),
                each === chosen ? `[sample ${each.number + 1}]` : `sample ${each.number + 1}`,
              ),
            ),
          )
        : null,
      trained
        ? el(
            "p",
            { class: "note quiet" },
            trained.dropped ? `Not trained on: ${trained.dropped}.` : `Trained on in step ${trained.step}.`,
            trained.is_same ? "" : " The ids that were trained on differ from these.",
          )
        : null,
      view(chosen, given, go),
    ];
  };
})();
