// Questions and answers: an answer is written into its turn, and the turn is drawn. However it ends, the turns are what is shown.
import {$, button, copyText, element, percent, say} from "./dom.js";
import {conversation, messages, placeOf} from "./conversation.js";
import {showFiles} from "./files.js";
import {render} from "./markdown.js";
import {closeMap, toggleMap} from "./map.js";
import {readEvents, request} from "./server.js";
import {sampling} from "./settings.js";
import {save, saveSoon} from "./store.js";

let abort = null; // ends the answer that is being written

export const isBusy = () => abort !== null;
export const stop = () => abort && abort.abort();

// ---------------------------------------------------------------------------------------------------- the log

const isAtEnd = () => $("log").scrollHeight - $("log").scrollTop - $("log").clientHeight < 40;
const scrollToEnd = () => { $("log").scrollTop = $("log").scrollHeight; };

function drawUser(turn) {
  const e = element("article", "message user", element("div", "text", turn.text));
  if (turn.files.length) e.prepend(element("ul", "files", ...turn.files.map(file => element("li", "", file.name))));
  e.setAttribute("aria-label", "Question");
  return e;
}

// What the answer rests on: the share of the attention that was read, and the lines of the documents with most attention.
function drawReceipt(turn) {
  const {attention_read, attention_evicted_at_prompt: evicted, passages} = turn.receipt, before = conversation.turns.slice(0, conversation.turns.indexOf(turn));
  const places = passages.map(passage => ({...passage, place: placeOf(passage.text, before)})).filter(passage => passage.place).slice(0, 5);
  const read = attention_read >= 1 - 1e-9 ? evicted > 0 ? "All tokens that are kept were read" : "All tokens were read"
    : `What was read has ${percent(attention_read)} of the attention`;
  const lost = evicted > 0 ? `; those that were dropped had ${percent(evicted)} of it when the prompt was cut` : "";
  if (!places.length) return element("p", "receipt", `${read}${lost}.`);
  return element("details", "receipt", element("summary", "", `${read}${lost}. Most attention: ${places[0].place.name}, line ${places[0].place.line}`),
                 element("ol", "", ...places.map(({text, share, place}) => element("li", "", element("b", "", `${place.name}:${place.line}`), ` (${percent(share)}) `,
                                                                                  element("q", "", text.length > 200 ? text.slice(0, 200) + "\u2026" : text)))));
}

function drawAssistant(turn) {
  const e = element("article", "message assistant");
  e.setAttribute("aria-label", "Answer");
  if (turn.reasoning) {
    const reasoning = element("details", "reasoning", element("summary", "", "Reasoning"), element("div", "", render(turn.reasoning)));
    reasoning.open = !turn.content;
    e.append(reasoning);
  }
  e.append(element("div", "text", render(turn.content)));
  if (turn.isOpen) return e;
  if (!turn.content && !turn.reasoning) e.append(element("p", "note", "(An empty answer.)"));
  if (turn.note) e.append(element("p", "note", turn.note));
  if (turn.receipt) e.append(drawReceipt(turn));
  const copy = button("Copy", () => copyText(turn.content, copy));
  const actions = element("div", "actions", copy);
  if (turn === conversation.turns[conversation.turns.length - 1]) actions.append(button("Regenerate", regenerate, "again"));
  if (turn.map !== undefined) {
    const map = button("What was read", () => toggleMap(turn, e, map), "read");
    map.setAttribute("aria-expanded", "false");
    actions.append(map);
  }
  if (turn.cost) actions.append(element("span", "cost", turn.cost));
  e.append(actions);
  return e;
}

function intro() {
  const e = element("p", "", "Ask about text files, and see what each token of the answer was made of. The conversation and its files are " +
                             "kept in this browser until you start a new chat.");
  e.id = "intro";
  return e;
}

export function drawLog() {
  closeMap();
  $("log").replaceChildren(...conversation.turns.map(turn => turn.role === "user" ? drawUser(turn) : drawAssistant(turn)));
  if (!conversation.turns.length) $("log").append(intro());
  $("export").disabled = conversation.turns.length === 0;
  scrollToEnd();
}

// -------------------------------------------------------------------------------------------------- reading

// Tokens per second of the last seconds, for the rest goes on like them rather than like the beginning.
function drawReading(samples, {total, cache, processed, time_ms}) {
  if (!samples.length) samples.push({n: cache, ms: 0});
  samples.push({n: processed, ms: time_ms});
  while (samples.length > 2 && time_ms - samples[1].ms > 5000) samples.shift();
  const first = samples[0], rate = time_ms > first.ms ? 1e3 * (processed - first.n) / (time_ms - first.ms) : 0;
  $("bar").max = total;
  $("bar").value = processed;
  $("pace").textContent = `${processed} of ${total} tokens` + (cache ? `, ${cache} known from before` : "") +
    (rate > 0 ? `, ${rate.toFixed(rate < 10 ? 1 : 0)} tokens/s, about ${duration((total - processed) / rate)} left` : "");
  if ($("reading").hidden) say(""); // it is said better there
  $("reading").hidden = false;
}

function duration(seconds) {
  const s = Math.ceil(seconds);
  return s < 60 ? `${s} s` : s < 3600 ? `${Math.floor(s / 60)} min ${s % 60} s` : `${Math.floor(s / 3600)} h ${Math.floor(s % 3600 / 60)} min`;
}

// ---------------------------------------------------------------------------------------------------- answers

export function ask(text) {
  conversation.turns.push({role: "user", text, files: conversation.files});
  conversation.files = [];
  showFiles();
  return answer(null);
}

function regenerate() {
  if (isBusy()) return;
  answer(conversation.turns.pop());
  $("stop").focus();
}

// The next turn. old: the answer that stood there, or null.
async function answer(old) {
  const {turns} = conversation, turn = {role: "assistant", content: "", reasoning: "", note: "", isOpen: true, old};
  const body = {messages: messages(), stream: true, stream_options: {include_usage: true}, return_progress: true, ...sampling()};
  abort = new AbortController();
  turns.push(turn);
  drawLog();
  setBusy(true);
  say("Reading \u2026");
  save();
  let problem = "";
  try {
    await write(turn, await request("v1/chat/completions", {method: "POST", body: JSON.stringify(body), signal: abort.signal}));
    say("");
  } catch (error) {
    problem = error.name === "AbortError" ? "Stopped." : error.message;
    say(problem);
  }
  if (turns !== conversation.turns) return; // a new conversation has begun
  abort = null;
  setBusy(false);
  endTurn(problem);
  drawLog();
  if (problem && turns[turns.length - 1] !== turn) showProblem(problem);
  save();
}

// The last turn ends. problem: what ended it too early, or "". An answer without a first word is then no part of the conversation: the
// old one comes back, or the question goes to where it was written, to be sent again.
export function endTurn(problem) {
  const {turns} = conversation, turn = turns[turns.length - 1], {old} = turn;
  delete turn.isOpen;
  delete turn.old;
  turn.note = problem || turn.note;
  if (!problem || turn.content || turn.reasoning) return;
  turns.pop();
  if (old) {
    turns.push(old);
    return;
  }
  const asked = turns.pop(), written = $("question").value;
  conversation.files = [...asked.files, ...conversation.files];
  $("question").value = asked.text + (written ? "\n" + written : "");
  showFiles();
}

function showProblem(problem) {
  const e = element("p", "error", problem);
  e.setAttribute("role", "alert");
  $("log").append(e);
  say("");
  scrollToEnd();
}

async function write(turn, stream) {
  const samples = []; // {n, ms}: tokens read after that time
  let usage = null, timings = null, frame = 0, hasBegun = false, e = $("log").lastElementChild;
  const draw = () => {
    const follows = isAtEnd(), next = drawAssistant(turn), before = e.querySelector("details"), after = next.querySelector("details");
    frame = 0;
    if (before && after && hasBegun === Boolean(turn.content)) after.open = before.open; // as the reader left it
    hasBegun = Boolean(turn.content);
    e.replaceWith(next);
    e = next;
    if (follows) scrollToEnd();
  };
  try {
    await readEvents(stream, event => {
      usage = event.usage || usage;
      timings = event.timings || timings;
      const choice = event.choices && event.choices[0], delta = choice && choice.delta || {};
      if (event.prompt_progress) drawReading(samples, event.prompt_progress);
      if (choice && choice.finish_reason === "length") turn.note = "The limit on the answer's length was reached.";
      if (!delta.content && !delta.reasoning_content) return;
      if (!turn.content && !turn.reasoning) {
        $("reading").hidden = true;
        say("Writing \u2026");
      }
      turn.content += delta.content || "";
      turn.reasoning += delta.reasoning_content || "";
      frame = frame || requestAnimationFrame(draw);
      saveSoon();
    });
  } finally {
    cancelAnimationFrame(frame);
  }
  if (usage) turn.map = usage.kv.map;
  if (usage) turn.receipt = usage.kv.receipt;
  if (usage) turn.cost = describeCost(usage, timings);
}

function describeCost({prompt_tokens, completion_tokens, kv}, timings) {
  const speed = timings && timings.predicted_per_second > 0 ? ` at ${timings.predicted_per_second.toFixed(1)} tokens/s` : "";
  return `${prompt_tokens} + ${completion_tokens} tokens${speed}. ${kv.policy}: read ${percent(kv.read_share)} of what dense attention reads.`;
}

function setBusy(busy) {
  if (document.activeElement === $("stop")) $("log").focus();
  $("send").hidden = busy;
  $("stop").hidden = !busy;
  $("reading").hidden = true;
}

export function newChat() {
  stop();
  abort = null;
  conversation.turns = [];
  conversation.files = [];
  $("question").value = "";
  setBusy(false);
  showFiles();
  drawLog();
  say("");
  save();
}
