#pragma once
// Lists of numbers as the Linux kernel writes them in /sys and /proc: "0-3,8".

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ring {

std::optional<int> parse_int(std::string_view text);  // nullopt if it is not an integer

// Returns nullopt if the list is malformed. Numbers are below 65536.
std::optional<std::vector<int>> parse_number_list(const std::string& text);
std::string format_number_list(const std::vector<int>& ascending);

}  // namespace ring
