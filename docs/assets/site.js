// What the theme leaves out for those who use a keyboard or listen: tests/site/test_accessibility.py.
const mend = () => {
  document.querySelector(".md-search").setAttribute("aria-label", "Search")
  for (const box of document.querySelectorAll("pre > code, .md-typeset__scrollwrap")) {
    if (box.scrollWidth > box.clientWidth) box.tabIndex = 0 // arrow keys scroll what has the focus
    else box.removeAttribute("tabindex")
  }
  // a copy button is no landmark of the page
  for (const nav of document.querySelectorAll(".md-code__nav")) nav.setAttribute("role", "none")
}
// the theme wraps tables and adds buttons after the page was loaded
document$.subscribe(() => setTimeout(mend, 200))
addEventListener("resize", mend)

// From a terminal's block the commands alone are copied, without their prompt and what they printed.
const commands = code => {
  let goesOn = false // after a backslash at a line's end
  const lines = code.textContent.split("\n").filter(line => {
    const isCommand = goesOn || line.startsWith("$ ")
    goesOn = isCommand && line.endsWith("\\")
    return isCommand
  })
  return lines.map(line => line.replace(/^\$ /, "")).join("\n")
}
// before the theme's own listener: it copies this text where a button has one
addEventListener("click", ({target}) => {
  const button = target.closest("[data-clipboard-target]")
  const code = button && document.querySelector(button.dataset.clipboardTarget)
  if (code && code.querySelector(".gp")) button.dataset.clipboardText = commands(code)
}, true)
