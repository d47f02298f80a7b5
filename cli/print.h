#pragma once

namespace ring {

// As printf, to std::cout, which says when a result cannot be written.
[[gnu::format(printf, 1, 2)]] void print_format(const char* format, ...);

}  // namespace ring
