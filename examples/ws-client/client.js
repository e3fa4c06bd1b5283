// A WebSocket client of pawl: shows what waits for a decision, and decides it.
//
//   node client.js                     watch the queue, ask here about everything that waits
//   node client.js --run run_0199…     watch one run and answer its pauses by their resume tokens, until it ends
//   --decide approve|reject            do not ask
//   --once                             end after the first decision
//
// PAWL_URL says where the host is, PAWL_KEY who decides. The key never goes into the WebSocket's address: it buys a one-time
// ticket, as a page in a browser would have to do.

import process from "node:process";
import readline from "node:readline/promises";
import { parseArgs } from "node:util";
import WebSocket from "ws";
import { visible, visibleJSON } from "./visible.js";

const usage = "usage: PAWL_URL=… PAWL_KEY=… node client.js [--run RUN] [--decide ask|approve|reject] [--once]";
let options;
try {
  ({ values: options } = parseArgs({
    options: {
      run: { type: "string" },
      decide: { type: "string", default: "ask" },
      once: { type: "boolean", default: false },
      help: { type: "boolean", default: false },
    },
  }));
} catch (error) {
  console.error(`${visible(error.message)}\n${usage}`);
  process.exit(2);
}
if (options.help) {
  console.log(usage);
  process.exit(0);
}
const base = (process.env.PAWL_URL ?? "http://127.0.0.1:8080").replace(/\/$/, "");
const key = process.env.PAWL_KEY;
if (!key || !URL.canParse(base) || !["ask", "approve", "reject"].includes(options.decide)) {
  console.error(usage);
  process.exit(2);
}

// What a reconnecting client has to remember: how far it has read. The host then sends what was missed, and nothing twice.
let cursor;
let nextId = 1;
const seen = new Set(); // pauses that have been asked about
const sent = new Map(); // id of a frame → what to do with its answer
let asking = Promise.resolve(); // one question at a time

/** A ticket is good for one WebSocket within 30 seconds. */
async function ticket() {
  const answer = await fetch(`${base}/v1/ws/ticket`, { method: "POST", headers: { Authorization: `Bearer ${key}` } });
  const body = await answer.json();
  if (!answer.ok) {
    const error = new Error(`no ticket: ${answer.status} ${visible(body.code ?? "")}: ${visible(body.detail ?? "")}`);
    error.fatal = answer.status < 500 && answer.status !== 429;
    throw error;
  }
  return body.ticket;
}

/** Opens one connection; resolves when it has closed, with whether to open another one. */
async function connect() {
  const socket = new WebSocket(base.replace(/^http/, "ws") + "/v1/ws", ["pawl.v1", `pawl.ticket.${await ticket()}`], {
    perMessageDeflate: false,
  });
  const send = (frame, done) => {
    const id = String(nextId++);
    if (done) sent.set(id, done);
    socket.send(JSON.stringify({ ...frame, id }));
  };
  return new Promise((resolve, reject) => {
    socket.on("error", reject);
    socket.on("open", () => {
      const what = options.run ? { run: options.run } : { queue: true };
      send({ type: "subscribe", ...what, ...(cursor === undefined ? {} : { after: cursor }) });
    });
    socket.on("message", (data) => {
      const frame = JSON.parse(data);
      switch (frame.type) {
        case "welcome":
          console.log(`connected as ${visible(frame.principal?.id ?? String(frame.principal))}`);
          break;
        case "snapshot": // the state now; events follow from here on
          if (options.run) {
            cursor ??= frame.seq;
            console.log(`run ${visible(frame.run.id)} is ${visible(frame.run.state)}`);
            if (["succeeded", "failed", "cancelled"].includes(frame.run.state)) finish(socket, frame.run.state);
          } else {
            cursor ??= frame.cursor;
            for (const approval of frame.approvals) answer(socket, send, approval);
          }
          break;
        case "pause": // of a run that we watch; with its token, where we may have it
          pause(socket, send, frame.pause);
          break;
        case "event":
          event(socket, send, frame);
          break;
        case "ack":
        case "error": {
          const done = sent.get(frame.id);
          sent.delete(frame.id);
          if (frame.type === "error") {
            console.error(`refused: ${frame.problem.status} ${visible(frame.problem.code)}: ${visible(frame.problem.detail ?? "")}`);
            if (!done) {
              process.exitCode = 1;
              socket.close(1000);
              break;
            }
          }
          done?.(frame);
          break;
        }
      }
    });
    socket.on("close", (code) => {
      sent.clear();
      // 1000: we are done. 1008, 4401, 4403: the host does not want us. Anything else: again, from the cursor.
      if (code !== 1000) console.log(`connection closed (${code})`);
      if ([1008, 4401, 4403].includes(code)) process.exitCode = 1;
      resolve(![1000, 1008, 4401, 4403].includes(code));
    });
  });
}

function event(socket, send, frame) {
  const e = frame.event;
  cursor = frame.cursor ?? frame.seq ?? cursor;
  console.log(`${String(e.seq ?? "").padStart(5)}  ${visible(e.type)}${e.tool ? " " + visible(e.tool) : ""}${e.state ? " " + visible(e.state) : ""}`);
  switch (e.type) {
    case "approval.requested":
      if (!options.run) answer(socket, send, e.approval);
      break;
    case "run.finished":
      if (options.run) finish(socket, e.state);
      break;
  }
}

function finish(socket, state) {
  process.exitCode = state === "succeeded" ? 0 : 1;
  socket.close(1000);
}

/** Answers a pause of a watched run with its one-time token. */
function pause(socket, send, pause) {
  if (!pause.resume_token) {
    console.log("somebody else has to decide this one");
    return;
  }
  enqueue(pause.id, () => pause.approvals, (decisions) =>
    send({ type: "resume", resume_token: pause.resume_token, decisions }, (answer) => settled(socket, answer)));
}

/** Answers the pause that an approval in the queue belongs to: a decision covers everything that is open there, or nothing. */
function answer(socket, send, { pause_id, run_id }) {
  const open = async () => {
    const answer = await fetch(`${base}/v1/runs/${encodeURIComponent(run_id)}/approvals`, { headers: { Authorization: `Bearer ${key}` } });
    if (!answer.ok) throw new Error(`the approvals of ${visible(run_id)}: ${answer.status}`);
    return (await answer.json()).approvals;
  };
  enqueue(pause_id, open, (decisions) =>
    send({ type: "decide", run: run_id, decisions }, (answer) => settled(socket, answer)));
}

function settled(socket, answer) {
  if (answer.type === "ack") console.log(`decided; run ${visible(answer.run?.id ?? "")} is ${visible(answer.run?.state ?? "")}`);
  if (options.once) {
    process.exitCode = answer.type === "ack" ? 0 : 1;
    socket.close(1000);
  }
}

/** Shows what is open in a pause, asks about each, and hands on the decisions; one pause after the other, each once. */
function enqueue(pauseId, approvals, decide) {
  if (seen.has(pauseId)) return;
  seen.add(pauseId);
  asking = asking.then(async () => {
    // All of them are shown before the first question: one decision may depend on what else would run.
    const decisions = [];
    const open = (await approvals()).filter((a) => a.pause_id === pauseId && a.state === "pending");
    open.forEach(show);
    for (const a of open) {
      if (open.length > 1) console.log(`\n${visible(a.tool)}, digest ${visible(a.args_digest)}`);
      decisions.push({ approval_id: a.id, args_digest: a.args_digest, ...(await choose(a)) });
    }
    if (decisions.length > 0) decide(decisions);
  }).catch((error) => {
    if (error instanceof NobodyThere) {
      console.error(error.message);
      process.exit(1);
    }
    seen.delete(pauseId); // it is asked about again after the next connect
    console.error(visible(error.message));
  });
}

function show(a) {
  console.log(`\nwaits: ${visible(a.tool)} in run ${visible(a.run_id)}, asked by ${visible(a.created_by)} (${visible(a.rules.join(", "))})`);
  for (const [name, value] of Object.entries(a.arguments)) {
    console.log(`  ${visible(name)}: ${visibleJSON(JSON.stringify(value))}`);
  }
  console.log(`  digest ${visible(a.args_digest)}`);
}

class NobodyThere extends Error {}

async function choose(a) {
  if (options.decide !== "ask") return { kind: options.decide };
  for (;;) {
    const kind = (await question(`  ${a.allowed_decisions.map(visible).join(", ")}? `)).trim();
    if (!a.allowed_decisions.includes(kind)) {
      console.log(`  ${visible(JSON.stringify(kind))} is none of these`);
      continue;
    }
    switch (kind) {
      case "approve":
      case "reject":
        return { kind };
      case "respond":
        return { kind, message: await question("  the result: ") };
      case "edit":
        try {
          return { kind, arguments: JSON.parse(await question("  the new arguments (JSON): ")) };
        } catch (error) {
          if (error instanceof NobodyThere) throw error;
          console.log(`  that is not JSON: ${visible(error.message)}`);
        }
    }
  }
}

// One reader for all questions: lines that were typed ahead belong to the next one.
let terminal, lines;

async function question(text) {
  terminal ??= readline.createInterface({ input: process.stdin });
  lines ??= terminal[Symbol.asyncIterator]();
  process.stdout.write(text);
  const line = await lines.next();
  if (line.done) throw new NobodyThere("\nno answer, nothing was decided: use --decide where nobody can type");
  return line.value;
}

for (let pauseMs = 100; ; pauseMs = Math.min(pauseMs * 2, 5000)) {
  try {
    if (!(await connect())) break;
    pauseMs = 100;
  } catch (error) {
    // fetch hides in cause what a person needs; a host that is down or restarts is tried again, slower each time.
    const why = error.cause ? `cannot reach ${base}: ${error.cause.code ?? error.cause.message}` : error.message;
    console.error(visible(why) + (error.fatal ? "" : `, trying again in ${pauseMs / 1000} s`));
    if (error.fatal) process.exit(1);
  }
  await new Promise((next) => setTimeout(next, pauseMs));
}
terminal?.close(); // or the process would go on waiting for lines
