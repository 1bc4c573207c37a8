// Of every text that is seen: its contrast with what is painted behind it. [how many were seen, [those below AA]]
(() => {
  const parse = (text) => {
    const mixed = text.match(/^color\(srgb ([\d.]+) ([\d.]+) ([\d.]+)(?: \/ ([\d.]+))?\)$/);
    if (mixed) return [mixed[1] * 255, mixed[2] * 255, mixed[3] * 255, mixed[4] === undefined ? 1 : Number(mixed[4])];
    const [r, g, b, a = 1] = text.match(/[\d.]+/g).map(Number);
    return [r, g, b, a];
  };
  const over = (top, under) => [0, 1, 2].map((n) => top[n] * top[3] + under[n] * (1 - top[3])).concat(1);
  const linear = (v) => (v / 255 <= 0.03928 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4);
  const light = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
  const ground = (node) => {
    const layers = [];
    for (let at = node; at; at = at.parentElement) layers.push(parse(getComputedStyle(at).backgroundColor));
    return layers.reverse().reduce((under, top) => over(top, under), [255, 255, 255, 1]);
  };
  const poor = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  let seen = 0;
  while (walker.nextNode()) {
    const node = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || !node.getClientRects().length || node.closest("option, noscript, .skip")) continue;
    seen += 1;
    const style = getComputedStyle(node);
    let fade = 1;
    for (let at = node; at; at = at.parentElement) fade *= Number(getComputedStyle(at).opacity);
    const back = ground(node);
    const ink = parse(style.color);
    ink[3] *= fade;
    const [high, low] = [light(over(ink, back)), light(back)].sort((a, b) => b - a);
    const contrast = (high + 0.05) / (low + 0.05);
    if (contrast < 4.5) poor.push([walker.currentNode.data.slice(0, 40), contrast.toFixed(2), node.className]);
  }
  return [seen, poor];
})()
