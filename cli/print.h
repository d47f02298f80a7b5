#pragma once

namespace ring {

// Like printf, but writes to std::cout, which reports write errors.
[[gnu::format(printf, 1, 2)]] void print_format(const char* format, ...);

}  // namespace ring
