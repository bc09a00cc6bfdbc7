// The page's elements, changed in place and only where something is new: no flicker, no lost focus or selection.
// Texts are only ever set as text.

const SVG = "http://www.w3.org/2000/svg";

export function element(tag, className = "", ...children) {
  const node = document.createElement(tag);
  if (className !== "") node.className = className;
  node.append(...children);
  return node;
}

export function svgElement(tag, attributes = {}, ...children) {
  const node = document.createElementNS(SVG, tag);
  setAttributes(node, attributes);
  node.append(...children);
  return node;
}

// Undefined and null take the attribute away.
export function setAttributes(node, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null) node.removeAttribute(name);
    else if (node.getAttribute(name) !== String(value)) node.setAttribute(name, value);
  }
}

export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

// As many children as `items`, each updated with its item.
export function setChildren(parent, items, create, update) {
  while (parent.childElementCount > items.length) parent.lastElementChild.remove();
  while (parent.childElementCount < items.length) parent.append(create());
  items.forEach((item, i) => update(parent.children[i], item));
}

// `bar`: {share, text}; null hides it.
export function setBar(node, bar) {
  node.hidden = bar === null;
  if (bar === null) return;
  if (node.firstElementChild === null) node.append(element("div"));
  const percent = Math.round(1000 * bar.share) / 10;
  setAttributes(node, { role: "progressbar", "aria-valuenow": percent, "aria-valuemin": 0, "aria-valuemax": 100 });
  setAttributes(node, { "aria-valuetext": bar.text });
  node.firstElementChild.style.width = `${percent}%`;
}

// Puts the view's parts into the elements below `root` that name them: data-show, data-text, data-bar,
// data-severity-of.
export function bind(root, view) {
  for (const node of root.querySelectorAll("[data-show]")) node.hidden = partOf(view, node.dataset.show) === null;
  for (const node of root.querySelectorAll("[data-text]")) setText(node, partOf(view, node.dataset.text) ?? "");
  for (const node of root.querySelectorAll("[data-bar]")) setBar(node, partOf(view, node.dataset.bar));
  for (const node of root.querySelectorAll("[data-severity-of]")) {
    setAttributes(node, { "data-severity": partOf(view, node.dataset.severityOf) });
  }
}

// partOf(view, "head.progress.bar"); null where one on the way is.
function partOf(view, path) {
  return path.split(".").reduce((part, name) => part?.[name] ?? null, view);
}
