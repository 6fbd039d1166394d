// The job form while one types: only the fields of the chosen kind, the next runs, the data that the job type takes.
"use strict";

(() => {
  const form = document.getElementById("job-form");
  const WAIT_MS = 250;
  const SCHEDULE = ["kind", "cron", "execute_at", "timezone", "starts_at", "ends_at", "dst_gap", "dst_overlap"];
  const TYPE = ["worker", "job_type"];

  function loader(target, url, names) {
    let timer = 0;
    let latest = 0;
    return (wait = WAIT_MS) => {
      clearTimeout(timer);
      timer = setTimeout(async () => {
        const mine = ++latest;
        const data = new FormData(form);
        const query = new URLSearchParams(names.map((name) => [name, data.get(name) || ""]));
        try {
          const answer = await fetch(`${url}?${query}`, { credentials: "same-origin", redirect: "manual" });
          if (mine === latest && answer.ok) target.innerHTML = (await answer.text()).trim();
        } catch {
          // offline: the form is checked when it is sent
        }
      }, wait);
    };
  }

  const preview = loader(document.getElementById("preview"), form.dataset.previewUrl, SCHEDULE);
  const schema = loader(document.getElementById("schema"), form.dataset.schemaUrl, TYPE);

  function showKind() {
    const kind = new FormData(form).get("kind");
    form.querySelector('[data-field="cron"]').hidden = kind !== "cron";
    form.querySelector('[data-field="execute_at"]').hidden = kind !== "once";
  }

  function checkJson() {
    const area = form.elements.data;
    let wrong = "";
    try {
      if (area.value.trim()) JSON.parse(area.value);
    } catch (error) {
      wrong = `Not valid JSON yet: ${error.message}`;
    }
    let note = document.getElementById("data-note");
    if (!note) {
      note = document.createElement("p");
      note.id = "data-note";
      note.className = "is-wrong";
      note.setAttribute("role", "status");
      area.after(note);
    }
    note.hidden = !wrong;
    note.textContent = wrong;
  }

  // The names that the type takes, each with its default or an empty value, without touching what is there already.
  function fillIn(inputs) {
    const area = form.elements.data;
    let data = {};
    try {
      data = JSON.parse(area.value || "{}");
    } catch {
      return;
    }
    const empty = { string: "", integer: 0, number: 0, boolean: false, array: [], object: {} };
    for (const input of inputs) {
      if (input.name in data || (input.has_default && !input.required)) continue;
      data[input.name] = input.has_default ? input.default : (empty[input.type.split(" ")[0]] ?? null);
    }
    area.value = JSON.stringify(data, null, 2);
    checkJson();
  }

  form.addEventListener("input", (event) => {
    const name = event.target.name;
    if (SCHEDULE.includes(name)) preview();
    if (TYPE.includes(name)) schema();
    if (name === "kind") showKind();
    if (name === "data") checkJson();
  });
  form.addEventListener("click", (event) => {
    const example = event.target.closest("[data-example]");
    if (example) fillIn(JSON.parse(example.dataset.example));
  });

  showKind();
  preview(0);
  schema(0);
})();
