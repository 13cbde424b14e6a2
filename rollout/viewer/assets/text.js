"use strict";
// Elements, texts and numbers. Everything that a server or a policy wrote becomes a text node here, never markup.
var Viewer = { views: {} };
(() => {
  // Controls (ANSI sequences begin with one), bidi overrides, zero-width and tag characters, lone surrogates.
  const HIDDEN =
    /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\u3164\ufeff\uffa0\ufff9-\ufffb\u{e0000}-\u{e0fff}\p{Cs}]/gu;

  function spelled(character) {
    const point = character.codePointAt(0);
    if (point < 0x20) return String.fromCodePoint(0x2400 + point);
    return `⟨U+${point.toString(16).toUpperCase().padStart(4, "0")}⟩`;
  }

  const ANY_HIDDEN = new RegExp(HIDDEN.source, "u");
  Viewer.isPlain = (text) => !ANY_HIDDEN.test(text);

  // The text as a string without a character that hides or reorders others.
  Viewer.plain = (text) => String(text).replace(HIDDEN, spelled);

  // The same as nodes: the spelled characters stand out.
  Viewer.visible = (text) => {
    if (Viewer.isPlain(text)) return [document.createTextNode(text)];
    const nodes = [];
    let done = 0;
    for (const match of String(text).matchAll(HIDDEN)) {
      if (match.index > done) nodes.push(document.createTextNode(text.slice(done, match.index)));
      const mark = document.createElement("span");
      mark.className = "hidden-character";
      mark.title = "a hidden or control character";
      mark.textContent = spelled(match[0]);
      nodes.push(mark);
      done = match.index + match[0].length;
    }
    nodes.push(document.createTextNode(done ? String(text).slice(done) : String(text)));
    return nodes;
  };

  // An element. Properties that begin with `on` are listeners, `class` and `aria-*` and the like are attributes.
  Viewer.el = (tag, properties, ...children) => {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(properties || {})) {
      if (value === null || value === undefined || value === false) continue;
      if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
      else element.setAttribute(name, value === true ? "" : Viewer.plain(value));
    }
    element.append(...Viewer.nodes(children));
    return element;
  };

  Viewer.nodes = (children) =>
    children.flat(Infinity).flatMap((child) => {
      if (child === null || child === undefined || child === false) return [];
      return child instanceof Node ? [child] : Viewer.visible(String(child));
    });

  Viewer.number = (value, digits = 2) => {
    if (value === null || value === undefined) return "–";
    if (Number.isInteger(value)) return value.toLocaleString("en");
    const size = Math.abs(value);
    return size !== 0 && size < 10 ** -digits ? value.toExponential(1) : value.toFixed(digits);
  };
  Viewer.percent = (value) =>
    value === null || value === undefined ? "–" : `${(100 * value).toFixed(value < 0.1 ? 1 : 0)}%`;
  Viewer.seconds = (value) => {
    if (value === null || value === undefined) return "–";
    if (value < 0.9995) return `${Math.round(value * 1000)} ms`;
    return value < 120 ? `${value.toFixed(1)} s` : `${(value / 60).toFixed(1)} min`;
  };

  Viewer.link = (address, ...children) => Viewer.el("a", { href: address }, ...children);

  // A reward as a chip whose colour follows its place between the lowest and the highest one.
  Viewer.rewardChip = (value, label = "reward") => {
    const level =
      value === null || value === undefined ? "none" : value >= 0.999 ? "high" : value > 0.001 ? "middle" : "low";
    return Viewer.el("span", { class: `chip reward ${level}`, title: label }, Viewer.number(value));
  };

  Viewer.chip = (kind, ...children) => Viewer.el("span", { class: `chip ${kind}` }, ...children);

  // A long text: its beginning, and a button for the rest.
  Viewer.longText = (text, { limit = 2400, kind = "" } = {}) => {
    const box = Viewer.el("div", { class: `text ${kind}`, dir: "auto" });
    const show = (whole) => {
      box.replaceChildren(...Viewer.nodes([whole ? text : text.slice(0, limit)]));
      if (!whole)
        box.append(
          Viewer.el(
            "button",
            { class: "more", onclick: () => show(true) },
            `… show all ${Viewer.number(text.length)} characters`,
          ),
        );
    };
    show(text.length <= limit * 1.2);
    return box;
  };
})();
