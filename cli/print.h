#pragma once

namespace ring {

// Like printf, but to std::cout, where write errors are reported.
[[gnu::format(printf, 1, 2)]] void print_format(const char* format, ...);

}  // namespace ring
