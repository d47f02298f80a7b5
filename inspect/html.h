#pragma once
// Text in pages of HTML. The pages are XML, too, so that any parser can check them.

#include <string>
#include <string_view>
#include <vector>

namespace ring {

// Safe inside of an element and of a quoted attribute, and valid UTF-8 whatever the text is: bytes that are not become
// U+FFFD, control characters a blank.
std::string html_escaped(std::string_view text);

// A whole page that loads nothing. connects: its script may ask the server that it came from.
struct HtmlPage {
  std::string title, style, body, script;
  bool connects = false;
};
std::string html_page(const HtmlPage&);

std::string html_heading(const std::string& text);  // of a section; escaped
std::string html_note(const std::string& text);     // a line beside what it is about; escaped

// A table in a box that scrolls, also by keyboard, and whose edge is shaded where columns are hidden. Cells are
// escaped. Columns after the first `left` are flush right. The first row is the head. begins: markup that each row
// after the head begins with; empty: none. stacks: on narrow screens each row is a list of its values with their heads,
// for tables that are too wide.
std::string html_table(const std::vector<std::vector<std::string>>& rows, std::size_t left,
                       const std::vector<std::string>& begins = {}, bool stacks = false);

}  // namespace ring
