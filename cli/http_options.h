#pragma once
// Where a command serves HTTP, and for whom.

#include <string>

#include "job/http_server.h"

namespace ring {

// text: "PORT" or "HOST:PORT" of `option`; token_file: of `token_option`, empty: none. Error: wrong, or other machines
// can reach the address and there is no token.
HttpOptions http_options(const std::string& option, const std::string& text, const std::string& token_option,
                         const std::string& token_file);

}  // namespace ring
