// Keeps the conversation in the browser (IndexedDB), so that it survives a reload. One conversation an origin: a second tab has its own,
// which is not kept, until the first is closed.
import {$, say} from "./dom.js";
import {conversation, messages} from "./conversation.js";

let database = null; // a promise of IDBDatabase; null: nothing is kept
let timer = 0;

const promise = request => new Promise((resolve, reject) => {
  request.onsuccess = () => resolve(request.result);
  request.onerror = () => reject(request.error);
});

function open() {
  const request = indexedDB.open("butler", 1);
  request.onupgradeneeded = () => request.result.createObjectStore("conversation");
  return promise(request);
}

async function objects(mode) {
  return (await database).transaction("conversation", mode).objectStore("conversation");
}

// True when this tab may keep the conversation; it may until it is closed. The tab that is being reloaded lets go within a moment.
function lock() {
  if (!navigator.locks) return Promise.resolve(true);
  return new Promise(resolve => {
    navigator.locks.request("butler", {signal: AbortSignal.timeout(2000)}, () => { resolve(true); return new Promise(() => {}); })
      .catch(() => resolve(false));
  });
}

// What was kept, into the conversation; returns the question that was being written.
export async function load() {
  if (!await lock()) {
    say("Another tab has the conversation that is kept; this one will not be.");
    return "";
  }
  try {
    database = open();
    const kept = await promise((await objects("readonly")).get("latest"));
    if (!kept) return "";
    conversation.turns = kept.turns;
    conversation.files = [...kept.files, ...conversation.files];
    return kept.question;
  } catch {
    database = null;
    say("This browser keeps no conversations.");
    return "";
  }
}

export async function save() {
  clearTimeout(timer);
  timer = 0;
  if (!database) return;
  try {
    const {turns, files} = conversation, question = $("question").value, store = await objects("readwrite");
    await promise(turns.length || files.length || question ? store.put({turns, files, question}, "latest") : store.clear());
  } catch (error) {
    say("The conversation could not be kept: " + error.message);
  }
}

export function saveSoon() {
  timer = timer || setTimeout(save, 1000);
}

// The conversation as a file: the messages as a request holds them.
export function exportFile() {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([JSON.stringify({messages: messages()}, null, 2) + "\n"], {type: "application/json"}));
  link.download = "conversation.json";
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}
