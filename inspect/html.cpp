#include "inspect/html.h"

#include "core/check.h"
#include "text/utf8.h"

namespace ring {
namespace {

void append_escaped(std::string& out, std::string_view character) {
  const char c = character[0];
  if (c == '&')
    out += "&amp;";
  else if (c == '<')
    out += "&lt;";
  else if (c == '>')
    out += "&gt;";
  else if (c == '"')
    out += "&quot;";
  else if (c == '\'')
    out += "&#39;";
  else if ((static_cast<unsigned char>(c) < 0x20 && c != '\n') || c == 0x7F)
    out += ' ';
  else
    out += character;
}

// Returns true for U+FFFE and U+FFFF, which XML does not allow.
bool is_no_character(std::string_view character) { return character == "\xEF\xBF\xBE" || character == "\xEF\xBF\xBF"; }

}  // namespace

std::string html_escaped(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const std::size_t length = utf8::valid_length(text);
    if (length == 0 || is_no_character(text.substr(0, length)))
      utf8::append(out, utf8::kReplacement);
    else
      append_escaped(out, text.substr(0, length));
    text.remove_prefix(length ? length : 1);
  }
  return out;
}

std::string html_page(const HtmlPage& p) {
  return str(
      "<!DOCTYPE html>\n<html lang=\"en\" xmlns=\"http://www.w3.org/1999/xhtml\">\n<head>\n"
      "<meta charset=\"utf-8\"/>\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; "
      "style-src 'unsafe-inline'; script-src 'unsafe-inline'",
      p.connects ? "; connect-src 'self'" : "", "\"/>\n<title>", html_escaped(p.title), "</title>\n<style>", p.style,
      "</style>\n</head>\n<body>\n", p.body, "<script>", p.script, "</script>\n</body>\n</html>\n");
}

std::string html_heading(const std::string& text) { return "<h2>" + html_escaped(text) + "</h2>\n"; }

std::string html_note(const std::string& text) { return "<p class=\"soft\">" + html_escaped(text) + "</p>\n"; }

std::string html_table(const std::vector<std::vector<std::string>>& rows, std::size_t left,
                       const std::vector<std::string>& begins, bool stacks) {
  std::string out = str("<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"table\"><table",
                        stacks ? " class=\"stack\"" : "", ">\n");
  for (std::size_t r = 0; r < rows.size(); ++r) {
    out += "<tr>";
    for (std::size_t i = 0; i < rows[r].size(); ++i) {
      const char* tag = r == 0 ? "th" : "td";
      const std::string begin = r > 0 && i == 0 && r <= begins.size() ? begins[r - 1] : "";
      const std::string head = stacks && r > 0 ? str(" data-head=\"", html_escaped(rows[0][i]), "\"") : "";
      out += str("<", tag, i < left ? "" : " class=\"n\"", head, ">", begin, html_escaped(rows[r][i]), "</", tag, ">");
    }
    out += "</tr>\n";
  }
  return out + "</table></div>\n";
}

}  // namespace ring
