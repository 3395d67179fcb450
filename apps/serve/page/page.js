// The server's page: a chat about files, and the token map of its answers. This file joins the others to the elements of index.html.
import {$} from "./dom.js";
import {ask, drawLog, endTurn, isBusy, newChat, stop} from "./chat.js";
import {conversation} from "./conversation.js";
import {addFiles, showFiles} from "./files.js";
import {joinMap} from "./map.js";
import {loadSettings} from "./settings.js";
import {exportFile, load, save, saveSoon} from "./store.js";

let loaded; // a promise: the conversation that was kept is there

function joinComposer() {
  $("composer").onsubmit = async event => {
    event.preventDefault();
    await loaded;
    const question = $("question").value.trim();
    if (!question || isBusy()) return;
    $("question").value = "";
    ask(question);
  };
  $("question").oninput = saveSoon;
  $("question").onkeydown = event => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      $("composer").requestSubmit();
    }
  };
  $("stop").onclick = stop;
  $("picker").onchange = async () => { await addFiles($("picker").files); $("picker").value = ""; };
  document.ondragover = event => { event.preventDefault(); document.body.classList.add("over"); };
  document.ondragleave = event => { if (!event.relatedTarget) document.body.classList.remove("over"); };
  document.ondrop = event => {
    event.preventDefault();
    document.body.classList.remove("over");
    addFiles(event.dataTransfer.files);
  };
}

async function showKept() {
  const kept = await load();
  if (kept) $("question").value = kept + $("question").value;
  const {turns} = conversation;
  if (turns.length && turns[turns.length - 1].isOpen) endTurn("The page was closed while this was written.");
  showFiles();
  drawLog();
}

function begin() {
  joinComposer();
  joinMap();
  $("settings").onsubmit = event => event.preventDefault();
  $("options").open = innerWidth > 800;
  $("key").onchange = loadSettings;
  $("clear").onclick = async () => { await loaded; newChat(); };
  $("export").onclick = exportFile;
  addEventListener("pagehide", save);
  loadSettings();
  loaded = showKept();
}

begin();
