"use strict";
// Clicking a group finds it everywhere; panes zoom and can be dragged; tables sort by their heads.
const all = (selector, root = document) => [...root.querySelectorAll(selector)];

function select(group, from) {
  all(".on").forEach((e) => e.classList.remove("on"));
  const found = all(`[data-group="${group}"]`);
  found.forEach((e) => e.classList.add("on"));
  for (const pane of all(".pane")) {
    const target = found.find((e) => pane.contains(e));
    if (target && !pane.contains(from)) center(pane.querySelector(".canvas"), target);
  }
}

function center(view, target) {
  const a = view.getBoundingClientRect(), b = target.getBoundingClientRect();
  view.scrollTo({ left: view.scrollLeft + b.left + b.width / 2 - a.left - a.width / 2,
                  top: view.scrollTop + b.top + b.height / 2 - a.top - a.height / 2 });
}

function zoom(view, factor) {
  const svg = view.querySelector("svg"), box = svg.viewBox.baseVal;
  const old = svg.clientWidth || box.width;
  let scale = old / box.width;
  if (factor === "width") scale = Math.min(1.5, (view.clientWidth - 16) / box.width);
  else if (factor === "all") scale = Math.min((view.clientWidth - 16) / box.width, (view.clientHeight - 16) / box.height);
  else scale = Math.min(4, Math.max(0.02, scale * Number(factor)));
  const x = (view.scrollLeft + view.clientWidth / 2) / view.scrollWidth;
  const y = (view.scrollTop + view.clientHeight / 2) / view.scrollHeight;
  svg.setAttribute("width", box.width * scale);
  svg.setAttribute("height", box.height * scale);
  view.scrollLeft = x * view.scrollWidth - view.clientWidth / 2;
  view.scrollTop = y * view.scrollHeight - view.clientHeight / 2;
}

for (const view of all(".canvas")) {
  let start = null;
  view.addEventListener("pointerdown", (e) => {
    if (e.button === 0) start = { x: e.clientX + view.scrollLeft, y: e.clientY + view.scrollTop, moved: false };
  });
  window.addEventListener("pointermove", (e) => {
    if (!start) return;
    const left = start.x - e.clientX, top = start.y - e.clientY;
    if (Math.abs(left - view.scrollLeft) + Math.abs(top - view.scrollTop) > 3) {
      start.moved = true;
      view.classList.add("drag");
    }
    if (start.moved) { view.scrollLeft = left; view.scrollTop = top; }
  });
  window.addEventListener("pointerup", () => { start = null; view.classList.remove("drag"); });
  view.addEventListener("wheel", (e) => {
    if (!e.ctrlKey) return;
    e.preventDefault();
    zoom(view, e.deltaY < 0 ? 1.1 : 1 / 1.1);
  }, { passive: false });
  const wide = view.querySelector("svg").viewBox.baseVal.width - view.clientWidth;
  if (wide > 0) zoom(view, Math.max(0.6, 1 - wide / (wide + view.clientWidth)));
  const first = view.querySelector(".node");
  if (first) center(view, first);
  view.scrollTop = 0;
}

for (const button of all("[data-zoom]"))
  button.addEventListener("click", () => zoom(button.closest(".pane").querySelector(".canvas"), button.dataset.zoom));
for (const e of all("[data-group]")) e.addEventListener("click", () => select(e.dataset.group, e));

for (const table of all(".sortable")) {
  all("thead th", table).forEach((head, column) => {
    const sort = () => {
      const up = head.dataset.sorted === "down";
      all("th", table).forEach((h) => delete h.dataset.sorted);
      head.dataset.sorted = up ? "up" : "down";
      const body = table.tBodies[0];
      const key = (row) => { const c = row.cells[column]; return c.dataset.value === undefined ? c.textContent : Number(c.dataset.value); };
      const order = (a, b) => (typeof a === "number" ? b - a : a.localeCompare(b));
      body.append(...[...body.rows].sort((a, b) => (up ? order(key(b), key(a)) : order(key(a), key(b)))));
    };
    head.addEventListener("click", sort);
    head.addEventListener("keydown", (e) => { if (e.key === "Enter") sort(); });
  });
}
