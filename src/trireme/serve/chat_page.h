// serve/chat_page.h -- the page at /: a chat with the model, without anything from elsewhere.
//
// Style and script are files of their own: the Content-Security-Policy of our servers runs nothing that stands in a
// page.
// Depends on: std.
#pragma once

#include <string_view>

namespace trireme::serve {

inline constexpr std::string_view kChatPage = R"page(<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>trireme chat</title>
<link rel="stylesheet" href="/chat.css">
<h1>trireme · <span id="model">…</span></h1>
<details>
  <summary>Settings</summary>
  <label>temperature <input id="temperature" type="number" min="0" max="2" step="0.1" value="0.7"></label>
  <label>new tokens <input id="tokens" type="number" min="1" value="256"></label>
  <label>API key <input id="key" type="password" autocomplete="off"></label>
</details>
<div id="log" aria-live="polite"></div>
<form id="form">
  <textarea id="text" placeholder="Message (Enter sends, Shift+Enter begins a line)" autofocus></textarea>
  <button id="send">Send</button>
</form>
<script src="/chat.js"></script>
</html>
)page";

inline constexpr std::string_view kChatStyle =
    R"page(:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif; }
body { max-width: 46rem; margin: 0 auto; padding: 1rem; display: flex; flex-direction: column; min-height: 96vh; }
h1 { font-size: 1.1rem; margin: 0 0 .5rem; }
#log { flex: 1; }
.turn { white-space: pre-wrap; overflow-wrap: anywhere; border-radius: .6rem; padding: .5rem .8rem; margin: .5rem 0; }
.user { background: #8883; margin-left: 3rem; }
.assistant { border: 1px solid #8885; }
.error { color: #c33; }
form { display: flex; gap: .5rem; position: sticky; bottom: 0; padding: .5rem 0; background: Canvas; }
textarea { flex: 1; font: inherit; min-height: 3.2rem; }
details { margin-bottom: .5rem; font-size: .9rem; }
label { display: inline-block; margin-right: 1rem; }
input[type=number] { width: 5rem; }
)page";

inline constexpr std::string_view kChatScript = R"page(const $ = id => document.getElementById(id);
const messages = [];
let running = null;
const headers = () => {
  const out = {"Content-Type": "application/json"};
  if ($("key").value) out["Authorization"] = "Bearer " + $("key").value;
  return out;
};
async function models() {
  try {
    const answer = await fetch("/v1/models", {headers: headers()});
    const json = await answer.json();
    $("model").textContent = answer.ok ? json.data[0].id : json.error.message;
  } catch (error) { $("model").textContent = String(error); }
}
function turn(kind, text) {
  const element = document.createElement("div");
  element.className = "turn " + kind;
  element.textContent = text;
  $("log").append(element);
  element.scrollIntoView({block: "end"});
  return element;
}
async function ask(text) {
  messages.push({role: "user", content: text});
  turn("user", text);
  const element = turn("assistant", "");
  running = new AbortController();
  $("send").textContent = "Stop";
  let answer = "";
  try {
    const response = await fetch("/v1/chat/completions", {method: "POST", headers: headers(), signal: running.signal,
      body: JSON.stringify({messages, stream: true, temperature: Number($("temperature").value),
                            max_tokens: Number($("tokens").value)})});
    if (!response.ok) throw new Error((await response.json()).error.message);
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const {value, done} = await reader.read();
      if (done) break;
      rest += value;
      for (let end; (end = rest.indexOf("\n\n")) >= 0; rest = rest.slice(end + 2)) {
        const data = rest.slice(0, end).replace(/^data: /, "");
        if (data === "[DONE]" || data.startsWith(":")) continue;
        const piece = JSON.parse(data).choices[0]?.delta?.content;
        if (piece) element.textContent = answer += piece;
      }
    }
  } catch (error) {
    if (error.name !== "AbortError") { element.classList.add("error"); element.textContent = answer + "\n" + error.message; }
  }
  if (answer) messages.push({role: "assistant", content: answer}); else messages.pop();
  running = null;
  $("send").textContent = "Send";
}
$("form").addEventListener("submit", event => {
  event.preventDefault();
  if (running) return running.abort();
  const text = $("text").value.trim();
  if (text) { $("text").value = ""; ask(text); }
});
$("text").addEventListener("keydown", event => {
  if (event.key === "Enter" && !event.shiftKey) { event.preventDefault(); $("form").requestSubmit(); }
});
$("key").addEventListener("change", models);
models();
)page";

}  // namespace trireme::serve
