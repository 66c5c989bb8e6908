"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const PAGE = 100;
  const SLOT = 0, CASE = 1, VARIANT = 2, REPETITION = 3, STATE = 4, REASON = 5, ATTEMPTS = 6, SECONDS = 7,
    VERDICTS = 8, FLAGS = 9;
  const get = (id) => document.getElementById(id);
  const search = get("search"), state = get("state"), variant = get("variant"), verdict = get("verdict");
  const list = get("list"), pager = get("pager"), count = get("count");
  const words = (token) => String(token).replaceAll("_", " ");
  let shown = data.rows.map((_, at) => at), page = 0, texts = null;

  // Everything that comes from the data goes through here: it is set as text, never as markup.
  function element(name, attributes, ...children) {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(attributes || {})) {
      if (value !== null && value !== undefined) made.setAttribute(key, value);
    }
    for (const child of children) {
      if (child !== null && child !== undefined) made.append(child);
    }
    return made;
  }

  const chip = (kind, text) => element("span", { class: "chip " + kind }, text);

  function duration(seconds) {
    if (seconds === null) return "";
    if (seconds < 0.001) return Math.round(seconds * 1e6) + " µs";
    if (seconds < 1) return Number((seconds * 1e3).toPrecision(3)) + " ms";
    return Number(seconds.toPrecision(3)) + " s";
  }

  function verdictOf(row) {
    if (row[STATE] !== "selected") return [];
    const kinds = new Set();
    const judged = new Set();
    for (const [judge, passed, score, reason] of row[VERDICTS]) {
      judged.add(judge);
      if (reason !== null) kinds.add("none").add("none:" + reason);
      else kinds.add("any");
      if (passed === true) kinds.add("passed");
      if (passed === false) kinds.add("failed");
    }
    if (data.head.judges.some((name) => !judged.has(name))) kinds.add("waiting");
    return [...kinds];
  }

  function textOf(at) {
    const row = data.rows[at], more = data.more[at];
    const parts = [...data.cases[row[CASE]].slice(0, 3), data.head.variants[row[VARIANT]], row[STATE], row[REASON]];
    parts.push(JSON.stringify(data.cases[row[CASE]][3]), ...row[FLAGS]);
    for (const [judge, , score, reason] of row[VERDICTS]) parts.push(judge, score, reason);
    if (more) {
      parts.push(...more.v);
      for (const attempt of more.a) {
        parts.push(attempt.s, attempt.r, attempt.m, attempt.o);
        for (const turn of attempt.t || []) parts.push(turn[1], turn[2]);
        for (const send of attempt.d) parts.push(send[0], send[3], send[4]);
      }
    }
    return parts.filter((part) => part !== null && part !== undefined).join("\n").toLowerCase();
  }

  function filter() {
    const terms = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    if (terms.length && texts === null) texts = data.rows.map((_, at) => textOf(at));
    shown = [];
    for (let at = 0; at < data.rows.length; at += 1) {
      const row = data.rows[at];
      if (state.value && row[STATE] !== state.value) continue;
      if (variant.value && String(row[VARIANT]) !== variant.value) continue;
      if (verdict.value && !verdictOf(row).includes(verdict.value)) continue;
      if (terms.length && !terms.every((term) => texts[at].includes(term))) continue;
      shown.push(at);
    }
    page = 0;
    draw();
  }

  function draw() {
    const first = page * PAGE, end = Math.min(first + PAGE, shown.length);
    list.replaceChildren(...shown.slice(first, end).map(line));
    count.textContent = shown.length === data.rows.length
      ? data.rows.length + " planned observations"
      : shown.length + " of " + data.rows.length + " planned observations";
    pager.replaceChildren();
    if (shown.length <= PAGE) return;
    const back = element("button", { type: "button" }, "Back"), on = element("button", { type: "button" }, "Next");
    back.disabled = page === 0;
    on.disabled = end === shown.length;
    back.addEventListener("click", () => { page -= 1; draw(); get("cases").scrollIntoView(); });
    on.addEventListener("click", () => { page += 1; draw(); get("cases").scrollIntoView(); });
    pager.append(back, element("span", { class: "soft" }, (first + 1) + "–" + end + " of " + shown.length), on);
  }

  function verdictChips(row) {
    const chips = row[VERDICTS].map(([judge, passed, score, reason, reused]) => {
      const told = [];
      if (passed !== null) told.push(passed ? "passed" : "not passed");
      if (score !== null) told.push(Number(score.toPrecision(4)));
      if (reason !== null) told.push(words(reason));
      if (reused) told.push("reused");
      const kind = reason !== null ? "none" : passed === null ? "" : passed ? "passed" : "failed";
      return chip(kind, judge + ": " + told.join(", "));
    });
    return element("span", { class: "verdicts" }, ...chips);
  }

  function line(at) {
    const row = data.rows[at];
    const name = data.cases[row[CASE]][0] + (row[REPETITION] > 1 ? " · " + row[REPETITION] : "");
    const made = element("details", { id: "slot-" + row[SLOT] },
      element("summary", null,
        element("span", { class: "case" }, name),
        element("span", { class: "variant" }, data.head.variants[row[VARIANT]]),
        element("span", { class: "state" }, chip(row[STATE], words(row[STATE]))),
        verdictChips(row),
        element("span", { class: "time" }, duration(row[SECONDS]))));
    made.addEventListener("toggle", () => {
      if (made.open && made.children.length === 1) made.append(inner(at));
    });
    return made;
  }

  function pairs(entries) {
    const made = element("dl");
    for (const [name, value] of entries) {
      if (value === null || value === undefined || value === "") continue;
      made.append(element("dt", null, name),
        element("dd", null, value instanceof Node ? value : String(value)));
    }
    return made;
  }

  const block = (text) => (text === null || text === undefined ? null : element("pre", null, text));

  function inner(at) {
    const row = data.rows[at], more = data.more[at], [, input, expected, metadata] = data.cases[row[CASE]];
    const made = element("div", { class: "inner" });
    const others = [];
    data.rows.forEach((other, place) => {
      if (other[CASE] === row[CASE] && place !== at) {
        others.push(element("a", { href: "#slot-" + other[SLOT] },
          data.head.variants[other[VARIANT]] + " · " + other[REPETITION] + " (" + words(other[STATE]) + ")"), " ");
      }
    });
    const known = more ? [["input", block(input)], ["expected", block(expected)]] : [];
    made.append(pairs([
      ...known, ...Object.entries(metadata),
      ["reason", row[REASON]], ["flags", row[FLAGS].join(", ")],
      ["same case", others.length ? element("span", null, ...others) : null],
      ["link", element("a", { href: "#slot-" + row[SLOT] }, "#slot-" + row[SLOT])],
    ]));
    if (!more) {
      made.append(element("p", { class: "soft" }, "tallystick show " + data.head.run + " " + data.cases[row[CASE]][0]));
      return made;
    }
    if (row[VERDICTS].length) {
      made.append(element("h3", null, "Verdicts"));
      row[VERDICTS].forEach(([judge], place) => {
        made.append(pairs([[judge, verdictChips({ [VERDICTS]: [row[VERDICTS][place]] })], ["said", more.v[place]]]));
      });
    }
    made.append(element("h3", null, more.a.length ? "Attempts" : "Not attempted"));
    made.append(...more.a.map(attempt));
    for (const [number, decision, by, reason, when] of more.s) {
      made.append(pairs([["settled", "attempt " + number + " as " + words(decision) + " by " + by + " at " + when + ": " + reason]]));
    }
    const [tokensIn, tokensOut, cost] = more.u;
    made.append(pairs([["tokens in", tokensIn], ["tokens out", tokensOut], ["cost", cost === null ? null : "$" + cost]]));
    return made;
  }

  function attempt(one) {
    const when = one.b + (one.e ? " to " + one.e : "");
    const head = element("p", null, element("b", null, "Attempt " + one.n), " ", chip(one.s, words(one.s)), " ",
      element("span", { class: "soft" }, when));
    const sends = one.d.map(([call, number, state, reason, message, took, sent, status, tokensIn, tokensOut, replay]) => {
      const told = [words(state), reason, message, status === null ? null : "status " + status,
        sent === null ? null : sent + " bytes sent", took === null ? null : duration(took),
        tokensIn === null ? null : tokensIn + " tokens in", tokensOut === null ? null : tokensOut + " tokens out",
        replay ? "a replay" : null].filter(Boolean);
      return element("div", null, element("code", null, call), " send " + number + ": " + told.join(" · "));
    });
    const turns = (one.t || []).map(([number, message, answer, source, from, replay]) => {
      const told = [from === null ? null : "carried over from attempt " + from, replay ? "asked again" : null,
        source === "wire" || from !== null ? null : source].filter(Boolean).join(", ");
      return element("div", null, element("p", { class: "soft" }, "turn " + number + (told ? " (" + told + ")" : "")),
        block(message), block(answer));
    });
    return element("div", { class: "attempt" }, head, pairs([
      ["reason", one.r], ["message", one.m], ["touched by", one.c ? "an earlier holder of its device may have interfered" : null],
      ["turns", turns.length ? element("div", { class: "turns" }, ...turns) : null],
      ["answer" + (one.src && one.src !== "wire" ? " (" + one.src + ")" : ""), block(one.o)],
      ...Object.entries(one.ev || {}).map(([name, value]) => ["evidence: " + name, block(value)]),
      ["calls", sends.length ? element("div", null, ...sends) : null],
    ]));
  }

  function options(select, label, choices) {
    select.append(element("option", { value: "" }, label));
    for (const [value, text] of choices) select.append(element("option", { value }, text));
  }

  function tally(of) {
    const found = new Map();
    for (const row of data.rows) for (const key of of(row)) found.set(key, (found.get(key) || 0) + 1);
    return found;
  }

  const states = tally((row) => [row[STATE]]), verdicts = tally(verdictOf);
  options(state, "Any state", [...states].map(([name, number]) => [name, words(name) + " (" + number + ")"]));
  options(variant, "Any variant", data.head.variants.map((name, number) => [String(number), name]));
  variant.hidden = data.head.variants.length < 2;
  const named = { any: "has a verdict", passed: "passed", failed: "not passed", none: "no verdict", waiting: "not judged yet" };
  const reasons = [...verdicts.keys()].filter((key) => key.startsWith("none:")).sort();
  options(verdict, "Any verdict", [...Object.keys(named).filter((key) => verdicts.has(key)), ...reasons].map((key) => [
    key, (named[key] || "no verdict: " + words(key.slice(5))) + " (" + verdicts.get(key) + ")",
  ]));
  verdict.hidden = !data.head.judges.length;

  function choose(select, value) {
    select.value = [...select.options].some((option) => option.value === value) ? value : "";
  }

  function follow() {
    const hash = decodeURIComponent(location.hash);
    if (hash.startsWith("#cases:")) {
      const wanted = new URLSearchParams(hash.slice(7));
      search.value = wanted.get("q") || "";
      choose(state, wanted.get("state") || "");
      choose(variant, wanted.get("variant") || "");
      choose(verdict, wanted.get("verdict") || "");
      filter();
      get("cases").scrollIntoView();
    } else if (hash.startsWith("#slot-")) {
      const number = Number(hash.slice(6)), at = data.rows.findIndex((row) => row[SLOT] === number);
      if (at < 0) return;
      if (!shown.includes(at)) { clear(); }
      page = Math.floor(shown.indexOf(at) / PAGE);
      draw();
      const found = get("slot-" + number);
      found.open = true;
      found.scrollIntoView();
    }
  }

  function clear() {
    search.value = state.value = variant.value = verdict.value = "";
    filter();
  }

  let waiting = 0;
  search.addEventListener("input", () => { clearTimeout(waiting); waiting = setTimeout(filter, 120); });
  for (const select of [state, variant, verdict]) select.addEventListener("change", filter);
  get("clear").addEventListener("click", clear);
  window.addEventListener("hashchange", follow);
  draw();
  follow();
})();
