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
