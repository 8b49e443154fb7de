// Elements, made without HTML: what comes from stores is text, and stays text.

const SVG = "http://www.w3.org/2000/svg";

/** Make an element. `options`: class, text, data, on, and any attribute; children follow. */
export function element(name, options = {}, ...children) {
  return fill(document.createElement(name), options, children);
}

export function svg(name, options = {}, ...children) {
  return fill(document.createElementNS(SVG, name), options, children);
}

function fill(node, options, children) {
  for (const [name, value] of Object.entries(options)) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "class") node.setAttribute("class", value);
    else if (name === "text") node.textContent = value;
    else if (name === "on") for (const [event, listener] of Object.entries(value)) node.addEventListener(event, listener);
    else if (name === "data") Object.assign(node.dataset, value);
    else if (name === "value") node.value = value;
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== undefined && child !== null));
  return node;
}

/** Set text only if it differs, so that screen readers and selections are left in peace. */
export function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export function show(node, visible) {
  node.hidden = !visible;
}

/** Make the children of `parent` those of `rows`: one for each key, kept and updated in place. */
export function keyed(parent, rows, keyOf, make, update) {
  const kept = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  let next = parent.firstElementChild;
  for (const row of rows) {
    const key = String(keyOf(row));
    let child = kept.get(key);
    if (child) kept.delete(key);
    else {
      child = make(row);
      child.dataset.key = key;
    }
    if (child === next) next = next.nextElementSibling;
    else parent.insertBefore(child, next);
    update?.(child, row);
  }
  for (const child of kept.values()) child.remove();
}

/**
 * A table whose rows are updated in place. A column: label, text(row) or fill(cell, row), number,
 * wide, sort(row). The first column is the header of its row.
 */
export class Table {
  constructor(caption, columns, keyOf) {
    this.columns = columns;
    this.keyOf = keyOf;
    this.sorted = null;
    this.descending = false;
    this.body = element("tbody", { role: "rowgroup" });
    const heads = columns.map((column, at) => this.#head(column, at));
    this.node = element(
      "table", { class: "folds", role: "table" },
      element("caption", { class: "unseen", text: caption }),
      element("thead", { role: "rowgroup" }, element("tr", { role: "row" }, ...heads)),
      this.body,
    );
  }

  #head(column, at) {
    const options = { scope: "col", role: "columnheader", class: column.number ? "number" : undefined };
    if (!column.sort) return element("th", { ...options, text: column.label });
    const button = element("button", { type: "button", class: "sort", text: column.label });
    const head = element("th", { ...options, class: `${options.class ?? ""} sortable` }, button);
    button.addEventListener("click", () => {
      this.descending = this.sorted === at ? !this.descending : Boolean(column.number);
      this.sorted = at;
      for (const other of head.parentNode.children) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", this.descending ? "descending" : "ascending");
      this.update(this.rows);
    });
    return head;
  }

  update(rows) {
    this.rows = rows;
    const column = this.columns[this.sorted];
    if (column) {
      rows = [...rows].sort((a, b) => compare(column.sort(a), column.sort(b)) * (this.descending ? -1 : 1));
    }
    keyed(this.body, rows, this.keyOf, (row) => this.#row(row), (node, row) => this.#update(node, row));
  }

  #row() {
    const cells = this.columns.map((column, at) => {
      const classes = [column.number ? "number" : "", column.wide ? "wide" : ""].join(" ").trim();
      if (at === 0) return element("th", { scope: "row", role: "rowheader", class: classes || undefined });
      return element("td", { role: "cell", class: classes || undefined, data: { label: column.label } });
    });
    return element("tr", { role: "row" }, ...cells);
  }

  #update(node, row) {
    this.columns.forEach((column, at) => {
      const cell = node.children[at];
      if (column.fill) column.fill(cell, row);
      else say(cell, column.text(row));
    });
  }
}

function compare(a, b) {
  if (typeof a === "number" && typeof b === "number") return a - b;
  return String(a ?? "").localeCompare(String(b ?? ""), undefined, { numeric: true });
}

export function card(title, options = {}, ...children) {
  const heading = element("h2", { text: title });
  const header = element("header", {}, heading, ...(options.beside ?? []));
  const id = `card-${title.toLowerCase().replaceAll(/[^a-z]+/g, "-")}`;
  heading.id = id;
  return element("section", { class: "card", "aria-labelledby": id }, header, ...children);
}

export function facts(pairs) {
  const list = element("dl", { class: "facts" });
  for (const [label, node] of pairs) {
    list.append(element("div", {}, element("dt", { text: label }), node));
  }
  return list;
}

/** An input below its label. */
export function field(label, input, classes = "") {
  return element("div", { class: `field ${classes}` }, element("label", { for: input.id, text: label }), input);
}
