// Small conveniences that any page may use: confirmations, "tick all", menus that close.
"use strict";

document.addEventListener("submit", (event) => {
  const question = event.target.dataset.confirm;
  if (question && !confirm(question)) event.preventDefault();
});

document.addEventListener("change", (event) => {
  const name = event.target.dataset?.tickAll;
  if (!name) return;
  for (const box of document.querySelectorAll(`input[type=checkbox][name="${CSS.escape(name)}"]`)) box.checked = event.target.checked;
});

function closeMenus(except) {
  for (const menu of document.querySelectorAll("details.menu[open]")) if (menu !== except) menu.open = false;
}

document.addEventListener("click", (event) => closeMenus(event.target.closest("details.menu")));
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  const open = document.querySelector("details.menu[open]");
  closeMenus(null);
  open?.querySelector("summary").focus();
});
