// A whole environment in plain JavaScript, without dependencies: an MCP server over stdio with tools for every role of the
// harness contract. A guest orders one item after the other at a bar; the policy books the order with `menu` and `add`.
//
// It becomes an environment by the roles in its tools' _meta, and by the trajectory id in the _meta of every request, by
// which it keeps the state of trajectories apart. Protocol versions 2024-11-05 to 2025-11-25.

import { createInterface } from "node:readline";

const PRICES = { tea: 3, coffee: 4, juice: 5, soup: 7, toast: 2, cake: 6 };
const SIZES = { train: 100, test: 100 };
const worlds = new Map(); // trajectory id -> world
const given = new Map(); // trajectory id -> replies by number; not part of the world, so a restore keeps them

class Refused extends Error {} // an error whose message the caller reads, as ToolError in Python

// mulberry32, seeded by the text's FNV-1a hash: the same in every process.
function random(text) {
  let state = 2166136261;
  for (const byte of Buffer.from(text)) state = Math.imul(state ^ byte, 16777619);
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 4294967296;
  };
}

function begin(task, seed) {
  const [split, number] = task.split("-");
  if (!(split in SIZES) || !/^\d+$/.test(number ?? "") || Number(number) >= SIZES[split])
    throw new Refused(`there is no task ${task} here`);
  const draw = random(`${task}/${seed}`);
  const left = Object.keys(PRICES);
  const wishes = [1, 2].map(() => {
    const [item] = left.splice(Math.floor(draw() * left.length), 1);
    return { item, count: 1 + Math.floor(draw() * 4) };
  });
  return { wishes, order: {}, heard: 0, reached: 0 };
}

function put(id, world, replies) {
  worlds.set(id, world);
  given.set(id, replies);
}

const wanted = (wish) => `${wish.count} ${wish.item}`;
const priced = (order) => Object.entries(order).reduce((sum, [item, count]) => sum + count * PRICES[item], 0);
const opening = (world) => `Hello! I would like ${wanted(world.wishes[0])}, please. What does it cost?`;

// A message with several numbers does not count: "1, 2, 3, 4" would contain every price.
function tells(message, price) {
  const numbers = message.match(/\d+(\.\d+)?/g) ?? [];
  return numbers.length === 1 && Number(numbers[0]) === price;
}

function nextReply(world, message) {
  const [first, second] = world.wishes;
  const price = world.reached === 0 ? first.count * PRICES[first.item] : priced(ordered(world.wishes));
  world.heard += 1;
  if (!tells(message, price)) return { message: "And what does it cost, all in all?", done: world.heard > 5 };
  world.reached += 1;
  if (world.reached === 1) return { message: `Good. And ${wanted(second)}. What is it now?`, done: false };
  return { message: "Here you are. Goodbye!", done: true };
}

const ordered = (wishes) => Object.fromEntries(wishes.map((wish) => [wish.item, wish.count]));

// The policy's tools.
const policy = {
  menu: { description: "What there is, and what it costs.", readOnly: true, run: () => JSON.stringify(PRICES) },
  add: {
    description: "Put something on the guest's order.",
    input: { item: { type: "string", enum: Object.keys(PRICES) }, count: { type: "integer", minimum: 1, maximum: 9 } },
    run(world, { item, count }) {
      if (!(item in PRICES)) throw new Refused(`there is no ${item}; there is ${Object.keys(PRICES).join(", ")}`);
      if (!Number.isInteger(count) || count < 1 || count > 9) throw new Refused("count goes from 1 to 9");
      world.order[item] = (world.order[item] ?? 0) + count;
      return `on the order: ${Object.entries(world.order).map(([name, many]) => `${many} ${name}`).join(", ")}`;
    },
  },
};

// Tools of the harness, hidden from the policy.
const text = { type: "string" };
const integer = { type: "integer" };
const harness = {
  reset: { input: { task: text, seed: integer }, run: (_, { task, seed }, id) => put(id, begin(task, seed), []) },
  start: { run: (world) => ({ message: opening(world) }) },
  reply: {
    input: { seq: integer, message: text },
    run(world, { seq, message }, id) {
      const replies = given.get(id);
      if (seq === replies.length + 1 && world.reached < 2 && world.heard <= 5) replies.push(nextReply(world, message));
      const reply = replies[seq - 1]; // a repeated request returns the same reply and changes nothing
      if (!reply) throw new Refused(`reply ${seq} is out of order: ${replies.length} were given`);
      return reply;
    },
  },
  score: {
    input: { messages: { type: "array", items: { type: "object" } } },
    run(world) {
      const right = world.wishes.filter(({ item, count }) => world.order[item] === count).length;
      const more = Object.keys(world.order).some((item) => !world.wishes.some((wish) => wish.item === item));
      const order = more ? 0 : right / world.wishes.length;
      const told = world.reached / world.wishes.length;
      return { score: (order + told) / 2, parts: { order, told } };
    },
  },
  release: { run: (_, __, id) => void (worlds.delete(id), given.delete(id)) },
  snapshot: { run: (world) => ({ state: structuredClone(world) }) },
  restore: { input: { state: { type: "object" } }, run: (_, { state }, id) => put(id, state, given.get(id) ?? []) },
  tasks: {
    input: { split: { type: "string", enum: Object.keys(SIZES) }, limit: integer },
    run(_, { split, limit }) {
      const names = Array.from({ length: Math.min(limit, SIZES[split]) }, (_, index) => `${split}-${index}`);
      return { tasks: names.map((task) => ({ task, seed: 7, prompt: opening(begin(task, 7)) })) };
    },
  },
  expert: {
    input: { task: text, seed: integer },
    run(_, { task, seed }) {
      const { wishes } = begin(task, seed);
      const [first] = wishes;
      const add = (wish) => ({ calls: [{ name: "add", arguments: wish }] });
      return {
        turns: [
          { thinking: "What does it cost?", calls: [{ name: "menu", arguments: {} }] },
          add(first),
          { content: `That is ${first.count * PRICES[first.item]} crowns.` },
          add(wishes[1]),
          { content: `All in all ${priced(ordered(wishes))} crowns.` },
        ],
      };
    },
  },
};
const worldless = new Set(["reset", "release", "restore", "tasks", "expert"]);

function listed() {
  const tool = (name, { description, input = {}, readOnly = false }, role) => ({
    name,
    description: description ?? `The harness's ${name}.`,
    inputSchema: { type: "object", properties: input, required: Object.keys(input) },
    // Every harness tool here may be called twice with the same arguments, so a lost answer may be asked for again.
    annotations: { readOnlyHint: readOnly, idempotentHint: Boolean(role) },
    ...(role && { _meta: { "mcp-rollout/role": name } }),
  });
  return [
    ...Object.entries(policy).map(([name, made]) => tool(name, made, false)),
    ...Object.entries(harness).map(([name, made]) => tool(name, made, true)),
  ];
}

function call({ name, arguments: given = {}, _meta = {} }) {
  const id = _meta["mcp-rollout/trajectory"] ?? "";
  const made = policy[name] ?? harness[name];
  try {
    if (!made) throw new Refused(`unknown tool ${name}`);
    if (!worlds.has(id) && !worldless.has(name) && name !== "menu") throw new Refused("call reset first");
    const answer = made.run(worlds.get(id), given, id) ?? {};
    if (typeof answer === "string") return { content: [{ type: "text", text: answer }] };
    return { content: [{ type: "text", text: JSON.stringify(answer) }], structuredContent: answer };
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    return { content: [{ type: "text", text: error.message }], isError: true };
  }
}

const INSTRUCTIONS =
  "You serve at a bar. Book what the guest asks for with `add`, and tell what all of it costs: that number and no other.";
const VERSIONS = ["2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"];
const methods = {
  initialize: ({ protocolVersion }) => ({
    protocolVersion: VERSIONS.includes(protocolVersion) ? protocolVersion : VERSIONS[0],
    capabilities: { tools: {} },
    serverInfo: { name: "bar", version: "1.0.0" },
    instructions: INSTRUCTIONS,
  }),
  ping: () => ({}),
  "tools/list": () => ({ tools: listed() }),
  "tools/call": call,
};

for await (const line of createInterface({ input: process.stdin })) {
  const { id, method, params = {} } = JSON.parse(line);
  if (id === undefined) continue; // a notification
  let answer;
  try {
    answer = methods[method]
      ? { result: methods[method](params) }
      : { error: { code: -32601, message: `no method ${method}` } };
  } catch (error) {
    answer = { error: { code: -32603, message: String(error) } };
  }
  process.stdout.write(JSON.stringify({ jsonrpc: "2.0", id, ...answer }) + "\n");
}
