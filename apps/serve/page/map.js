// The token map of an answer (GET kv/map): its tokens, and for each what the step before it read.
import {$, button, element, percent, say} from "./dom.js";
import {content, conversation, documentTokens} from "./conversation.js";
import {request} from "./server.js";

const WINDOW = 16; // tokens of a place in the list of places
const SINKS = 4;   // the first tokens draw attention whatever they are

let shown = null; // {id, map, box, text, button, documents, chosen}: the map that is open; box stands in the place of text

// The map of an answer, in its message. The server forgets old maps, and all when it ends: another text's is not shown.
export async function toggleMap(turn, message, own) {
  const isOpen = shown && shown.button === own;
  closeMap();
  if (isOpen) return;
  try {
    const map = await (await request("kv/map?id=" + turn.map)).json(), at = conversation.turns.indexOf(turn);
    if (!message.isConnected) return; // another answer has begun
    const prompt = map.tokens.slice(0, map.n_prompt_tokens).join(""), answer = map.tokens.slice(map.n_prompt_tokens).join("");
    if (!prompt.includes(content(conversation.turns[at - 1]).text) || !answer.includes(turn.content.trim()))
      throw new Error("The server no longer has the map of this answer.");
    if (map.n_tokens < map.n_prompt_tokens + 2) throw new Error("The first token follows from the prompt; this answer has no other.");
    openMap({id: turn.map, map, button: own, text: message.querySelector(".text"),
             documents: documentTokens(map.tokens, map.n_prompt_tokens, conversation.turns.slice(0, at)), chosen: map.n_prompt_tokens + 1});
    await chooseToken(shown.chosen);
    say("");
  } catch (error) {
    say(error.message);
  }
}

export function closeMap() {
  if (shown) {
    shown.box.replaceWith(shown.text);
    shown.button.setAttribute("aria-expanded", "false");
  }
  shown = null;
  $("map").hidden = true;
  delete $("map").dataset.token;
  document.querySelector("main").classList.remove("mapped");
}

function openMap(own) {
  shown = own;
  own.box = drawTokens(own);
  own.text.replaceWith(own.box);
  own.button.setAttribute("aria-expanded", "true");
  const options = (n, word) => [new Option("all", ""), ...Array.from({length: n}, (_, i) => new Option(word + " " + i, i))];
  $("layer").replaceChildren(...options(own.map.n_layers, "layer"));
  $("head").replaceChildren(...options(own.map.n_kv_heads, "head"));
  $("head").disabled = true;
  $("documents").hidden = own.documents.length === 0;
  $("map").hidden = false;
  document.querySelector("main").classList.add("mapped");
}

// The answer as tokens that can be chosen.
function drawTokens({id, map}) {
  const box = element("div", "text answer");
  box.tabIndex = 0;
  box.setAttribute("role", "listbox");
  box.setAttribute("aria-label", "Tokens of the answer: choose one to see what was read for it");
  for (let i = map.n_prompt_tokens; i < map.n_tokens; i++) {
    const token = element("span", "", map.tokens[i]);
    token.id = `answer${id}-${i}`;
    token.setAttribute("role", "option");
    token.setAttribute("aria-selected", "false");
    token.onclick = () => choose(i);
    box.append(token);
  }
  box.onkeydown = event => {
    const step = {ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1}[event.key];
    if (!step) return;
    event.preventDefault();
    choose(shown.chosen + step);
  };
  return box;
}

const choose = token => chooseToken(token).catch(error => say(error.message));

async function chooseToken(token) {
  const own = shown, first = own.map.n_prompt_tokens + 1;
  token = Math.max(first, Math.min(own.map.n_tokens - 1, token));
  own.chosen = token;
  for (const option of own.box.querySelectorAll("[aria-selected=true]")) option.setAttribute("aria-selected", "false");
  const option = $(`answer${own.id}-${token}`);
  option.setAttribute("aria-selected", "true");
  own.box.setAttribute("aria-activedescendant", option.id);
  option.scrollIntoView({block: "nearest"});
  const layer = $("layer").value, head = $("head").value;
  const query = `kv/map?id=${own.id}&token=${token}` + (layer ? `&layer=${layer}` : "") + (layer && head ? `&head=${head}` : "");
  const step = await (await request(query)).json();
  if (own !== shown || own.chosen !== token) return; // another was chosen meanwhile
  drawStep(own, step);
}

function drawStep(own, step) {
  const tokens = own.map.tokens, query = tokens[step.n_tokens - 1];
  $("step").textContent = `To write \u201c${tokens[own.chosen]}\u201d after \u201c${query}\u201d, ` +
    `the step read ${percent(step.read_share)} of ${step.n_tokens} tokens; they have ${percent(step.mass_read)} of the attention.`;
  drawPlaces(own, step);
  drawText(own, step);
  drawGrid(step);
  $("map").dataset.token = own.chosen;
}

// The windows of the documents with most attention.
function drawPlaces(own, step) {
  const places = [];
  for (const [first, last] of own.documents)
    for (let i = first; i < last; i += WINDOW) {
      const end = Math.min(i + WINDOW, last);
      let mass = 0, readers = 0;
      for (let k = Math.max(i, SINKS); k < end; k++) { mass += step.mass[k]; readers = Math.max(readers, step.readers[k]); }
      places.push({i, end, mass, readers});
    }
  places.sort((a, b) => b.mass - a.mass);
  $("places").replaceChildren(...places.slice(0, 5).map(place => {
    const go = button("", () => $("text").children[place.i].scrollIntoView({block: "center"}));
    go.replaceChildren(element("b", "", percent(place.mass)), ` ${own.map.tokens.slice(place.i, place.end).join("").trim()} `,
                       element("small", "", place.readers ? `(read by up to ${place.readers} of ${step.n_heads} heads)` : "(not read)"));
    return element("li", "", go);
  }));
}

function drawText(own, step) {
  const ordered = step.mass.slice(SINKS).sort((a, b) => b - a), most = ordered[Math.min(4, ordered.length - 1)] || 1; // a few outliers do not pale the rest
  const spans = step.mass.map((mass, i) => {
    const span = element("span", "token", own.map.tokens[i]);
    const shade = Math.min(1, Math.sqrt(mass / most));
    if (shade > 0.02) span.style.backgroundColor = `rgba(var(--heat), ${(0.9 * shade).toFixed(3)})`;
    if (!step.readers[i]) span.classList.add("unread");
    span.title = `${(100 * mass).toFixed(2)} % of the attention, read by ${step.readers[i]} of ${step.n_heads} heads`;
    return span;
  });
  spans[spans.length - 1].classList.add("query");
  const scroll = $("text").scrollTop;
  $("text").replaceChildren(...spans);
  $("text").scrollTop = scroll;
}

function drawGrid(step) {
  $("grid").replaceChildren(...step.heads.map((line, layer) => {
    const row = element("tr", "", element("th", "", String(layer)));
    row.append(...line.map((mass, head) => {
      const cell = element("td", "", percent(mass));
      cell.style.backgroundColor = `rgba(var(--heat), ${(0.7 * mass * mass).toFixed(3)})`;
      cell.title = `layer ${layer}, KV head ${head}`;
      cell.onclick = () => { $("layer").value = layer; $("head").disabled = false; $("head").value = head; again(); };
      return cell;
    }));
    return row;
  }));
}

const again = () => { if (shown) choose(shown.chosen); };

export function joinMap() {
  $("layer").onchange = () => { $("head").disabled = !$("layer").value; if (!$("layer").value) $("head").value = ""; again(); };
  $("head").onchange = again;
  $("previous").onclick = () => shown && choose(shown.chosen - 1);
  $("next").onclick = () => shown && choose(shown.chosen + 1);
  $("close").onclick = () => { const own = shown && shown.button; closeMap(); if (own) own.focus(); };
}
