// The page of python -m tools.watch. What comes from a run is only ever shown as text (textContent), never as HTML.
"use strict";

const RENEW = 2000; // milliseconds
const SHOWN = 50; // responses at first, and with each "Show more"
const MOST_RUNS = 10; // that are checked at first, the last ones
const COLORS = ["#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#666666", "#B8A200"];
const DASHES = ["solid", "dash", "dot", "dashdot"];
const ORDERS = {
    "reward, highest first": (a, b) => b.reward - a.reward,
    "reward, lowest first": (a, b) => a.reward - b.reward,
    "advantage, highest first": (a, b) => b.advantage - a.advantage,
    "length, longest first": (a, b) => b.length - a.length,
    "prompt": (a, b) => a.group - b.group,
};
const MISMATCH = "mismatch"; // of probabilities: learner and engine
const $ = (id) => document.getElementById(id);

let panels = []; // [title, unit, [[metric, label, color], ...]]
const runs = new Map(); // by name: {version, steps, rows, checked}
let responses = []; // of the chosen run and step
let shown = SHOWN;
let loaded = ""; // run and step of these responses

function element(tag, text = "", className = "") {
    const made = document.createElement(tag);
    made.textContent = text;
    made.className = className;
    return made;
}

async function get(path, parameters = {}) {
    const answer = await fetch(`${path}?${new URLSearchParams(parameters)}`, { cache: "no-store" });
    if (!answer.ok) throw new Error(`${path}: ${answer.status}`);
    return answer.text();
}

// Options of a menu; what was chosen stays chosen if it is still there.
function fill(menu, names) {
    if (names.join("\n") === [...menu.options].map((option) => option.value).join("\n")) return;
    const before = menu.value;
    menu.replaceChildren(...names.map((name) => new Option(name, name)));
    if (names.includes(before)) menu.value = before;
}

// Curves

function checkedRuns() {
    return [...runs].filter(([, run]) => run.checked);
}

function color(name) {
    return COLORS[[...runs.keys()].indexOf(name) % COLORS.length];
}

// Plotly reads some HTML in names.
const escaped = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");

function traces(lines) {
    const several = checkedRuns().length > 1;
    return checkedRuns().flatMap(([name, run]) => lines.flatMap(([metric, label, ownColor], k) => {
        const rows = run.rows.filter((row) => typeof row[metric] === "number");
        const points = metric.startsWith("eval/"); // evaluations are rare
        const drawn = several ? color(name) : ownColor;
        return rows.length === 0 ? [] : [{
            x: rows.map((row) => row.step), y: rows.map((row) => row[metric]),
            name: escaped(several ? `${name}: ${label}` : label),
            mode: points ? "markers" : rows.length > 1 ? "lines" : "lines+markers",
            line: { color: drawn, width: 1.5, dash: several ? DASHES[k % DASHES.length] : "solid" },
            marker: { color: drawn, size: 7 },
        }];
    }));
}

function drawPanel(parent, title, unit, lines) {
    const data = traces(lines);
    let figure = [...parent.children].find((child) => child.dataset.title === title);
    if (data.length === 0) return figure && figure.remove();
    if (!figure) {
        figure = parent.appendChild(element("figure"));
        figure.dataset.title = title;
        figure.append(element("h3", title), element("small"), element("div"));
    }
    const several = checkedRuns().length > 1, looks = lines.map(([metric, label], k) =>
        `${metric.startsWith("eval/") ? "points" : DASHES[k % DASHES.length]}: ${label}`);
    figure.children[1].textContent = several && lines.length > 1 ? looks.join(", ") : "";
    const text = getComputedStyle(document.body).color;
    Plotly.react(figure.lastChild, data, {
        margin: { l: 48, r: 8, t: 8, b: 34 }, showlegend: !several && lines.length > 1,
        legend: { orientation: "h", y: 1.15 }, hovermode: "closest", uirevision: "kept", // zoom stays
        paper_bgcolor: "transparent", plot_bgcolor: "transparent", font: { color: text, size: 11 },
        xaxis: { title: { text: "step", standoff: 2 }, gridcolor: "#8884" },
        yaxis: { title: { text: unit, standoff: 2 }, gridcolor: "#8884" },
    }, { displayModeBar: false, responsive: true });
}

function drawCurves() {
    for (const panel of panels) drawPanel($("panels"), ...panel);
    if (!$("others").open) return;
    const inPanels = new Set(["step", ...panels.flatMap(([, , lines]) => lines.map(([metric]) => metric))]);
    const logged = new Set(checkedRuns().flatMap(([, run]) => run.rows.flatMap((row) => Object.keys(row))));
    const parent = $("others").lastElementChild;
    for (const metric of [...logged].filter((name) => !inPanels.has(name)).sort()) {
        drawPanel(parent, metric, "", [[metric, metric, COLORS[0]]]);
    }
}

function listRuns() {
    const labels = [...runs].map(([name, run]) => {
        const label = element("label"), box = element("input"), text = element("span", name);
        box.type = "checkbox";
        box.checked = run.checked;
        box.addEventListener("change", () => { run.checked = box.checked; renew(true); });
        text.style.borderColor = color(name);
        label.append(box, " ", text);
        return label;
    });
    $("runs").replaceChildren($("runs").firstElementChild, ...labels);
}

// Responses

// A response's numbers per token, by name; each list is as long as the list of tokens.
function tokenValues(response) {
    const { text, ...values } = response.tokens ?? {};
    const fits = (list) => Array.isArray(text) && Array.isArray(list) && list.length === text.length;
    const usable = Object.entries(values).filter(([, list]) => fits(list));
    const found = new Map(usable);
    if (found.has("old_logp") && found.has("rollout_logp")) {
        const engine = found.get("rollout_logp");
        found.set(MISMATCH, found.get("old_logp").map((logp, t) => Math.abs(Math.exp(logp) - Math.exp(engine[t]))));
    }
    return found;
}

// The middle of a scale: 1 for ratios, which are shown by their logarithm.
const isRatio = (name) => name === "ratio" || name === "tis_weight";
const onScale = (name, value) => isRatio(name) ? Math.log(Math.max(value, 1e-9)) : value;

function paint(x, most) {
    const strength = most > 0 ? Math.min(1, Math.abs(x) / most) : 0;
    return x >= 0 ? `rgba(0, 114, 178, ${0.75 * strength})` : `rgba(230, 159, 0, ${strength})`;
}

function drawScale(name, values) {
    const most = values.reduce((most, value) => Math.max(most, Math.abs(onScale(name, value))), 0);
    const negative = values.some((value) => onScale(name, value) < 0);
    $("scale").replaceChildren();
    if (name === "none") return most;
    const bar = element("span", "", "gradient"), form = (x) => Number(x.toPrecision(3)).toString();
    const low = negative ? -most : 0, colors = [...(negative ? [paint(low, most)] : []), "#fff", paint(most, most)];
    const [first, last] = [low, most].map((x) => form(isRatio(name) ? Math.exp(x) : x));
    bar.style.background = `linear-gradient(to right, ${colors.join(", ")})`;
    $("scale").append(`${name}: ${first} `, bar, ` ${last}`);
    return most;
}

function facts(response) {
    const number = (x) => typeof x === "number" ? Number(x.toPrecision(4)).toString() : String(x);
    const each = Object.entries(response.rewards ?? {}).map(([name, value]) => `${name} ${number(value)}`);
    return [
        `reward ${number(response.reward)}`, ...each,
        response.advantage == null ? "" : `advantage ${number(response.advantage)}`,
        response.correct ? "correct" : "incorrect", `${response.length} tokens`,
        response.truncated ? "cut off" : "", `answer ${response.answer}`, `prompt ${response.group}`,
    ].filter(Boolean).join(" · ");
}

function drawResponse(response, name, most) {
    const article = element("article"), values = tokenValues(response), body = element("pre");
    article.append(element("p", facts(response)), element("pre", response.prompt, "prompt"), body);
    if (!values.has(name)) {
        body.textContent = response.text;
        return article;
    }
    body.className = "colored";
    body.append(...response.tokens.text.map((text, t) => {
        const token = element("span", text);
        token.style.background = paint(onScale(name, values.get(name)[t]), most);
        token.title = [...values].map(([each, list]) => `${each} ${list[t]}`).join("\n");
        return token;
    }));
    return article;
}

function drawResponses() {
    const names = [...new Set(responses.flatMap((response) => [...tokenValues(response).keys()]))];
    fill($("color"), [...names, "none"]);
    const name = $("color").value;
    const all = name === "none" ? [] : responses.flatMap((response) => tokenValues(response).get(name) ?? []);
    const most = drawScale(name, all);
    const sorted = [...responses].sort(ORDERS[$("sort").value]).slice(0, shown);
    $("responses").replaceChildren(...sorted.map((response) => drawResponse(response, name, most)));
    $("more").hidden = responses.length <= shown;
}

// The lines of a file of responses; a damaged one is left out.
function parsed(lines) {
    return lines.split("\n").flatMap((line) => {
        try {
            const row = JSON.parse(line);
            return row && typeof row === "object" ? [row] : [];
        } catch { return []; }
    });
}

async function renewResponses() {
    fill($("run"), checkedRuns().map(([name]) => name));
    const name = $("run").value, steps = runs.get(name)?.steps ?? [];
    fill($("step"), steps.map(String));
    if ($("newest").checked && steps.length) $("step").value = String(steps.at(-1));
    const step = $("step").value, wanted = `${name}\n${step}`;
    $("none").textContent = name && !steps.length ? "This run has saved no responses (--save-rollouts 1)." : "";
    if (wanted === loaded) return;
    const lines = step ? await get("rollouts", { run: name, step }) : "";
    if (name !== $("run").value || step !== $("step").value) return; // another choice was made meanwhile
    [responses, loaded, shown] = [parsed(lines), wanted, SHOWN];
    drawResponses();
}

// Renewal

async function renew(changed = false) {
    const current = JSON.parse(await get("runs")), names = Object.keys(current), before = [...runs.keys()];
    for (const name of before) if (!(name in current)) runs.delete(name);
    names.forEach((name, i) => {
        if (!runs.has(name)) runs.set(name, { rows: [], version: "", checked: i >= names.length - MOST_RUNS });
        runs.get(name).steps = current[name].steps;
    });
    if (names.join("\n") !== before.join("\n")) listRuns();
    for (const [name, run] of checkedRuns()) {
        if (run.version === current[name].version) continue;
        run.rows = JSON.parse(await get("metrics", { run: name }));
        run.version = current[name].version;
        changed = true;
    }
    if (changed) drawCurves();
    await renewResponses();
}

async function keepRenewing() {
    try {
        await renew();
        $("status").textContent = `Renewed ${new Date().toLocaleTimeString()}`;
    } catch (error) {
        $("status").textContent = `Not renewed: ${error.message}. Is python -m tools.watch still running?`;
    }
    document.documentElement.dataset.renewed = Date.now();
    setTimeout(keepRenewing, RENEW);
}

async function start() {
    fill($("sort"), Object.keys(ORDERS));
    for (const id of ["run", "newest"]) $(id).addEventListener("change", renewResponses);
    $("step").addEventListener("change", () => { $("newest").checked = false; renewResponses(); });
    for (const id of ["sort", "color"]) $(id).addEventListener("change", drawResponses);
    $("more").addEventListener("click", () => { shown += SHOWN; drawResponses(); });
    $("others").addEventListener("toggle", drawCurves);
    panels = JSON.parse(await get("panels"));
    await keepRenewing();
}

start();
