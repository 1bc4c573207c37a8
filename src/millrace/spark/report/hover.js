// A quicker tooltip than the browser's own. Without it, <title> still tells the same.
(() => {
  const tip = document.createElement("div");
  tip.className = "tip";
  tip.hidden = true;
  document.body.append(tip);
  const show = (event) => {
    const mark = event.target.closest && event.target.closest(".hover rect");
    tip.hidden = !mark;
    if (!mark) return;
    const title = mark.querySelector("title");
    if (title) {
      mark.hint = title.textContent;
      title.remove();
    }
    tip.textContent = mark.hint;
    const box = mark.getBoundingClientRect();
    const left = box.left + box.width / 2 - tip.offsetWidth / 2;
    const room = document.documentElement.clientWidth - tip.offsetWidth - 8;
    tip.style.left = Math.max(8, Math.min(room, left)) + window.scrollX + "px";
    tip.style.top = Math.max(4, box.top - tip.offsetHeight - 6) + window.scrollY + "px";
  };
  document.addEventListener("pointerover", show);
  document.addEventListener("pointerdown", show);
})();
