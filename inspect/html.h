#pragma once
// Builds HTML pages. The pages are also valid XML, so that any parser can check them.

#include <string>
#include <string_view>
#include <vector>

namespace ring {

// Returns text that is safe inside an element or a quoted attribute. The result is always valid UTF-8: invalid bytes
// become U+FFFD, control characters become blanks.
std::string html_escaped(std::string_view text);

// A complete page that loads no other resource. connects: allows its script to send requests to the page's own server.
struct HtmlPage {
  std::string title, style, body, script;
  bool connects = false;
};
std::string html_page(const HtmlPage&);

std::string html_heading(const std::string& text);  // section heading; escapes text
std::string html_note(const std::string& text);     // a note line; escapes text

// Returns a table in a box that scrolls, also by keyboard, with a shaded edge on the side of hidden columns. The first
// row is the head. Escapes the cells and right-aligns all columns but the first `left`. begins: markup put at the start
// of each row after the head; may be empty. stacks: for wide tables, shows each row as a list of titled values on
// narrow screens.
std::string html_table(const std::vector<std::vector<std::string>>& rows, std::size_t left,
                       const std::vector<std::string>& begins = {}, bool stacks = false);

}  // namespace ring
