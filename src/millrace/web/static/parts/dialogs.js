// Dialogs: one asks for input (a token, settings), the other for a confirmation.

import { draw, h } from "../core/dom.js";

/** Asks until it is answered; {cancel: true} lets the user leave, with null. A field: {name, label, type, value, hint,
    required, options}. `wrong` says why it is asked again. */
export function ask({ title, text = "", fields = [], submit = "OK", wrong = "", cancel = false, danger = false }) {
  return new Promise((answered) => {
    const dialog = document.createElement("dialog");
    dialog.className = "ask";
    const done = (value) => {
      dialog.close();
      dialog.remove();
      answered(value);
    };
    const send = (event) => {
      event.preventDefault();
      const form = event.currentTarget;
      done(Object.fromEntries(fields.map((field) => [field.name, given(form, field)])));
    };
    draw(
      dialog,
      h("form", { onsubmit: send, autocomplete: "off" },
        h("h2", { id: "ask-title" }, title),
        text ? h("div", { class: "ask-text" }, text) : null,
        wrong ? h("p", { class: "wrong", role: "alert" }, wrong) : null,
        fields.map(field),
        h("div", { class: "ask-end" },
          cancel ? h("button", { type: "button", class: "plain", onclick: () => done(null) }, "Back") : null,
          h("button", { type: "submit", class: danger ? "danger" : "main" }, submit),
        ),
      ),
    );
    dialog.setAttribute("aria-labelledby", "ask-title");
    dialog.addEventListener("cancel", (event) => {
      event.preventDefault();
      if (cancel) done(null);
    });
    document.body.append(dialog);
    dialog.showModal();
    dialog.querySelector("input, select, textarea, button[type=submit]")?.focus();
  });
}

/** Resolves to true or false. `details` are nodes (lists, samples) between the question and the buttons. */
export async function sure({ title, details = null, submit, danger = false }) {
  return (await ask({ title, text: details ?? "", submit, cancel: true, danger })) !== null;
}

function field(one) {
  const id = `ask-${one.name}`;
  const shared = { id, name: one.name, required: one.required };
  if (one.type === "checkbox") {
    return h("label", { class: "tick", for: id },
      h("input", { ...shared, type: "checkbox", checked: one.value }),
      one.label,
    );
  }
  const input = one.options
    ? h("select", shared, one.options.map((value) => h("option", { value, selected: value === one.value }, value)))
    : h(
      "input",
      {
        ...shared,
        type: one.type ?? "text",
        value: one.value ?? "",
        spellcheck: "false",
        pattern: one.pattern,
        autocomplete: one.type === "password" ? "one-time-code" : "off", // so that no browser offers to save it
      },
    );
  return h("label", { class: "field", for: id },
    h("span", null, one.label),
    input,
    one.hint ? h("small", null, one.hint) : null,
  );
}

function given(form, { name, type }) {
  const input = form.elements.namedItem(name);
  return type === "checkbox" ? input.checked : input.value;
}
