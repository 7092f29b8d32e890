"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const hidden = new Set();
  const redraws = [];
  const tip = document.getElementById("tip");
  const WIDTH = 440, HEIGHT = 270, LEFT = 60, RIGHT = 12, TOP = 8, BOTTOM = 38;

  const svg = (name, attributes = {}, text = "") => {
    const node = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    if (text) node.textContent = text;
    return node;
  };
  const element = (name, attributes = {}, ...children) => {
    const node = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    node.append(...children);
    return node;
  };

  // Numbers as people write them. Those of ticks are round already: every digit tells them apart.
  const round = (v) => +v.toPrecision(9);
  const tickLabel = (v) => {
    if (v === 0) return "0";
    const size = Math.abs(v);
    if (size >= 1e6) return `${round(v / 1e6)} M`;
    if (size >= 1e4) return `${round(v / 1e3)} k`;
    return size < 1e-3 ? round(v).toExponential() : String(round(v));
  };
  const exact = (v) => (v === null ? "–" : Math.abs(v) >= 100 ? v.toFixed(0) : String(+v.toPrecision(3)));

  const ticks = (low, high, count) => {
    const rough = (high - low) / count, power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough);
    const found = [];
    for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) found.push(+(i * step).toPrecision(12));
    return found;
  };
  const powers = (low, high) => {
    const found = [];
    for (let p = Math.floor(Math.log10(low)); p <= Math.ceil(Math.log10(high)); p++)
      for (const m of [1, 2, 5]) found.push(m * 10 ** p);
    const inside = found.filter((v) => v >= low * 0.999 && v <= high * 1.001);
    if (inside.length < 3) return ticks(low, high, 5); // a narrow range
    return inside.length > 7 ? inside.filter((v) => Number.isInteger(+Math.log10(v).toFixed(9))) : inside;
  };

  // One chart: lines of {method, x, mean, low, high}; redrawn when methods are switched.
  function chart(place, { title, lines, label, xLabel, log = false, bound = null }) {
    if (!lines.length) return;
    const figure = element("figure", {}, element("figcaption", {}, title));
    const root = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", tabindex: "0", "aria-label": `${title}: ${label}` });
    figure.append(root);
    place.append(figure);
    let shown = [], toX, toY, cursor = null, grid = [];

    function draw() {
      root.replaceChildren();
      cursor = null;
      shown = lines.filter((line) => !hidden.has(line.method));
      if (!shown.length) {
        root.append(svg("text", { x: WIDTH / 2, y: HEIGHT / 2, "text-anchor": "middle" }, "All methods here are hidden"));
        return;
      }
      const usable = (v) => v !== null && (!log || v > 0);
      const values = shown.flatMap((line) => [...line.mean, ...line.low, ...line.high]).filter(usable);
      if (bound !== null) values.push(0, bound);
      let low = Infinity, high = -Infinity, right = -Infinity;
      for (const v of values) { if (v < low) low = v; if (v > high) high = v; }
      for (const line of shown) right = Math.max(right, line.x[line.x.length - 1]);
      if (low === high) { low -= Math.abs(low) * 0.1 || 1; high += Math.abs(high) * 0.1 || 1; }
      if (log && low <= 0) low = high / 10;
      const scale = log ? Math.log : (v) => v;
      const pad = (scale(high) - scale(low)) * 0.04, bottom = scale(low) - pad, top = scale(high) + pad;
      toX = (v) => LEFT + ((WIDTH - LEFT - RIGHT) * v) / right;
      toY = (v) => HEIGHT - BOTTOM - ((HEIGHT - TOP - BOTTOM) * (scale(v) - bottom)) / (top - bottom);
      for (const v of log ? powers(low, high) : ticks(low, high, 5)) {
        const y = toY(v);
        root.append(svg("line", { class: "grid", x1: LEFT, x2: WIDTH - RIGHT, y1: y, y2: y }));
        root.append(svg("text", { x: LEFT - 6, y: y + 4, "text-anchor": "end" }, tickLabel(v)));
      }
      for (const v of ticks(0, right, 5)) {
        root.append(svg("text", { x: toX(v), y: HEIGHT - BOTTOM + 15, "text-anchor": "middle" }, tickLabel(v)));
      }
      root.append(svg("line", { class: "axis", x1: LEFT, x2: WIDTH - RIGHT, y1: HEIGHT - BOTTOM, y2: HEIGHT - BOTTOM }));
      root.append(svg("text", { x: (LEFT + WIDTH - RIGHT) / 2, y: HEIGHT - 6, "text-anchor": "middle" }, xLabel));
      root.append(svg("text", { transform: `translate(11 ${(HEIGHT - BOTTOM + TOP) / 2}) rotate(-90)`, "text-anchor": "middle" }, label));
      if (bound !== null) root.append(svg("line", { class: "bound", x1: LEFT, x2: WIDTH - RIGHT, y1: toY(bound), y2: toY(bound) }));
      const at = (line, key, i) => `${toX(line.x[i]).toFixed(1)} ${toY(line[key][i]).toFixed(1)}`;
      const last = [...shown].reverse(); // the first lie on top
      for (const line of last) {
        const index = line.x.map((_, i) => i).filter((i) => usable(line.low[i]) && usable(line.high[i]));
        if (index.length < 2) continue;
        const edge = [...index.map((i) => at(line, "high", i)), ...index.reverse().map((i) => at(line, "low", i))];
        root.append(svg("path", { class: `band m${line.method}`, d: `M${edge.join("L")}Z` }));
      }
      for (const line of last) {
        let path = "", pen = false;
        const alone = [];
        line.mean.forEach((v, i) => {
          if (usable(v)) path += (pen ? "L" : "M") + at(line, "mean", i);
          if (usable(v) && !pen && !usable(line.mean[i + 1] ?? null)) alone.push(i); // no line goes through it
          pen = usable(v);
        });
        const dash = data.methods[line.method].dash;
        root.append(svg("path", { class: `line m${line.method}`, d: path, "stroke-dasharray": dash, "data-method": data.methods[line.method].name }));
        for (const i of alone) root.append(svg("circle", { class: `dot m${line.method}`, cx: toX(line.x[i]), cy: toY(line.mean[i]), r: 2.5 }));
      }
      grid = shown.reduce((a, b) => (b.x.length > a.length ? b.x : a), []);
    }

    function point(x, clientX, clientY) {
      root.querySelector(".marks")?.remove();
      if (!shown.length) return;
      const marks = svg("g", { class: "marks" });
      marks.append(svg("line", { class: "cursor", x1: toX(x), x2: toX(x), y1: TOP, y2: HEIGHT - BOTTOM }));
      const rows = [];
      for (const line of shown) {
        const i = nearest(line.x, x);
        if (line.mean[i] === null || x > line.x[line.x.length - 1] * 1.02) continue;
        if (!log || line.mean[i] > 0) marks.append(svg("circle", { class: `dot m${line.method}`, cx: toX(line.x[i]), cy: toY(line.mean[i]), r: 3 }));
        rows.push([line.mean[i], line, i]);
      }
      root.append(marks);
      rows.sort((a, b) => b[0] - a[0]);
      const body = element("tbody", {}, ...rows.map(([, line, i]) => element("tr", {},
        element("td", {}, element("i", { class: `m${line.method}` }), data.methods[line.method].name),
        element("td", {}, exact(line.mean[i])),
        element("td", {}, line.low[i] === null ? "" : `[${exact(line.low[i])}, ${exact(line.high[i])}]`))));
      tip.replaceChildren(element("strong", {}, `${Number.isInteger(x) ? x.toLocaleString("en") : exact(x)} ${xLabel}`), element("table", {}, body));
      tip.hidden = false;
      const box = tip.getBoundingClientRect();
      const left = clientX + 16 + box.width > innerWidth ? clientX - 16 - box.width : clientX + 16;
      tip.style.left = `${Math.max(4, left)}px`;
      tip.style.top = `${Math.max(4, Math.min(clientY + 12, innerHeight - box.height - 4))}px`;
    }
    function leave() {
      root.querySelector(".marks")?.remove();
      tip.hidden = true;
      cursor = null;
    }
    root.addEventListener("pointermove", (event) => {
      if (!shown.length) return;
      const box = root.getBoundingClientRect();
      const across = (((event.clientX - box.left) / box.width) * WIDTH - LEFT) / (WIDTH - LEFT - RIGHT);
      cursor = nearest(grid, Math.min(1, Math.max(0, across)) * grid[grid.length - 1]);
      point(grid[cursor], event.clientX, event.clientY);
    });
    root.addEventListener("pointerleave", leave);
    root.addEventListener("blur", leave);
    root.addEventListener("keydown", (event) => {
      const move = { ArrowLeft: -1, ArrowRight: 1, PageUp: -20, PageDown: 20, Home: -Infinity, End: Infinity }[event.key];
      if (event.key === "Escape") leave();
      if (move === undefined || !shown.length) return;
      event.preventDefault();
      cursor = Math.min(grid.length - 1, Math.max(0, (cursor ?? (move > 0 ? -1 : grid.length)) + move));
      const box = root.getBoundingClientRect();
      point(grid[cursor], box.left + (toX(grid[cursor]) / WIDTH) * box.width, box.top + box.height / 3);
    });
    redraws.push(draw);
    draw();
    return draw;
  }
  const nearest = (sorted, x) => {
    let low = 0, high = sorted.length - 1;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (sorted[middle] < x) low = middle; else high = middle;
    }
    return x - sorted[low] <= sorted[high] - x ? low : high;
  };

  // Time in the unit that suits the longest line.
  const units = [[3600, "hours"], [60, "minutes"], [1, "seconds"]];
  function perTask(place, { measure, label, x, log, bound }) {
    for (const task of data.tasks) {
      const found = data.lines.filter((line) => line.measure === measure && line.task === task && line[x] !== null);
      const longest = Math.max(...found.map((line) => data.pool[line[x]].at(-1)));
      const [unit, word] = x === "steps" ? [1, "environment steps"] : units.find(([size]) => longest >= 2 * size) ?? units[2];
      const lines = found.map((line) => ({ ...line, x: data.pool[line[x]].map((v) => v / unit) }));
      chart(place, { title: task, lines, label, log, bound, xLabel: word });
    }
    if (!place.children.length) place.append(element("p", {}, "Not recorded in these runs."));
  }
  for (const [id, options] of Object.entries(data.charts)) perTask(document.getElementById(id), options);
  if (data.profiles) {
    const lines = data.profiles.lines.map((line) => ({ ...line, x: data.profiles.thresholds }));
    const place = document.getElementById("profiles");
    chart(place, { title: place.dataset.title, lines, label: "share of runs above", xLabel: "normalised return" });
  }

  // The audit's measure is chosen from a list.
  const select = document.getElementById("measure"), auditPlace = document.getElementById("audit-charts");
  const fixed = redraws.length;
  const available = data.audit.filter((entry) => data.lines.some((line) => line.measure === entry.name));
  function drawAudit() {
    redraws.length = fixed;
    auditPlace.replaceChildren();
    perTask(auditPlace, { measure: select.value, label: "distance / bound", x: "steps", log: false, bound: 1 });
  }
  for (const entry of available) select.append(element("option", { value: entry.name }, entry.label));
  select.addEventListener("change", drawAudit);
  if (available.length) drawAudit(); else document.querySelector(".control").hidden = true;

  // Methods are switched on and off for all charts at once.
  data.methods.forEach((method, number) => {
    const swatch = svg("svg", { viewBox: "0 0 26 10", "aria-hidden": "true" });
    swatch.append(svg("path", { class: `line m${number}`, d: "M0 5H26", "stroke-dasharray": method.dash }));
    const button = element("button", { type: "button", "aria-pressed": "true", title: "Show or hide" }, swatch, method.name);
    button.addEventListener("click", () => {
      if (!hidden.delete(number)) hidden.add(number);
      button.setAttribute("aria-pressed", String(!hidden.has(number)));
      for (const draw of redraws) draw();
    });
    document.getElementById("methods").append(button);
  });

  // Tables: first click falling, second rising, third the order they came in.
  for (const table of document.querySelectorAll("table.sortable")) {
    const body = table.tBodies[0], original = [...body.rows], headers = [...table.querySelectorAll("th[aria-sort]")];
    headers.forEach((header, column) => header.firstElementChild.addEventListener("click", () => {
      const next = { none: "descending", descending: "ascending", ascending: "none" }[header.getAttribute("aria-sort")];
      for (const other of headers) other.setAttribute("aria-sort", "none");
      header.setAttribute("aria-sort", next);
      const sign = next === "ascending" ? 1 : -1;
      const key = (row) => {
        const cell = row.cells[column];
        return cell.dataset.value !== undefined ? parseFloat(cell.dataset.value) : cell.classList.contains("missing") ? NaN : cell.textContent;
      };
      const compare = (a, b) => {
        const x = key(a), y = key(b);
        if (typeof x === "string" && typeof y === "string") return sign * x.localeCompare(y, "en", { numeric: true });
        if (Number.isNaN(x) || Number.isNaN(y)) return Number.isNaN(x) - Number.isNaN(y); // missing ones last, both ways
        return sign * (x - y);
      };
      body.append(...(next === "none" ? original : [...original].sort(compare)));
      table.classList.toggle("sorted", next !== "none");
    }));
  }

  // On paper everything is unfolded, but for tables of several pages, which lie beside the page as CSV.
  let folded = [];
  addEventListener("beforeprint", () => {
    folded = [...document.querySelectorAll("details:not([open])")].filter((node) => node.querySelectorAll("tr").length <= 60);
    for (const node of folded) node.open = true;
  });
  addEventListener("afterprint", () => {
    for (const node of folded) node.open = false;
  });
})();
