// Draws the linked view of one head as an SVG file: words that look, lines, words that they look at, and the parts of scores.
const ROW = 30, EDGE = 16, LINES = 140, BARS = 160, PERCENT = 60; // pixels
const SIZE = 16, FONT = "system-ui, sans-serif";

// Return the text of the file. rows: {text, share, weight, content, distance} of each word that is looked at. scale: the
// score at the end of the bars; null without bars. The colours are those of the page.
export function drawingOf({ title, formula, queries, rows, query, key, scale }) {
  const style = getComputedStyle(document.documentElement), measure = document.createElement("canvas").getContext("2d");
  measure.font = `${SIZE}px ${FONT}`;
  const colour = (name) => style.getPropertyValue(`--${name}`).trim();
  const longest = (texts) => Math.ceil(Math.max(...texts.map((text) => measure.measureText(text).width))) + 12;
  const left = EDGE + longest(queries), right = left + LINES, bars = right + longest(rows.map(({ text }) => text));
  const end = bars + (scale ? BARS : 0) + PERCENT, top = 60;
  const width = Math.max(end, longest([title, formula])) + EDGE, height = top + ROW * Math.max(queries.length, rows.length) + 50;
  const svg = node("svg", { width, height, viewBox: `0 0 ${width} ${height}`, "font-family": FONT, "font-size": SIZE });
  const add = (name, attributes, text) => svg.append(node(name, attributes, text));
  const write = (x, y, text, attributes = {}) => add("text", { x, y, fill: colour("ink"), ...attributes }, text);
  const middle = (index) => top + ROW * (index + 0.5);
  add("title", {}, title);
  add("rect", { width, height, fill: colour("panel") });
  write(EDGE, 32, title);
  const parts = scale ? ["content", "distance"].filter((name) => rows.some((row) => row[name] !== null)) : [];
  parts.forEach((name, i) => write(bars + BARS * i, top - 4, name, { fill: colour(name), "text-anchor": i ? "end" : "start" }));
  add("rect", { x: EDGE - 6, y: middle(query) - 14, width: left - EDGE + 4, height: 28, rx: 6, fill: colour("accent") });
  queries.forEach((text, i) => write(left - 8, middle(i) + 5, text, { "text-anchor": "end", ...(i === query ? { fill: colour("on-accent") } : {}) }));
  rows.forEach(({ text, share, weight, content, distance }, i) => {
    const [from, to] = [middle(query), middle(i)];
    const path = `M${left} ${from}C${left + LINES / 2} ${from} ${left + LINES / 2} ${to} ${right} ${to}`;
    if (weight >= 0.01) add("path", { d: path, fill: "none", stroke: colour("accent"), "stroke-width": 1 + 7 * weight, "stroke-opacity": Math.min(1, 0.15 + weight) });
    add("rect", { x: right, y: to - 14, width: end - right, height: 28, rx: 6, fill: colour("accent"), "fill-opacity": 0.25 * weight, stroke: i === key ? colour("accent") : "none" });
    write(right + 8, to + 5, text);
    write(end - 8, to + 5, share, { "text-anchor": "end" });
    if (!scale) return;
    const zero = bars + BARS / 2;
    add("path", { d: `M${zero} ${to - 14}v28`, stroke: colour("edge") });
    for (const [name, value, y] of [["content", content, -9], ["distance", distance, 1]]) {
      if (value === null) continue;
      const size = Math.abs(value) / scale * BARS / 2;
      add("rect", { x: value < 0 ? zero - size : zero, y: to + y, width: size, height: 8, rx: 2, fill: colour(name) });
    }
  });
  write(EDGE, height - 16, formula);
  return new XMLSerializer().serializeToString(svg);
}

function node(name, attributes, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}
