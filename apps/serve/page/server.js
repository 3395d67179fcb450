// Requests to the server that the page came from. No other is asked for anything.
import {$} from "./dom.js";

function headers() {
  const all = {"Content-Type": "application/json"};
  if ($("key").value) all.Authorization = "Bearer " + $("key").value;
  return all;
}

// An answer, or an Error with the server's own words.
export async function request(path, options = {}) {
  let answer;
  try {
    answer = await fetch(path, {headers: headers(), ...options});
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("The server cannot be reached.");
  }
  if (answer.ok) return answer;
  if (answer.status === 401) {
    $("key-label").hidden = false;
    $("key").focus();
  }
  let words = "status " + answer.status;
  try { words = (await answer.json()).error.message; } catch { /* no JSON */ }
  throw new Error(words);
}

// Calls fn for every object of a stream of server-sent events. A stream that ends without its last event was cut off: an Error.
export async function readEvents(answer, fn) {
  const reader = answer.body.getReader(), decoder = new TextDecoder();
  const lost = new Error("The connection was lost.");
  for (let rest = "";;) {
    const {done, value} = await reader.read().catch(error => { throw error.name === "AbortError" ? error : lost; });
    if (done) throw lost;
    rest += decoder.decode(value, {stream: true});
    const parts = rest.split("\n\n");
    rest = parts.pop();
    for (const part of parts)
      for (const line of part.split("\n")) {
        if (line === "data: [DONE]") return;
        if (!line.startsWith("data: ")) continue;
        const event = JSON.parse(line.slice(6));
        if (event.error) throw new Error(event.error.message);
        fn(event);
      }
  }
}
