// Starts the terminal of textual-serve in kvchat's page: with letters that leave 60 columns,
// measured once the font is there, and with the keyboard in it from the first moment.
"use strict";
const COLUMNS = 60, LETTER = 0.6, LARGEST = 16, SMALLEST = 7;
const script = document.currentScript;

function focusTerminal() {
  document.querySelector(".xterm-helper-textarea")?.focus();
}

async function tellWhy() {
  const what = document.getElementById("what");
  what.textContent = "kvchat has ended in this tab.";
  const problem = await fetch("/problem").then((answer) => answer.text()).catch(() => "");
  if (problem) what.textContent = problem;
}

async function start() {
  const terminal = document.getElementById("terminal");
  const fitting = Math.floor(window.innerWidth / (COLUMNS * LETTER));
  terminal.dataset.fontSize = Math.max(SMALLEST, Math.min(LARGEST, fitting));
  await document.fonts.load("16px 'Roboto Mono'").catch(() => {});
  const library = document.createElement("script");
  library.src = script.dataset.terminal;
  library.onload = () => {
    window.onload();
    focusTerminal();
  };
  document.head.append(library);
  new MutationObserver(() => {
    if (document.body.classList.contains("-closed")) {
      tellWhy();
    } else if (document.body.classList.contains("-first-byte")) {
      focusTerminal();
    }
  }).observe(document.body, { attributes: true });
  document.querySelector("#note button").addEventListener("click", () => location.reload());
  window.addEventListener("focus", focusTerminal);
}

window.addEventListener("load", start);
