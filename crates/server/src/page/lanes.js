// The lanes at work, drawn from the engine's own record of its newest steps: each step from where it is
// planned to where it has landed, what the host did meanwhile, and what each lane ran.

const SVG = "http://www.w3.org/2000/svg";
/** Steps in the picture. */
const SHOWN = 10;
/** Sizes in the picture's own units. */
const [WIDTH, LEFT, ROW, BAR] = [400, 64, 28, 16];
const ROWS = ["step", "", "host", "schedule", "plan", "forward", "copies"];

const milliseconds = ([start, end]) => (end - start) * 1000;

function element(tag, attributes, words) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (words !== undefined) made.textContent = words;
  return made;
}

/** Bars of one step: row, kind and span of each. */
function bars(step) {
  const { host, lanes, parts } = step;
  const row = step.step % 2;
  const all = [
    [row, "planned", host.plan],
    [row, "flying", [host.plan[1], host.land[1]]],
    [row, "landed", host.commit],
    [2, "planned", host.plan],
    [2, "wait", host.land],
    [2, "landed", host.commit],
  ];
  for (const [at, name] of [[3, "schedule"], [4, "plan"], [6, "copies"]]) {
    if (lanes[name]) all.push([at, "job", lanes[name]]);
  }
  let [from] = lanes.forward ?? [0];
  for (const part of ["draft", "verify", "absorb"]) {
    if (lanes.forward && parts[part] > 0) all.push([5, part, [from, from + parts[part]]]);
    from += parts[part];
  }
  return all;
}

/** Draws `steps`; the newest stand at the right. */
function draw(svg, steps) {
  const begin = steps[0].host.plan[0];
  const end = Math.max(...steps.map((step) => step.host.commit[1]));
  const scale = (WIDTH - LEFT) / Math.max(end - begin, 1e-6);
  const parts = ROWS.map((name, row) =>
    element("text", { x: 0, y: row * ROW + BAR - 3 }, name),
  );
  for (const step of steps) {
    for (const [row, kind, [from, to]] of bars(step)) {
      // What takes no time that shows is drawn all the same, as a line.
      const width = Math.max((to - from) * scale, 0.8);
      const x = LEFT + (from - begin) * scale;
      const bar = element("rect", { x, y: row * ROW, width, height: BAR, class: kind });
      bar.append(element("title", {}, `step ${step.step}: ${kind}, ${milliseconds([from, to]).toFixed(3)} ms`));
      parts.push(bar);
    }
  }
  svg.replaceChildren(...parts);
}

const count = (number, what) => `${number} ${what}${number === 1 ? "" : "s"}`;

/** The newest step in words, for those who do not see the picture and those who want figures. */
function words(trace) {
  const { steps, num_requests_running: running, num_requests_waiting: waiting } = trace;
  const load = `${running} running, ${waiting} waiting.`;
  const step = steps[steps.length - 1];
  if (!step) return `No step yet; ${load}`;
  const forward = step.lanes.forward ? milliseconds(step.lanes.forward).toFixed(2) : "0";
  return (
    `Step ${step.step}: ${count(step.blocks, "block")}, ${count(step.chunks, "chunk")}, ` +
    `${step.accepted} of ${step.drafted} drafts accepted; planned in ` +
    `${milliseconds(step.host.plan).toFixed(2)} ms, ${forward} ms on the forward lane, host waited ` +
    `${milliseconds(step.host.land).toFixed(2)} ms. ${load}`
  );
}

/** Shows a trace. */
export function show(trace) {
  document.getElementById("lanes-words").textContent = words(trace);
  const newest = trace.steps.slice(-SHOWN);
  // Steps with a pause between them do not belong into one picture.
  let from = newest.length - 1;
  while (from > 0 && newest[from].host.plan[0] <= newest[from - 1].host.commit[1]) from -= 1;
  if (newest.length > 0) draw(document.getElementById("lanes"), newest.slice(from));
}
