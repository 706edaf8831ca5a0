// What keys do in a field of several lines.

/** Enter sends what `field` holds; with Shift it begins a new line. */
export function onEnter(field, send) {
  field.addEventListener("keydown", (event) => {
    // An input method that composes a character uses Enter for itself.
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      send();
    }
  });
}
