// The conversation. `turns` is what the screen shows and what the next request holds; nothing else is sent.
//   {role: "user", text, files: [{name, text}]}
//   {role: "assistant", content, reasoning, note, cost, receipt, map}
//     note: how it ended, where that was too early; cost: in words; receipt: {attention_read, ..., passages} as the server sent it, or
//     undefined; map: the server's number of what was read, or undefined
//     isOpen: it is being written, and old, an answer or null, stood there before

export const conversation = {turns: [], files: []}; // files: to be sent with the next question

// The text of a user's turn for the model, and where its documents lie in it: [first, last) in UTF-16 units.
export function content(turn) {
  const documents = [];
  let text = "";
  for (const file of turn.files) {
    text += file.name + ":\n\n";
    documents.push([text.length, text.length + file.text.length]);
    text += file.text + "\n\n";
  }
  return {text: text + turn.text, documents};
}

export function messages(turns = conversation.turns) {
  return turns.map(turn => turn.role === "user" ? {role: "user", content: content(turn).text}
    : {role: "assistant", content: turn.content, ...(turn.reasoning && {reasoning_content: turn.reasoning})});
}

// Where in the documents of these turns a passage of the prompt stands: {name, line}, or null, if it is none of theirs.
export function placeOf(passage, turns) {
  for (const file of turns.flatMap(turn => turn.files || [])) {
    const at = file.text.indexOf(passage);
    if (at >= 0) return {name: file.name, line: file.text.slice(0, at).split("\n").length};
  }
  return null;
}

// Ranges [first, last) of the tokens of a prompt that the documents of these turns became. A turn is looked for as a whole, behind the one
// before it: no question and no template is taken for a document. Turns that are not found as they are have none.
export function documentTokens(tokens, n_prompt, turns) {
  const starts = [];
  let text = "", from = 0;
  for (const token of tokens.slice(0, n_prompt)) { starts.push(text.length); text += token; }
  const ends = [...starts.slice(1), text.length];
  const found = [];
  for (const turn of turns.filter(turn => turn.role === "user")) {
    const sent = content(turn), offset = text.indexOf(sent.text, from);
    if (offset < 0) continue;
    from = offset + sent.text.length;
    for (const [first, last] of sent.documents) {
      const begin = ends.findIndex(end => end > offset + first), end = starts.findIndex(start => start >= offset + last);
      if (begin >= 0 && last > first) found.push([begin, end < 0 ? n_prompt : end]);
    }
  }
  return found;
}
