// Markdown of answers as DOM nodes: what models write of it. HTML in it stays text, images become links, and links go to web and mail
// addresses alone. Takes time in proportion to the text, whatever is in it.
import {button, copyText, element} from "./dom.js";

const MAX_DEPTH = 12; // of quotes and lists in each other, and of emphasis

export function render(text) {
  return blocks(text.replace(/\r\n?/g, "\n").split("\n"), 0);
}

// ------------------------------------------------------------------------------------------------------ blocks

const FENCE = /^ {0,3}(`{3,}|~{3,})([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6}) (.*)$/;
const RULE = /^ {0,3}([-*_])(?: *\1){2,} *$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)])(?: +|$)/;

const isBlank = line => line.trim() === "";
const columns = c => c === " " ? 1 : c === "\t" ? 4 : 0;

function indent(line) {
  let n = 0;
  for (let i = 0; columns(line[i]); i++) n += columns(line[i]);
  return n;
}

// Without up to n columns of its indent.
function dedent(line, n) {
  let i = 0;
  for (; n > 0 && columns(line[i]); i++) n -= columns(line[i]);
  return line.slice(i);
}

function blocks(lines, depth) {
  const out = document.createDocumentFragment();
  for (let i = 0; i < lines.length;) {
    const line = lines[i];
    let match;
    if (isBlank(line)) {
      i++;
    } else if ((match = FENCE.exec(line))) {
      i = code(lines, i, match, out);
    } else if ((match = HEADING.exec(line))) {
      out.append(element("h" + Math.min(6, match[1].length + 2), "", inline(match[2].trim())));
      i++;
    } else if (RULE.test(line)) {
      out.append(element("hr"));
      i++;
    } else if (depth < MAX_DEPTH && QUOTE.test(line)) {
      const inner = [];
      for (; i < lines.length && QUOTE.test(lines[i]); i++) inner.push(lines[i].replace(QUOTE, ""));
      out.append(element("blockquote", "", blocks(inner, depth + 1)));
    } else if (depth < MAX_DEPTH && ITEM.test(line)) {
      i = list(lines, i, depth, out);
    } else if (isTable(lines, i)) {
      i = table(lines, i, out);
    } else {
      const inner = [line];
      for (i++; i < lines.length && !beginsBlock(lines, i, depth); i++) inner.push(lines[i]);
      out.append(element("p", "", inline(inner.map(text => text.trim()).join("\n"))));
    }
  }
  return out;
}

function beginsBlock(lines, i, depth) {
  const line = lines[i];
  return isBlank(line) || FENCE.test(line) || HEADING.test(line) || RULE.test(line) ||
    (depth < MAX_DEPTH && (QUOTE.test(line) || ITEM.test(line))) || isTable(lines, i);
}

// Up to the closing fence, or to the end while the answer is being written.
function code(lines, i, [, fence, words], out) {
  const inner = [], from = indent(lines[i]);
  for (i++; i < lines.length; i++) {
    const line = lines[i].trim();
    if (line.length >= fence.length && line[0] === fence[0] && line === fence[0].repeat(line.length)) break;
    inner.push(dedent(lines[i], from));
  }
  const text = inner.join("\n"), pre = element("pre", "", element("code", "", text));
  pre.tabIndex = 0; // it scrolls
  const copy = button("Copy", () => copyText(text, copy));
  out.append(element("figure", "code", element("figcaption", "", element("span", "", words.trim().split(" ")[0]), copy), pre));
  return i + 1;
}

// Items of one kind; what is indented by two columns or more, and what goes on without an empty line, belongs to the item.
function list(lines, i, depth, out) {
  const [, spaces, marker] = ITEM.exec(lines[i]), ordered = /\d/.test(marker), e = element(ordered ? "ol" : "ul");
  if (ordered) e.start = parseInt(marker, 10);
  while (i < lines.length) {
    const match = ITEM.exec(lines[i]);
    if (!match || /\d/.test(match[2]) !== ordered || match[1].length < spaces.length || RULE.test(lines[i])) break;
    const inner = [lines[i].slice(match[0].length)], from = match[1].length + 2, width = match[1].length + match[2].length + 1;
    let isLoose = false, fence = "";
    for (i++; i < lines.length; i++) {
      const mark = FENCE.exec(lines[i].trim());
      if (!isBlank(lines[i]) && indent(lines[i]) < from && !fence && (isLoose || beginsBlock(lines, i, depth))) break;
      if (mark) fence = !fence ? mark[1][0] : fence === mark[1][0] ? "" : fence;
      isLoose = isBlank(lines[i]);
      inner.push(dedent(lines[i], width));
    }
    e.append(element("li", "", blocks(inner, depth + 1)));
  }
  out.append(e);
  return i;
}

// The cells of a row; a bar behind a backslash belongs to the text.
function cells(line) {
  return line.trim().replace(/^\|/, "").replace(/\|$/, "").replace(/\\\|/g, "\0").split("|").map(cell => cell.replace(/\0/g, "|").trim());
}

function isTable(lines, i) {
  return lines[i].includes("|") && i + 1 < lines.length && lines[i + 1].includes("-") && lines[i + 1].includes("|") &&
    cells(lines[i + 1]).every(cell => /^:?-+:?$/.test(cell)) && cells(lines[i]).length === cells(lines[i + 1]).length;
}

function table(lines, i, out) {
  const align = cells(lines[i + 1]).map(cell => cell.endsWith(":") ? (cell.startsWith(":") ? "center" : "right") : "");
  const row = (name, line) => element("tr", "", ...cells(line).slice(0, align.length)
    .map((cell, k) => element(name, align[k], inline(cell))));
  const body = element("tbody"), e = element("table", "", element("thead", "", row("th", lines[i])), body);
  for (i += 2; i < lines.length && lines[i].includes("|") && !isBlank(lines[i]); i++) body.append(row("td", lines[i]));
  const frame = element("div", "table", e);
  frame.tabIndex = 0; // it scrolls
  out.append(frame);
  return i;
}

// ------------------------------------------------------------------------------------------------------ inline

const ELEMENTS = {"*": "em", "_": "em", "**": "strong", "__": "strong", "~~": "del"};
const isWord = c => c !== undefined && /[\p{L}\p{N}_]/u.test(c);
const isSpace = c => c === undefined || /\s/.test(c);

// The address of a link, or null: it goes nowhere that a web page may send somebody to.
export function safeAddress(text) {
  try {
    const url = new URL(text); // without a base: addresses on this server are none
    return ["http:", "https:", "mailto:"].includes(url.protocol) ? url.href : null;
  } catch {
    return null;
  }
}

function link(address, ...children) {
  const e = element("a", "", ...children);
  e.href = address;
  e.target = "_blank";
  e.rel = "noopener noreferrer nofollow";
  return e;
}

function inline(text) {
  const out = [], open = []; // out: nodes and texts; open: {mark, at: its place in out} of what may close later
  const isOpen = {};
  const put = piece => {
    if (typeof out[out.length - 1] === "string" && open[open.length - 1]?.at !== out.length - 1) out[out.length - 1] += piece;
    else out.push(piece);
  };
  const begin = (mark, shown = mark) => { open.push({mark, shown, at: out.length}); isOpen[mark] = (isOpen[mark] || 0) + 1; out.push(shown); };
  const end = mark => { // what was opened inside it and did not close stays text
    let last;
    do { last = open.pop(); isOpen[last.mark]--; } while (last.mark !== mark);
    return out.splice(last.at).slice(1);
  };
  for (let i = 0; i < text.length;) {
    const c = text[i];
    if (c === "\\" && /[!-/:-@[-`{-~]/.test(text[i + 1] || "")) {
      put(text[i + 1]);
      i += 2;
    } else if (c === "`") {
      const n = runLength(text, i), at = findRun(text, i + n, n);
      if (at < 0) put(text.slice(i, i + n));
      else out.push(element("code", "", text.slice(i + n, at).replace(/^ (.*) $/s, "$1")));
      i = at < 0 ? i + n : at + n;
    } else if (c === "*" || c === "_" || c === "~") {
      i = emphasis(text, i, {put, begin, end, out, open});
    } else if (c === "[" || (c === "!" && text[i + 1] === "[")) {
      const shown = c === "!" ? "![" : "[";
      if (open.length < MAX_DEPTH) begin("[", shown); else put(shown);
      i += shown.length;
    } else if (c === "]" && isOpen["["]) {
      const match = /\(<?([^\s()<>]{1,2000}(?:\([^\s()<>]*\)[^\s()<>]{0,2000})?)>?(?: "[^"\n]{0,500}")?\)/y;
      match.lastIndex = i + 1;
      const found = match.exec(text), address = found && safeAddress(found[1]);
      if (address) out.push(link(address, ...end("[")));
      else { // brackets that are no link
        const {shown} = open.findLast(one => one.mark === "["), inner = end("[");
        put(shown);
        inner.forEach(piece => typeof piece === "string" ? put(piece) : out.push(piece));
        put("]");
      }
      i = address ? match.lastIndex : i + 1;
    } else if (c === "h" && !isWord(text[i - 1]) && !isOpen["["] && /^https?:\/\//.test(text.slice(i, i + 8))) {
      const found = /[^\s<>"`*|\\^{}]+/y;
      found.lastIndex = i;
      const words = trimAddress(found.exec(text)[0]), address = safeAddress(words);
      if (address) out.push(link(address, words)); else put(words);
      i += words.length;
    } else {
      const next = /[^\\`*_~[\]!h]*/y;
      next.lastIndex = i + 1;
      next.exec(text);
      put(text.slice(i, next.lastIndex));
      i = next.lastIndex;
    }
  }
  const fragment = document.createDocumentFragment();
  fragment.append(...out);
  return fragment;
}

// A run of the same sign: closes what is open, what has its length first, or opens.
function emphasis(text, i, {put, begin, end, out, open}) {
  const c = text[i], n = runLength(text, i), before = text[i - 1], after = text[i + n];
  const mayClose = !isSpace(before) && (c !== "_" || !isWord(after)), mayOpen = !isSpace(after) && (c !== "_" || !isWord(before));
  let left = n;
  while (left > 0 && left <= 3) {
    const ours = mayClose ? open.filter(({mark}) => mark[0] === c && mark.length <= left) : [];
    const last = ours.findLast(({mark}) => mark.length === left) || ours[ours.length - 1];
    const mark = last ? last.mark : left >= 2 ? c + c : c;
    if (last) out.push(element(ELEMENTS[mark], "", ...end(mark)));
    else if (mayOpen && ELEMENTS[mark] && open.length < MAX_DEPTH) begin(mark);
    else break;
    left -= mark.length;
  }
  if (left) put(c.repeat(left));
  return i + n;
}

function runLength(text, i) {
  let n = 1;
  while (text[i + n] === text[i]) n++;
  return n;
}

// The next run of exactly n backticks from i on; -1: none.
function findRun(text, i, n) {
  for (let at = text.indexOf("`", i); at >= 0;) {
    const length = runLength(text, at);
    if (length === n) return at;
    at = text.indexOf("`", at + length);
  }
  return -1;
}

// Without the full stop or bracket that belongs to the sentence around it.
function trimAddress(text) {
  let end = text.length;
  const opened = text.split("(").length;
  let closed = text.split(")").length;
  while (end > 8 && (/[.,;:!?'_~]/.test(text[end - 1]) || (text[end - 1] === ")" && closed > opened)))
    if (text[--end] === ")") closed--;
  return text.slice(0, end);
}
