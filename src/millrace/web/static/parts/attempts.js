// The attempts that failed, each with its error and traceback.

import { h } from "../core/dom.js";
import { errorText, plural, seconds } from "../core/text.js";
import { copyable, panel, when } from "./elements.js";

export function attempts(app, job) {
  if (!job.attempts.length) return null;
  const last = job.attempts.length - 1;
  return panel(
    "Failed attempts",
    { id: "attempts", aside: h("span", { class: "hint" }, plural(job.failures, "failure")) },
    h("ol", { class: "attempts" }, job.attempts.map((attempt, n) => row(app, attempt, n === last))),
  );
}

function row(app, attempt, open) {
  const { error } = attempt;
  const traceback = error?.traceback || error?.message || "no error was kept";
  return h("li", { key: `${attempt.attempt} ${attempt.at}` },
    h("details", { open },
      h("summary", null,
        h("strong", null, `Attempt ${attempt.attempt}`),
        h("span", { class: "error" }, errorText(error)),
        h("span", { class: "by" },
          [
            attempt.worker ? `${attempt.worker} · ` : "",
            attempt.duration === null ? "" : `ran ${seconds(attempt.duration)} · `,
            when(attempt.at, app.now),
          ],
        ),
      ),
      h("div", { class: "traceback" },
        copyable(traceback, "Copy the traceback"),
        h("pre", { tabindex: "0" }, traceback),
      ),
    ),
  );
}
