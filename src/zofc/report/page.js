// Sorts the summary, switches runs on and off everywhere at once, and draws the figures in the colours of the page.
"use strict";
(() => {
  const { runs, figures } = JSON.parse(document.getElementById("data").textContent);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const root = document.documentElement;
  const style = name => getComputedStyle(root).getPropertyValue(name).trim();
  const family = getComputedStyle(document.body).fontFamily;
  const narrow = matchMedia("(max-width: 40rem)");
  const off = new Set();
  const near = new Set(); // figures within a screen of what is seen; the others wait, for there may be hundreds

  // -- what pointing at a run shows --

  const tip = document.getElementById("tip");
  const say = (tag, words, parent) => {
    const element = parent.appendChild(document.createElement(tag));
    element.textContent = words;
    return element;
  };
  const pick = run => { // the lines and points of one run stand out, those of all without one
    for (const id of near) {
      const place = document.getElementById(id);
      place.querySelectorAll(".scatterlayer .trace").forEach((line, number) =>
        line.classList.toggle("faint", run !== undefined && place.data[number].meta.run !== run));
    }
  };
  const show = (run, words, x, y) => {
    pick(run);
    tip.replaceChildren();
    say("strong", runs[run].label, say("p", "", tip));
    if (words) say("p", words, tip);
    const recipe = say("dl", "", tip);
    const most = narrow.matches ? 5 : 14; // a phone has room for the first few
    const settings = runs[run].recipe, more = settings.length - most;
    for (const [key, value] of [...settings.slice(0, most), ...(more > 0 ? [["…", `${more} more`]] : [])]) {
      say("dt", key, recipe);
      say("dd", value, recipe);
    }
    tip.hidden = false;
    const { width, height } = tip.getBoundingClientRect();
    const below = y + 16 + height < innerHeight;
    tip.style.left = `${Math.max(8, Math.min(x + 16, innerWidth - width - 8))}px`;
    tip.style.top = `${Math.max(8, below ? y + 16 : y - 16 - height)}px`;
  };
  const hide = () => { tip.hidden = true; pick(); };
  for (const element of document.querySelectorAll(".key [data-run], #summary [data-run], .bars [data-run]")) {
    const run = Number(element.dataset.run);
    element.addEventListener("pointermove", event => { if (event.pointerType === "mouse") show(run, "", event.clientX, event.clientY); });
    element.addEventListener("pointerleave", hide);
    element.addEventListener("focus", () => {
      const { left, bottom } = element.getBoundingClientRect();
      if (element.matches(":focus-visible")) show(run, "", left, bottom); // reached by the keyboard
    });
    element.addEventListener("blur", hide);
  }
  addEventListener("keydown", event => { if (event.key === "Escape") hide(); });
  addEventListener("scroll", hide, { passive: true });
  addEventListener("pointerdown", hide, { capture: true, passive: true });

  // -- figures --

  // Names beside their points: near, apart, with a line to the point where that is not next to them. Names are placed
  // one after another; of a few orders the one with the shortest lines is kept.
  const apart = (a, b) => a[2] <= b[0] || b[2] <= a[0] || a[3] <= b[1] || b[3] <= a[1];
  const crosses = (x, y, cx, cy, box) => { // does a line meet a box: looked at in steps of some pixels
    const steps = Math.ceil(Math.hypot(cx - x, cy - y) / 3);
    for (let n = 1; n < steps; n++) {
      const px = x + (cx - x) * n / steps, py = y + (cy - y) * n / steps;
      if (px > box[0] && px < box[2] && py > box[1] && py < box[3]) return true;
    }
    return false;
  };
  const places = ({ x, y, w, h }) => { // where a name could be, the nearest first
    const found = [];
    for (let side = -1; side <= 1; side++) {
      for (let step = -14; step <= 14; step++) {
        for (const out of side ? [0, 14, 30, 60, 100] : [0]) {
          const cx = x + side * (11 + w + out), cy = y + step * 9, high = Math.max(0, Math.abs(step * 9) - h);
          if (!side && high < 9) continue;
          found.push({ cx, cy, box: [cx - w, cy - h, cx + w, cy + h], cost: out + high + Math.abs(step) / 9 + (side > 0 ? 0 : 1),
            next: side ? out === 0 && high === 0 : high < 16, align: ["right", "center", "left"][side + 1] });
        }
      }
    }
    return found.sort((a, b) => a.cost - b.cost);
  };
  const arranged = (points, width, height) => {
    const dots = points.map(({ x, y }) => [x - 8, y - 8, x + 8, y + 8]);
    const placed = [];
    let cost = 0;
    for (const point of points) {
      const fits = ({ cx, cy, box, next }) => box[0] >= 0 && box[1] >= 0 && box[2] <= width && box[3] <= height
        && dots.every(dot => apart(box, dot))
        && placed.every(other => apart(box, other.box) && !crosses(other.point.x, other.point.y, other.cx, other.cy, box))
        && (next || [...dots.filter(dot => apart(dot, [point.x, point.y, point.x, point.y])), ...placed.map(other => other.box)]
          .every(other => !crosses(point.x, point.y, cx, cy, other)));
      const place = places(point).find(fits);
      cost += place ? place.cost : 1000; // without a place, the key and pointing at it still name the point
      if (place) placed.push({ ...place, point });
    }
    return { placed, cost };
  };
  const named = (points, width, height) => {
    const pen = document.createElement("canvas").getContext("2d");
    pen.font = `12px ${family}`;
    for (const point of points) {
      point.lines = wrapped(point.label, Math.max(90, Math.min(190, width / 1.9)), pen);
      point.w = Math.max(...point.lines.map(line => pen.measureText(line).width)) / 2 + 4;
      point.h = point.lines.length * 8 + 2;
    }
    const orders = [(a, b) => a.x - b.x, (a, b) => b.x - a.x, (a, b) => a.y - b.y, (a, b) => b.y - a.y];
    const best = orders.map(order => arranged([...points].sort(order), width, height)).sort((a, b) => a.cost - b.cost)[0];
    return best.placed.map(({ point, cx, cy, next, align }) => ({ ...point.at, align, borderpad: 0, bgcolor: style("--page"), font: { size: 12 },
      text: point.lines.map(escaped).join("<br>"),
      ...(next ? { showarrow: false, xshift: cx - point.x, yshift: point.y - cy }
        : { showarrow: true, arrowhead: 0, arrowwidth: 1, arrowcolor: style("--soft"), standoff: 7, ax: cx - point.x, ay: cy - point.y }) }));
  };
  const wrapped = (text, room, pen) => {
    const lines = [""];
    for (const word of text.split(/\s+/)) {
      const longer = lines.at(-1) ? `${lines.at(-1)} ${word}` : word;
      if (pen.measureText(longer).width <= room || !lines.at(-1)) lines[lines.length - 1] = longer;
      else lines.push(word);
    }
    return lines;
  };
  const escaped = text => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  const around = (values, least) => {
    const low = Math.min(...values), high = Math.max(...values), pad = Math.max(least, 0.12 * (high - low));
    return [low - pad, high + pad];
  };
  const labelled = (traces, layout, size) => {
    const margin = layout.margin, width = size - margin.l - margin.r, height = layout.height - margin.t - margin.b;
    const xs = traces.map(trace => trace.x[0]), ys = traces.map(trace => trace.y[0]);
    const ends = traces.flatMap(({ y: [y], error_y }) => [y - (error_y?.array[0] ?? 0), y + (error_y?.array[0] ?? 0)]);
    const [left, right] = around(xs, 0.1 * Math.max(...xs)), [bottom, top] = around(ends, 1);
    const points = traces.map((trace, number) => ({
      label: trace.meta.label, at: { x: xs[number], y: ys[number] },
      x: (xs[number] - left) / (right - left) * width, y: (top - ys[number]) / (top - bottom) * height,
    }));
    return { ...layout, annotations: named(points, width, height),
      xaxis: { ...layout.xaxis, range: [left, right], automargin: false }, yaxis: { ...layout.yaxis, range: [bottom, top], automargin: false } };
  };

  // As wide as the longest run that is shown, with ticks at whole tasks: at most ten, the first at 1. A level reaches across.
  const overTasks = (traces, layout) => {
    const lines = traces.filter(trace => !trace.meta.level);
    const last = Math.max(...(lines.length ? lines : traces).map(trace => trace.x.at(-1)));
    const step = [1, 2, 5, 10, 20, 50, 100, last].find(step => last / step <= 10), pad = last > 1 ? Math.max(0.2, 0.03 * last) : 0.5;
    return [traces.map(trace => trace.meta.level ? { ...trace, x: [1, last] } : trace),
      { ...layout, xaxis: { ...layout.xaxis, tick0: step > 1 ? 0 : 1, dtick: step, range: [1 - pad, last + pad] } }];
  };
  const fitted = (id, traces, layout, width) => {
    if (id === "memory") return [traces, labelled(traces, layout, width)];
    return id.startsWith("matrix") ? [traces, layout] : overTasks(traces, layout);
  };

  const colours = () => { const found = []; for (let c; (c = style(`--run-${found.length}`)); ) found.push(c); return found; };
  const coloured = (trace, palette, width) => {
    if (trace.type === "bar") return trace; // the cells of a matrix
    if (trace.mode === "text") { // the numbers in a matrix, as large as its cells allow
      const size = Math.min(12, (width - 75) / trace.meta.columns / 1.8);
      return { ...trace, visible: size >= 7.5, textfont: { ...trace.textfont, size } };
    }
    const color = palette[trace.meta.run % palette.length];
    return { ...trace, line: { ...trace.line, color }, marker: { ...trace.marker, color, line: { width: 1, color: style("--page") } } };
  };
  const themed = (layout, width) => {
    const line = style("--line");
    const axis = { gridcolor: line, linecolor: line, tickcolor: line, fixedrange: true };
    return { ...layout, width, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", dragmode: false,
      font: { color: style("--text"), family, size: 13 },
      xaxis: { automargin: true, ...layout.xaxis, ...axis }, yaxis: { automargin: true, ...layout.yaxis, ...axis } };
  };
  const drawn = new Map(); // figure → what it was drawn for
  const draw = () => {
    const palette = colours();
    for (const [id, figure] of Object.entries(figures)) {
      const place = document.getElementById(id), width = place.clientWidth;
      const traces = figure.data.filter(trace => !off.has(trace.meta.run));
      place.classList.toggle("empty", !traces.length);
      if (!near.has(id) && !root.classList.contains("paper")) continue;
      const state = JSON.stringify([width, style("--page"), traces.map(trace => trace.meta.run)]);
      if (!width || !traces.length || drawn.get(id) === state) continue;
      const [data, layout] = fitted(id, traces, figure.layout, width);
      Plotly.react(place, data.map(trace => coloured(trace, palette, width)), themed(layout, width), { displayModeBar: false });
      if (!drawn.has(id)) {
        const told = ({ points: [point], event }) => show(point.data.meta.run, point.customdata, event.clientX, event.clientY);
        place.on("plotly_hover", told);
        place.on("plotly_click", told); // a finger does not hover
        place.on("plotly_unhover", hide);
      }
      drawn.set(id, state);
    }
  };

  const looked = new IntersectionObserver(entries => {
    for (const { target, isIntersecting } of entries) near[isIntersecting ? "add" : "delete"](target.id);
    draw();
  }, { rootMargin: "100%" });
  for (const id of Object.keys(figures)) looked.observe(document.getElementById(id));
  const paper = on => { root.classList.toggle("paper", on); draw(); }; // light, as wide as a sheet, and all of it
  addEventListener("beforeprint", () => paper(true));
  addEventListener("afterprint", () => paper(false));

  // -- switching runs --

  for (const table of document.querySelectorAll("#compare, #differences")) {
    for (const row of table.rows) [...row.cells].slice(1).forEach((cell, run) => { cell.dataset.run = run; });
  }
  const keys = [...document.querySelectorAll(".key button")];
  const update = () => {
    for (const key of keys) key.setAttribute("aria-pressed", String(!off.has(Number(key.dataset.run))));
    for (const element of document.querySelectorAll("[data-run]:not(.key button)")) element.hidden = off.has(Number(element.dataset.run));
    const bars = [...document.querySelectorAll(".row:not([hidden]) [data-seconds]")];
    const longest = Math.max(...bars.map(bar => Number(bar.dataset.seconds)));
    for (const bar of bars) bar.style.setProperty("--share", Number(bar.dataset.seconds) / (longest || 1));
    draw();
  };
  const only = (shown, listed = () => true) => {
    off.clear();
    runs.forEach((run, number) => { if (!shown(run)) off.add(number); });
    for (const key of keys) key.hidden = !listed(runs[Number(key.dataset.run)]);
    update();
  };
  for (const key of keys) {
    key.addEventListener("click", () => {
      const run = Number(key.dataset.run);
      if (!off.delete(run)) off.add(run);
      update();
    });
  }
  if (keys.length) {
    const field = document.getElementById("only");
    const words = run => [run.label, ...run.recipe.map(([key, value]) => `${key}: ${value}`)].join("\n").toLowerCase();
    const match = run => field.value.toLowerCase().split(",").every(part => words(run).includes(part.trim()));
    field.addEventListener("input", () => only(match, match));
    document.getElementById("all").addEventListener("click", () => { field.value = ""; only(() => true); });
    document.getElementById("none").addEventListener("click", () => { field.value = ""; only(() => false); });
  }

  // -- sorting --

  const body = document.querySelector("#summary tbody");
  const heads = [...document.querySelectorAll("#summary thead th")];
  const sort = column => {
    const down = heads[column].getAttribute("aria-sort") === "ascending";
    const key = row => { const cell = row.cells[column]; return cell.classList.contains("name") ? cell.textContent : cell.dataset.key; };
    const compare = (a, b) => heads[column].classList.contains("name") ? a.localeCompare(b, undefined, { numeric: true }) : a - b;
    const rows = [...body.rows].sort((a, b) => {
      const [x, y] = [key(a), key(b)];
      if (x === undefined || y === undefined) return (x === undefined) - (y === undefined); // what is missing stays last
      return down ? compare(y, x) : compare(x, y);
    });
    body.append(...rows);
    for (const head of heads) head.removeAttribute("aria-sort");
    heads[column].setAttribute("aria-sort", down ? "descending" : "ascending");
  };
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    button.addEventListener("click", () => sort(column));
    head.append(button);
  });

  dark.addEventListener("change", draw);
  addEventListener("resize", () => requestAnimationFrame(draw));
  update();
})();
