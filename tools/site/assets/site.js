"use strict";
// Search, theme, filters, charts and diffs. All data come from files that the build computed from the scripts.
const Site = { data: {}, lines: null, index: null, axes: AXES };
const $ = (selector, within = document) => within.querySelector(selector);
const $$ = (selector, within = document) => [...within.querySelectorAll(selector)];

function element(tag, attributes = {}, ...children) {
  const svg = ["svg", "path", "line", "text", "g"].includes(tag);
  const made = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function script(source) {  // also works from a file, where fetch does not
  return new Promise((done, failed) => {
    document.head.append(Object.assign(document.createElement("script"), { src: source, onload: done, onerror: failed }));
  });
}

const waiting = {};
const once = (source) => (waiting[source] ??= script(source));
const need = (names) => Promise.all(["lines.js", ...names.map((name) => `data/${name}.js`)].map(once));

// Charts

function ticks(low, high) {
  const rough = (high - low) / 4, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((x) => x * power).find((x) => x >= rough);
  const found = [];
  for (let x = Math.ceil(low / step) * step; x <= high + 1e-9; x += step) found.push(Number(x.toPrecision(6)));
  return found;
}

// lines: [{points: [[x, y or null], ...], color, dash}]; options: title, x (label), y: [low, high], now (an x)
function chart(lines, { title, x = "", y = null, now = null, none = "No curve." }) {
  const W = 300, H = 190, left = 40, bottom = 34, top = 8;
  const points = lines.flatMap((line) => line.points).filter((p) => p[1] !== null);
  if (!points.length) return element("figure", {}, element("figcaption", {}, title), none);
  const xs = points.map((p) => p[0]), ys = points.map((p) => p[1]);
  const [x0, x1] = [Math.min(...xs), Math.max(...xs)];
  let [y0, y1] = y ?? [Math.min(0, ...ys), Math.max(...ys)];
  if (y0 === y1) y1 = y0 + 1;
  const px = (v) => left + ((v - x0) / (x1 - x0 || 1)) * (W - left - 8);
  const py = (v) => H - bottom - ((v - y0) / (y1 - y0)) * (H - bottom - top);
  const svg = element("svg", { viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": `${title}, by ${x}` });
  for (const v of ticks(y0, y1)) svg.append(element("line", { class: "grid", x1: left, x2: W - 8, y1: py(v), y2: py(v) }), element("text", { x: left - 4, y: py(v) + 4, "text-anchor": "end" }, String(v)));
  for (const v of ticks(x0, x1)) svg.append(element("text", { x: px(v), y: H - bottom + 14, "text-anchor": "middle" }, String(v)));
  svg.append(element("text", { x: (left + W) / 2, y: H - 4, "text-anchor": "middle" }, x));
  for (const line of lines) {
    let d = "", pen = "M";
    for (const [a, b] of line.points) { if (b === null || b > y1) { pen = "M"; continue; } d += `${pen}${px(a).toFixed(1)} ${py(b).toFixed(1)}`; pen = "L"; }
    svg.append(element("path", { d, stroke: `var(--${line.color})`, "stroke-dasharray": line.dash ? "5 4" : "none" }));
  }
  if (now !== null) svg.append(element("line", { class: "now", x1: px(now), x2: px(now), y1: top, y2: H - bottom }));
  return element("figure", {}, element("figcaption", {}, title), svg);
}

function legend(items) {
  const draw = ([label, color, dash]) => element("span", {}, element("svg", { viewBox: "0 0 32 10", "aria-hidden": "true" }, element("path", { d: "M0 5L32 5", stroke: `var(--${color})`, "stroke-dasharray": dash ? "5 4" : "none" })), ` ${label}`);
  return element("p", { class: "legend" }, ...items.map(draw));
}

// One script: a color for each sign of the advantage. Two: a color for each script, dashes for A < 0.
const looks = (names) => names.flatMap((name, i) => ["positive", "negative"].map((sign, j) => ({ name, sign, kind: ["correct", "incorrect"][j], color: names.length > 1 ? `c${i}` : ["pos", "neg"][j], dash: j })));

function fingerprint(place, names) {
  const all = looks(names), of = (name) => Site.data[name].fingerprint, pairs = (x, y) => (y ?? []).map((v, i) => [x[i], v]);
  const lines = (pick) => all.map((look) => ({ ...look, points: pick(of(look.name), look) }));
  const none = (key) => names.map((name) => `No curve of ${name}: ${of(name).why[key]}.`).join(" ");
  const factors = (key, title, x) => chart(lines((f, l) => pairs(Site.axes.ratios, f[key]?.[l.sign])), { title, x, y: [0, 2], none: none(key) });
  place.replaceChildren(
    chart(lines((f, l) => pairs([...Array(9).keys()], f.advantages?.[l.kind])), { title: "Advantage", x: "correct responses of 8", none: none("advantages") }),
    factors("token", "Factor, one token", "ratio of the token"),
    factors("response", "Factor, whole response", "ratio of every token"),
    chart(names.map((name, i) => ({ color: `c${i}`, dash: false, points: pairs(Site.axes.lengths, of(name).weights) })), { title: "Relative weight of a token", x: "length of the response, others 32", y: [0, 3], none: none("weights") }),
    legend(all.map((l) => [names.length > 1 ? `${l.name}, ${l.kind}` : `${l.kind}, A ${l.dash ? "<" : ">"} 0`, l.color, l.dash])));
}

function curves(place, names) {
  const measured = names.filter((name) => Object.keys(Site.data[name].curves).length);
  if (!measured.length) return place.replaceChildren("Not measured at the default settings yet.");
  const drawn = Object.entries(Site.axes.curves).map(([metric, title]) => chart(measured.flatMap((name) => [1, 2, 3].map((column) => ({ color: `c${names.indexOf(name)}`, dash: column > 1, points: (Site.data[name].curves[metric] ?? []).map((p) => [p[0], p[column]]) }))), { title, x: "step" }));
  place.replaceChildren(...drawn, legend(measured.flatMap((name) => [[`${name}, mean of the seeds`, `c${names.indexOf(name)}`, false], [`${name}, lowest and highest`, `c${names.indexOf(name)}`, true]])));
}

// Diffs

function paint(cell, spans) {  // marks around parts of a line of highlighted code
  for (const [start, end] of spans) {
    const walker = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT), texts = [];
    let at = 0;
    while (walker.nextNode()) { texts.push([walker.currentNode, at]); at += walker.currentNode.length; }
    for (const [node, from] of texts) {
      const a = Math.max(start - from, 0), b = Math.min(end - from, node.length);
      if (a < b) { const range = document.createRange(); range.setStart(node, a); range.setEnd(node, b); range.surroundContents(document.createElement("mark")); }
    }
  }
}

function number(data, line) {  // drawn by the style sheet; with --repository a link to the line
  return SOURCE ? element("a", { class: "at", "data-line": line, href: `${SOURCE}/${data.path}#L${line}`, "aria-label": `${data.path}, line ${line}` }) : element("span", { class: "at", "data-line": line });
}

// How a becomes b. Each pair of scripts is stored once, with the one that comes later in the family tree.
const changes = (a, b) => Site.data[b].diffs[a] ?? (Site.data[a].diffs[b] ?? []).map(([i1, i2, j1, j2]) => [j1, j2, i1, i2]);

function marks(a, b) {  // what differs within two lines, given by their numbers
  const found = Site.lines.marks[a < b ? [a, b] : [b, a]] ?? [[], []];
  return a < b ? found : [found[1], found[0]];
}

function row(a, b, i, j, changed) {  // line i of a beside line j of b; null where one has none
  const line = (data, k) => (k === null ? null : data.code[data.below + k]);
  const spans = changed && i !== null && j !== null ? marks(line(a, i), line(b, j)) : [[], []];
  const cell = (data, k, side, parts) => {
    const made = element("span", { class: k === null ? `${side} none` : side });
    if (k !== null) { made.innerHTML = Site.lines.code[line(data, k)]; paint(made, parts); made.prepend(number(data, data.below + k + 1)); }
    return made;
  };
  return element("div", { class: changed ? "row changed" : "row same" }, cell(a, i, "left", spans[0]), cell(b, j, "right", spans[1]));
}

function diff(place, left, right) {
  const [a, b] = [Site.data[left], Site.data[right]], made = [], same = (i, j, n) => Array.from({ length: n }, (_, k) => row(a, b, i + k, j + k, false));
  const fold = (i, j, n) => {
    const button = element("button", { class: "fold", type: "button" }, `… ${n} line${n > 1 ? "s" : ""} that both have`);
    button.onclick = () => button.replaceWith(...same(i, j, n));
    return button;
  };
  let i = 0, j = 0;
  const between = (n, first, last) => {  // two lines around each difference, as in tools.compare
    const head = first ? 0 : Math.min(2, n), tail = last ? 0 : Math.min(2, n - head);
    made.push(...same(i, j, head));
    if (n > head + tail) made.push(fold(i + head, j + head, n - head - tail));
    made.push(...same(i + n - tail, j + n - tail, tail));
  };
  for (const [i1, i2, j1, j2] of changes(left, right)) {
    between(i1 - i, i === 0 && j === 0, false);
    for (let k = 0; k < Math.max(i2 - i1, j2 - j1); k++) made.push(row(a, b, i1 + k < i2 ? i1 + k : null, j1 + k < j2 ? j1 + k : null, true));
    [i, j] = [i2, j2];
  }
  between(a.code.length - a.below - i, i === 0, true);
  place.replaceChildren(...made);
}

function source(place, name) {
  const { code, path } = Site.data[name], address = SOURCE && `${SOURCE}/${path}`;
  place.replaceChildren(...code.map((line, i) => {
    const made = element("span", { id: `L${i + 1}` }, element("a", { class: "no", href: address ? `${address}#L${i + 1}` : `#L${i + 1}` }, i + 1));
    made.insertAdjacentHTML("beforeend", `${Site.lines.code[line]}\n`);
    return made;
  }));
}

// Pages

async function compare() {
  const form = $("#pair"), { left, right } = form.elements, names = [...left.options].map((option) => option.value);
  const show = async () => {
    const [a, b] = location.hash.slice(1).split("/").map((name) => (names.includes(name) ? name : "grpo"));
    [left.value, right.value] = [a, b ?? "dapo"];
    const pair = [left.value, right.value];
    await need(pair);
    document.title = `${pair.join(" and ")} · compare`;
    const lines = changes(...pair).reduce((n, [i1, i2, j1, j2]) => n + i2 - i1 + j2 - j1, 0);
    $("#summary").replaceChildren(...pair.flatMap((name, k) => [k ? " and " : "", element("a", { href: `${name}.html` }, name)]), ` differ in ${lines} lines after their docstrings, comments and help included.`);
    $("#formulas").replaceChildren(...pair.flatMap((name) => [element("p", {}, element("code", {}, Site.data[name].path), `: ${Site.data[name].change}`), element("pre", { class: "formula", tabindex: 0 }, Site.data[name].formula || "No formula.")]));
    for (const tr of $$("#both tbody tr")) tr.hidden = !pair.includes(tr.dataset.name);
    fingerprint($("#fingerprint"), pair[0] === pair[1] ? [pair[0]] : pair);
    curves($("#curves"), pair);
    diff($("#diff"), ...pair);
    $("#diff").dataset.shown = pair.join("/");
  };
  form.onchange = () => { location.hash = `${left.value}/${right.value}`; };
  form.elements.swap.onclick = () => { location.hash = `${right.value}/${left.value}`; };
  addEventListener("hashchange", show);
  await show();
}

function filterMethods() {
  const form = $("#filters"), rows = $$("#methods tbody tr");
  const apply = () => {
    const wanted = [...new FormData(form)].filter(([, value]) => value);
    for (const tr of rows) tr.hidden = !wanted.every(([key, value]) => (key === "name" ? tr.dataset.name.toLowerCase().includes(value.toLowerCase()) : $(`[data-key="${key}"]`, tr).dataset.value === value));
    $("output", form).textContent = `${rows.filter((tr) => !tr.hidden).length} scripts`;
  };
  form.oninput = apply;
  form.onreset = () => setTimeout(apply);
  form.onsubmit = (event) => event.preventDefault();
}

function filterClaims() {
  const form = $("#verdicts");
  form.oninput = () => { for (const claim of $$(".claim")) claim.hidden = !((!form.verdict.value || claim.dataset.verdict === form.verdict.value) && claim.textContent.toLowerCase().includes(form.text.value.toLowerCase())); };
  form.onsubmit = (event) => event.preventDefault();
  const open = () => { const claim = document.getElementById(location.hash.slice(1)); if (claim?.matches(".claim")) $("details", claim).open = true; };
  addEventListener("hashchange", open);
  open();
}

function search() {
  const input = $("#search"), results = $("#results");
  const hide = () => { results.hidden = true; };
  const show = async () => {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    if (!words.length) return hide();
    await once("search.js");
    const score = ([title, , text]) => words.every((w) => title.toLowerCase().includes(w) || text.toLowerCase().includes(w)) ? words.reduce((n, w) => n + (title.toLowerCase().includes(w) ? 20 : 0) + Math.min(5, text.toLowerCase().split(w).length), 0) : 0;
    const found = Site.index.map((entry) => [score(entry), entry]).filter(([n]) => n).sort((a, b) => b[0] - a[0]).slice(0, 12);
    results.replaceChildren(...found.map(([, [title, url, text]]) => { const at = Math.max(0, text.toLowerCase().indexOf(words[0]) - 50); return element("p", {}, element("a", { href: url }, title), element("small", {}, text.slice(at, at + 150))); }));
    if (!found.length) results.replaceChildren(element("p", {}, "Nothing found."));
    results.hidden = false;
  };
  input.oninput = show;
  addEventListener("keydown", (event) => { if (event.key === "Escape") hide(); if (event.key === "/" && !event.target.matches("input, select")) { event.preventDefault(); input.focus(); } });
  addEventListener("click", (event) => { if (!event.target.closest("#results, #search") || event.target.closest("#results a")) hide(); });
}

function theme(dark) {
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  if ($("#theme")) $("#theme").textContent = dark ? "Light" : "Dark";
}

const stored = (() => { try { return localStorage.getItem("theme"); } catch { return null; } })();
theme(stored ? stored === "dark" : matchMedia("(prefers-color-scheme: dark)").matches);

addEventListener("DOMContentLoaded", async () => {
  theme(document.documentElement.dataset.theme === "dark");
  $("#theme").onclick = () => { const dark = document.documentElement.dataset.theme !== "dark"; theme(dark); try { localStorage.setItem("theme", dark ? "dark" : "light"); } catch { /* a private window */ } };
  search();
  if ($("#filters")) filterMethods();
  if ($("#verdicts")) filterClaims();
  if ($("#pair")) await compare();
  for (const place of $$("[data-fingerprint]")) { await need([place.dataset.fingerprint]); fingerprint(place, [place.dataset.fingerprint]); }
  for (const place of $$("[data-curves]")) { await need([place.dataset.curves]); curves(place, [place.dataset.curves]); }
  for (const place of $$("[data-diff]")) { const pair = place.dataset.diff.split("/"); await need(pair); diff(place, ...pair); }
  for (const place of $$("[data-source]")) { await need([place.dataset.source]); source(place, place.dataset.source); }
  const line = () => { if (/^#L\d+$/.test(location.hash)) { for (const place of $$("[data-source]")) place.parentElement.open = true; $(location.hash)?.scrollIntoView(); } };
  addEventListener("hashchange", line);
  line();
  document.documentElement.dataset.ready = "yes";
});
