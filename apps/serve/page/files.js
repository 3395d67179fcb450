// Text files that are sent with the next question.
import {$, button, element, say} from "./dom.js";
import {conversation} from "./conversation.js";
import {saveSoon} from "./store.js";

const MAX_FILE = 4 << 20; // bytes

async function readText(file) {
  if (file.size > MAX_FILE) throw new Error(`${file.name} has ${file.size} bytes; at most ${MAX_FILE} can be sent.`);
  let text = "\0";
  try { text = new TextDecoder("utf-8", {fatal: true}).decode(await file.arrayBuffer()); } catch { /* below */ }
  if (text.includes("\0")) throw new Error(`${file.name} is no text in UTF-8.`);
  if (!text.trim()) throw new Error(`${file.name} is empty.`);
  return text;
}

export async function addFiles(list) {
  for (const file of [...list]) {
    try {
      conversation.files.push({name: file.name.trim() || "file", text: await readText(file)});
      say(`${file.name} was added.`);
    } catch (error) {
      say(error.message);
    }
  }
  showFiles();
  saveSoon();
}

export function showFiles() {
  $("files").replaceChildren(...conversation.files.map((file, i) => {
    const remove = button("\u00d7", () => { conversation.files.splice(i, 1); showFiles(); saveSoon(); $("question").focus(); });
    remove.setAttribute("aria-label", "Remove " + file.name);
    return element("span", "chip", file.name + " ", remove);
  }));
}
