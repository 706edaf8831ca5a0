// Tabs that arrow keys move through, as screen readers expect them.

/** Makes `list` (of role tablist) show the panel of the tab that is chosen. */
export function tabs(list, chosen) {
  const all = [...list.querySelectorAll("[role=tab]")];
  const choose = (tab) => {
    for (const other of all) {
      const own = other === tab;
      other.setAttribute("aria-selected", String(own));
      other.tabIndex = own ? 0 : -1;
      document.getElementById(other.getAttribute("aria-controls")).hidden = !own;
    }
    chosen(tab.id);
  };
  const steps = { ArrowRight: 1, ArrowLeft: -1 };
  list.addEventListener("click", (event) => {
    const tab = event.target.closest("[role=tab]");
    if (tab) choose(tab);
  });
  list.addEventListener("keydown", (event) => {
    const step = steps[event.key];
    if (!step) return;
    event.preventDefault();
    const at = all.indexOf(document.activeElement);
    const next = all[(at + step + all.length) % all.length];
    next.focus();
    choose(next);
  });
}
