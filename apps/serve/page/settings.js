// What a request asks for. The fields start empty: the server's own policy and sampling, which stand in their place.
import {$, say} from "./dom.js";
import {request} from "./server.js";

const RECEIPT = 4; // each so many-th step is compared with exact attention

let server = {kv_policy: "", kv_policies: [], kv_lossless: false};

const short = x => String(+Number(x).toPrecision(6)); // a float of the server's as it was written

// A policy with another budget: "fier:budget=256,sinks=4" with 64 is "fier:budget=64,sinks=4".
function withBudget(policy, budget) {
  const colon = policy.indexOf(":"), name = colon < 0 ? policy : policy.slice(0, colon);
  const rest = colon < 0 ? [] : policy.slice(colon + 1).split(",").filter(part => !part.startsWith("budget="));
  return `${name}:${["budget=" + budget, ...rest].join(",")}`;
}

function policy() {
  const chosen = $("policy").value || (server.kv_policy === "auto" ? "" : server.kv_policy), budget = $("budget").value.trim();
  return budget && chosen ? withBudget(chosen, budget) : $("policy").value || undefined; // auto has budgets of its own
}

// Such texts read everything: there is nothing to record.
const isLossless = () => server.kv_lossless && !policy();

// A number as it is written; what is no number goes to the server as it is, and its error is shown.
const number = id => {
  const text = $(id).value.trim().replace(",", ".");
  return text === "" ? undefined : isNaN(text) ? text : Number(text);
};

export function sampling() {
  const map = $("record").checked && !isLossless();
  return {temperature: number("temperature"), max_tokens: number("longest"), kv: {policy: policy(), map, receipt: map ? RECEIPT : undefined}};
}

// What is in force, in one line.
function summarise() {
  const {params = {}} = server.default_generation_settings || {};
  $("budget").disabled = !$("policy").value && server.kv_policy === "auto";
  $("budget").placeholder = $("policy").value ? "its own" : (/budget=([^,]*)/.exec(server.kv_policy) || [])[1] || "none";
  $("temperature").placeholder = short(params.temperature);
  $("record").disabled = isLossless();
  $("in-force").textContent = `${policy() || server.kv_policy}${isLossless() ? ", lossless" : ""}, temperature ${number("temperature") ?? short(params.temperature)}`;
}

export async function loadSettings() {
  try {
    server = await (await request("props")).json();
  } catch (error) {
    say(error.message);
    return;
  }
  const {n_ctx} = server.default_generation_settings, chosen = $("policy").value;
  $("model").textContent = `${server.model_path}, ${n_ctx} tokens of context`;
  $("policy").replaceChildren(new Option(`the server's (${server.kv_policy})`, ""), ...server.kv_policies.map(name => new Option(name, name)));
  $("policy").value = chosen;
  $("longest").placeholder = "no limit";
  $("settings").oninput = summarise;
  summarise();
}
