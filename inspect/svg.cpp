#include "inspect/svg.h"

#include "core/check.h"
#include "core/files.h"
#include "data/output_file.h"
#include "engine/run_directory.h"
#include "inspect/html.h"

namespace ring {
namespace {

template <class Fn>
void for_option(const std::string& option, const Fn& fn) {
  try {
    fn();
  } catch (const Error& e) {
    fail(option, ": ", e.what(), ", or give a different file");
  }
}

}  // namespace

std::string svg_head(int width, int height, const std::string& title) {
  return str("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"", width, "\" height=\"", height, "\" viewBox=\"0 0 ",
             width, " ", height, "\" font-family=\"sans-serif\" fill=\"#222\">\n<title>", html_escaped(title),
             "</title>\n<rect width=\"", width, "\" height=\"", height, "\" fill=\"#fff\"/>\n");
}

void write_svg(const std::string& option, const std::string& path, const std::string& svg) {
  for_option(option, [&] { write_whole(path, svg); });
}

void check_svg_path(const std::string& option, const std::string& path) {
  for_option(option, [&] { check_writable(path); });
  check_output_is_no_run_file(option, path);
}

}  // namespace ring
