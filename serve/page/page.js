// The server's page: a chat about files, and the token map of its answers (GET /kv/map). Text of files and of the model becomes text
// nodes, never HTML. Nothing is fetched from elsewhere, nothing is stored.
"use strict";

const MAX_FILE = 4 << 20; // bytes
const WINDOW = 16;        // tokens of a place in the list of places
const POLICIES = ["fier", "quest", "tinyserve", "tokenbutler2", "oracle", "full", "snapkv", "h2o", "streaming"];

const $ = id => document.getElementById(id);
const messages = []; // of the conversation, as the server gets them
let files = [];      // {name, text}, to be sent with the next question
let abort = null;    // of the answer that is being written
let shown = null;    // {id, map, box, documents, chosen, choose}: the map that is open

function element(name, text, className) {
  const e = document.createElement(name);
  if (text !== undefined) e.textContent = text;
  if (className) e.className = className;
  return e;
}

const percent = x => (100 * x).toFixed(x < 0.1 ? 1 : 0) + " %";
const say = text => { $("said").textContent = text; };

// ------------------------------------------------------------------------------------------------ the server

function headers() {
  const all = {"Content-Type": "application/json"};
  if ($("key").value) all.Authorization = "Bearer " + $("key").value;
  return all;
}

// An answer, or an Error with the server's own words.
async function request(path, options = {}) {
  const answer = await fetch(path, {headers: headers(), ...options});
  if (answer.ok) return answer;
  if (answer.status === 401) {
    $("key-label").hidden = false;
    $("key").focus();
  }
  let words = "status " + answer.status;
  try { words = (await answer.json()).error.message; } catch { /* no JSON */ }
  throw new Error(words);
}

// Calls fn for every object of a stream of server-sent events.
async function readEvents(answer, fn) {
  const reader = answer.body.getReader(), decoder = new TextDecoder();
  for (let rest = "";;) {
    const {done, value} = await reader.read();
    rest += done ? "" : decoder.decode(value, {stream: true});
    const parts = rest.split("\n\n");
    rest = parts.pop();
    for (const part of parts)
      for (const line of part.split("\n"))
        if (line.startsWith("data: ") && line !== "data: [DONE]") fn(JSON.parse(line.slice(6)));
    if (done) return;
  }
}

function policy() {
  const name = $("policy").value, budget = $("budget").value.trim();
  return !name ? undefined : budget && name !== "full" ? name + ":budget=" + budget : name;
}

// ---------------------------------------------------------------------------------------------------- files

async function addFiles(list) {
  for (const file of list) {
    if (file.size > MAX_FILE) {
      say(`${file.name} has ${file.size} bytes; at most ${MAX_FILE} can be sent.`);
      continue;
    }
    const bytes = new Uint8Array(await file.arrayBuffer());
    try {
      files.push({name: file.name, text: new TextDecoder("utf-8", {fatal: true}).decode(bytes)});
      say(`${file.name} was added.`);
    } catch {
      say(`${file.name} is no text in UTF-8.`);
    }
  }
  showFiles();
}

function showFiles() {
  $("files").replaceChildren(...files.map((file, i) => {
    const chip = element("span", file.name + " ", "chip"), remove = element("button", "\u00d7");
    remove.type = "button";
    remove.setAttribute("aria-label", "Remove " + file.name);
    remove.onclick = () => { files.splice(i, 1); showFiles(); };
    chip.append(remove);
    return chip;
  }));
}

// ------------------------------------------------------------------------------------------------ the chat

function addMessage(className, text) {
  const e = element("div", text, "message " + className);
  $("log").append(e);
  $("log").scrollTop = $("log").scrollHeight;
  return e;
}

function setBusy(busy) {
  $("send").hidden = busy;
  $("stop").hidden = !busy;
}

async function ask(question) {
  const sent = files, documents = files.map(file => file.text);
  const content = files.map(file => `${file.name}:\n\n${file.text}\n\n`).join("") + question;
  addMessage("user", files.map(file => `[${file.name}]\n`).join("") + question);
  const turns = [...messages, {role: "user", content}], bubble = addMessage("assistant", "");
  const body = {messages: turns, stream: true, stream_options: {include_usage: true}, temperature: Number($("temperature").value) || 0,
                max_tokens: Number($("longest").value) || 256, kv: {policy: policy(), map: true}};
  let text = "", usage = null;
  abort = new AbortController();
  files = [];
  showFiles();
  setBusy(true);
  say("Reading \u2026");
  try {
    const answer = await request("v1/chat/completions", {method: "POST", body: JSON.stringify(body), signal: abort.signal});
    await readEvents(answer, event => {
      if (event.error) throw new Error(event.error.message);
      usage = event.usage || usage;
      const delta = event.choices && event.choices[0] && event.choices[0].delta;
      if (!delta || !(delta.content || delta.reasoning_content)) return;
      if (!text) say("Writing \u2026");
      text += (delta.reasoning_content || "") + (delta.content || "");
      bubble.textContent = text;
      $("log").scrollTop = $("log").scrollHeight;
    });
    messages.splice(0, messages.length, ...turns, {role: "assistant", content: text});
    say("");
    if (usage) await showUsage(bubble, usage, documents);
  } catch (error) {
    const stopped = error.name === "AbortError";
    say(stopped ? "Stopped." : "");
    if (!stopped) addMessage("error", error.message);
    if (!text) { // to be sent again
      bubble.remove();
      files = [...sent, ...files];
      showFiles();
      $("question").value = $("question").value || question;
    }
  } finally {
    abort = null;
    setBusy(false);
  }
}

// What the answer cost; its text becomes tokens that can be chosen.
async function showUsage(bubble, usage, documents) {
  const kv = usage.kv;
  bubble.after(element("p", `${usage.prompt_tokens} + ${usage.completion_tokens} tokens. ${kv.policy}: read ${percent(kv.read_share)} of what dense attention reads.`, "cost"));
  $("log").scrollTop = $("log").scrollHeight;
  if (kv.map === undefined) return;
  const map = await (await request("kv/map?id=" + kv.map)).json();
  const box = element("span", undefined, "answer");
  box.tabIndex = 0;
  box.setAttribute("role", "listbox");
  box.setAttribute("aria-label", "Tokens of the answer: choose one to see what was read for it");
  for (let i = map.n_prompt_tokens; i < map.n_tokens; i++) {
    const token = element("span", map.tokens[i]);
    token.id = `answer${kv.map}-${i}`;
    token.setAttribute("role", "option");
    token.setAttribute("aria-selected", "false");
    token.onclick = () => choose(i);
    box.append(token);
  }
  bubble.replaceChildren(box);
  const own = {id: kv.map, map, box, documents: placesOf(map, documents), chosen: map.n_prompt_tokens + 1};
  const open = token => { if (shown !== own) openMap(own); return chooseToken(token); };
  const choose = token => open(token).catch(error => say(error.message));
  own.choose = choose;
  box.onkeydown = event => {
    const step = {ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1}[event.key];
    if (!step) return;
    event.preventDefault();
    choose(own.chosen + step);
  };
  if (map.n_tokens > map.n_prompt_tokens + 1) await choose(map.n_prompt_tokens + 1);
}

// ---------------------------------------------------------------------------------------------- the token map

// Ranges [first, last) of the tokens that documents became; the whole prompt where they are not found.
function placesOf(map, documents) {
  const starts = [];
  let text = "";
  for (const token of map.tokens) { starts.push(text.length); text += token; }
  const at = offset => { let i = starts.findIndex(start => start > offset); return i < 0 ? map.n_prompt_tokens : i - 1; };
  const found = [];
  let from = 0;
  for (const document of documents) {
    const offset = text.indexOf(document.trim(), from);
    if (offset < 0 || !document.trim()) continue;
    from = offset + document.trim().length;
    found.push([at(offset), Math.min(at(from) + 1, map.n_prompt_tokens)]);
  }
  return found.length ? found : [[0, map.n_prompt_tokens]];
}

function openMap(own) {
  shown = own;
  const options = (n, word) => [new Option("all", ""), ...Array.from({length: n}, (_, i) => new Option(word + " " + i, i))];
  $("layer").replaceChildren(...options(own.map.n_layers, "layer"));
  $("head").replaceChildren(...options(own.map.n_kv_heads, "head"));
  $("head").disabled = true;
  $("map").hidden = false;
  document.querySelector("main").classList.add("mapped");
}

async function chooseToken(token) {
  const own = shown, first = own.map.n_prompt_tokens + 1;
  token = Math.max(first, Math.min(own.map.n_tokens - 1, token));
  own.chosen = token;
  for (const option of document.querySelectorAll(".answer [aria-selected=true]")) option.setAttribute("aria-selected", "false");
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
      for (let k = i; k < end; k++) if (k > 3) { mass += step.mass[k]; readers = Math.max(readers, step.readers[k]); } // not the attention sinks
      places.push({i, end, mass, readers});
    }
  places.sort((a, b) => b.mass - a.mass);
  $("places").replaceChildren(...places.slice(0, 5).map(place => {
    const line = element("li"), button = element("button");
    button.append(element("b", percent(place.mass)), ` ${own.map.tokens.slice(place.i, place.end).join("").trim()} `,
                  element("small", place.readers ? `(read by up to ${place.readers} of ${step.n_heads} heads)` : "(not read)"));
    button.type = "button";
    button.onclick = () => $("text").children[place.i].scrollIntoView({block: "center"});
    line.append(button);
    return line;
  }));
}

function drawText(own, step) {
  const ordered = step.mass.slice(4).sort((a, b) => b - a), most = ordered[Math.min(4, ordered.length - 1)] || 1; // a few outliers do not pale the rest
  const spans = step.mass.map((mass, i) => {
    const span = element("span", own.map.tokens[i], "token");
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
    const row = element("tr");
    row.append(element("th", layer), ...line.map((mass, head) => {
      const cell = element("td", percent(mass));
      cell.style.backgroundColor = `rgba(var(--heat), ${(0.7 * mass * mass).toFixed(3)})`;
      cell.title = `layer ${layer}, KV head ${head}`;
      cell.onclick = () => { $("layer").value = layer; $("head").disabled = false; $("head").value = head; again(); };
      return cell;
    }));
    return row;
  }));
}

const again = () => { if (shown) shown.choose(shown.chosen); };

// ------------------------------------------------------------------------------------------------------ events

function begin() {
  $("policy").append(new Option("the server's", ""), ...POLICIES.map(name => new Option(name, name)));
  $("policy").value = "fier";
  request("props").then(answer => answer.json()).then(props => {
    $("model").textContent = `${props.model_path}, ${props.default_generation_settings.n_ctx} tokens of context`;
    $("policy").options[0].textContent = "the server's (" + props.kv_policy + ")";
  }).catch(error => say(error.message));
  $("composer").onsubmit = event => {
    event.preventDefault();
    const question = $("question").value.trim();
    if (!question || abort) return;
    $("question").value = "";
    ask(question);
  };
  $("question").onkeydown = event => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      $("composer").requestSubmit();
    }
  };
  $("settings").onsubmit = event => event.preventDefault();
  $("stop").onclick = () => abort && abort.abort();
  $("picker").onchange = async () => { await addFiles($("picker").files); $("picker").value = ""; };
  $("clear").onclick = () => {
    if (abort) abort.abort();
    messages.length = 0;
    shown = null;
    files = [];
    showFiles();
    $("log").replaceChildren();
    $("map").hidden = true;
    document.querySelector("main").classList.remove("mapped");
    say("");
  };
  $("layer").onchange = () => { $("head").disabled = !$("layer").value; if (!$("layer").value) $("head").value = ""; again(); };
  $("head").onchange = again;
  $("previous").onclick = () => shown && shown.choose(shown.chosen - 1);
  $("next").onclick = () => shown && shown.choose(shown.chosen + 1);
  document.ondragover = event => { event.preventDefault(); document.body.classList.add("over"); };
  document.ondragleave = event => { if (!event.relatedTarget) document.body.classList.remove("over"); };
  document.ondrop = event => {
    event.preventDefault();
    document.body.classList.remove("over");
    addFiles(event.dataTransfer.files);
  };
}

begin();
