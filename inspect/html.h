#pragma once
// Builds HTML pages. The pages are also valid XML, so that any XML parser can check them.

#include <string>
#include <string_view>
#include <vector>

namespace ring {

// Returns text that is safe inside an element or a quoted attribute. The result is always valid UTF-8: invalid bytes
// are replaced by U+FFFD, control characters by blanks.
std::string html_escaped(std::string_view text);

// A complete page that loads no other resources. connects: true to let its script send requests to the page's own
// server.
struct HtmlPage {
  std::string title, style, body, script;
  bool connects = false;
};
std::string html_page(const HtmlPage&);

std::string html_heading(const std::string& text);  // section heading; escapes text
std::string html_note(const std::string& text);     // line with a note; escapes text

// Returns a table in a box that can be scrolled, also by keyboard. The box has a shaded edge on the side of hidden
// columns. The first row is the header. Escapes the cells. Right-aligns all columns except the first `left`.
//   begins  markup at the start of each row after the header; may be empty
//   stacks  true for wide tables: on narrow screens, each row becomes a list of titled values
std::string html_table(const std::vector<std::vector<std::string>>& rows, std::size_t left,
                       const std::vector<std::string>& begins = {}, bool stacks = false);

}  // namespace ring
