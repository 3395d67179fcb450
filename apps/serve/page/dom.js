// What the page's other files share. Text becomes text nodes, never HTML.

export const $ = id => document.getElementById(id);

// An element with children: nodes, or texts.
export function element(name, className, ...children) {
  const e = document.createElement(name);
  if (className) e.className = className;
  e.append(...children);
  return e;
}

export function button(label, fn, className) {
  const e = element("button", className, label);
  e.type = "button";
  e.onclick = fn;
  return e;
}

export const percent = x => (100 * x).toFixed(x < 0.1 ? 1 : 0) + " %";
export const say = text => { $("said").textContent = text; };

// Copies a text, and says so on the button for a moment.
export async function copyText(text, e) {
  try {
    await navigator.clipboard.writeText(text);
  } catch { // pages that are not from this machine, without TLS, have no clipboard of this kind
    const box = element("textarea", "", text);
    document.body.append(box);
    box.select();
    document.execCommand("copy");
    box.remove();
  }
  const label = e.textContent;
  if (label === "Copied") return;
  e.textContent = "Copied";
  say("Copied.");
  setTimeout(() => { e.textContent = label; }, 1500);
}
