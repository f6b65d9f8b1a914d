"use strict";
// Sliders over the tables that the build computed from the scripts' functions (tables.js).
addEventListener("DOMContentLoaded", () => {
  const form = $("#sliders"), T = Site.tables, { a, b, group, right, sign, ratio, whole, scale, tokens, age } = form.elements;
  const start = [[group, T.groups, 2], [right, null, 2], [sign, ["correct", "incorrect"], 0], [ratio, T.ratios, T.ratios.indexOf(1.1)], [whole, ["one token", "all of its tokens"], 0], [scale, T.scales, 2], [tokens, T.lengths, 31], [age, T.age.ages, 1]];
  for (const [input, values, value] of start) { input.max = (values ?? T.lengths).length - 1; input.value = value; }
  const output = (input, text) => { input.parentElement.querySelector("output").textContent = text; input.setAttribute("aria-valuetext", text); };
  const pick = (name) => {
    const s = T.scripts[name], negative = Number(sign.value), advantages = s.advantages[group.value]?.[negative];
    const factors = s.factors[scale.value][whole.value][negative];
    return { advantages, factors, weights: s.weights, advantage: advantages?.[right.value] ?? null, factor: factors?.[ratio.value] ?? null, weight: s.weights?.[tokens.value] ?? null };
  };
  const show = () => {
    const G = T.groups[group.value];
    right.max = sign.value === "0" ? G : G - 1;
    right.min = sign.value === "0" ? 1 : 0;
    for (const [input, values] of start) output(input, values ? String(values[input.value]) : `${right.value} of ${G}`);
    const names = a.value === b.value ? [a.value] : [a.value, b.value], picked = names.map(pick), round = (x) => (x === null ? "–" : Number(x.toPrecision(3)));
    const cells = (tag, values) => element("tr", {}, ...values.map((value) => element(tag, {}, String(value))));
    $("#product").replaceChildren(element("table", {}, cells("th", ["script", "advantage", "factor", "weight", "product"]), ...names.map((name, i) => { const p = picked[i]; return cells("td", [name, round(p.advantage), round(p.factor), round(p.weight), [p.advantage, p.factor, p.weight].includes(null) ? "–" : round(p.advantage * p.factor * p.weight)]); })));
    const line = (points) => names.map((name, i) => ({ color: `c${i}`, dash: i > 0, points: points(picked[i]) })), zip = (x, y) => (y ?? []).map((v, k) => [x[k], v]), names2 = legend(names.map((name, i) => [name, `c${i}`, i > 0]));
    $("#tables").replaceChildren(
      chart(line((p) => (p.advantages ?? []).map((v, k) => [k, v])), { title: "Advantage", x: `correct responses of ${G}`, now: Number(right.value) }),
      chart(line((p) => zip(T.ratios, p.factors)), { title: "Factor", x: "ratio", y: [0, 2], now: T.ratios[ratio.value] }),
      chart(line((p) => zip(T.lengths, p.weights)), { title: "Relative weight", x: "length of the response", y: [0, 3], now: T.lengths[tokens.value] }), names2);
    const old = T.age, at = old.ages[age.value];
    $("#ages").replaceChildren(
      chart(old.names.map((name, q) => ({ color: q === 2 ? "c0" : "c1", dash: q % 2 > 0, points: zip(old.ages, old.quantiles.map((row) => row[q])) })), { title: `Ratio of the tokens: ${old.names.map((name, q) => `${name} ${round(old.quantiles[age.value][q])}`).join(", ")}`, x: "age, steps", now: at }),
      chart(names.map((name, i) => ({ color: `c${i}`, dash: i > 0, points: zip(old.ages, old.stopped[name]) })), { title: `Fraction stopped: ${names.map((name) => `${name} ${old.stopped[name][age.value] ?? "–"}`).join(", ")}`, x: "age, steps", now: at }),
      names2.cloneNode(true));
  };
  form.oninput = show;
  form.onsubmit = (event) => event.preventDefault();
  show();
});
