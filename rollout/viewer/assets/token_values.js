"use strict";
// The values of a token, and how they become colours.
(() => {
  // Colours by name: label, explanation, value of a token, and how a value becomes one of the style's classes.
  const diverging = (most) => (value) =>
    value === null || Math.abs(value) < most / 400
      ? ""
      : `${value < 0 ? "down" : "up"}${Math.min(6, 1 + Math.floor((6 * Math.abs(value)) / most))}`;
  const rising = (most) => (value) => (value === null ? "" : `heat${Math.min(6, Math.floor((7 * value) / most))}`);
  const COLOURS = {
    push: [
      "pushed up or down",
      "advantage × (1 − probability): how far this token's own logit is pushed by the update. A certain token is not moved, whatever its advantage.",
      (token) => token.push,
      diverging,
    ],
    advantage: [
      "advantage",
      "Of the trained token: positive where the update makes it more probable.",
      (token) => token.advantage,
      diverging,
    ],
    logprob: [
      "surprise",
      "Minus the log-probability at sampling: dark tokens were improbable.",
      (token) => (token.logprob === null ? null : -token.logprob),
      rising,
    ],
    ratio: [
      "trainer / engine",
      "Log of the ratio of the trainer's probability to the engine's: 0 where both agree.",
      (token) => (token.ratio === null ? null : Math.log(token.ratio)),
      diverging,
    ],
    entropy: ["entropy", "Of the trainer's distribution, in nats.", (token) => token.entropy, rising],
    mask: [
      "in the loss",
      "Tokens that are trained on.",
      (token) => (token.mask ? 1 : null),
      () => (value) => (value ? "masked-in" : ""),
    ],
    kind: [
      "kind",
      "Sampled thinking, sampled text, rendered context, forced end of a thought.",
      (token) => token.kind,
      () => (value) => `kind-${value}`,
    ],
  };

  // A token's values by its number in prompt and response; `segment` has columns.
  function reader(segment) {
    const { prompt, trained } = segment;
    const spans = new Array(segment.ids.length - prompt);
    for (const [kind, turn, start, end] of segment.spans) spans.fill([kind, turn], start, end);
    return (index) => {
      const place = index - prompt;
      const [kind, turn] = place < 0 ? ["prompt", -1] : spans[place] || ["context", -1];
      const of = (name) => (place < 0 || !trained || !trained[name] ? null : (trained[name][place] ?? null));
      const [trainer, sampled, advantage] = [of("trainer"), of("sampled"), of("advantage")];
      const logprob = place < 0 ? null : (segment.logprobs[place] ?? null);
      const probability = trainer ?? logprob;
      return {
        index,
        place,
        kind,
        turn,
        id: segment.ids[index],
        text: segment.texts[index],
        mask: place >= 0 && segment.mask[place] === 1,
        trainedMask: place >= 0 && trained ? trained.mask[place] === 1 : null,
        logprob,
        trainer,
        advantage,
        entropy: of("entropy"),
        ratio: trainer === null || sampled === null ? null : Math.exp(trainer - sampled),
        push: advantage === null || probability === null ? null : advantage * (1 - Math.exp(probability)),
      };
    };
  }

  Viewer.tokenReader = reader;
  Viewer.tokenColours = COLOURS;
  // Whether a colour has two ends, for less and more than 0.
  Viewer.isDiverging = (name) => COLOURS[name][3] === diverging;
})();
