#pragma once
// The options of commands that serve HTTP: address and token.

#include <string>

#include "job/http_server.h"

namespace ring {

// text: "PORT" or "HOST:PORT", the value of `option`. token_file: the value of `token_option`; may be empty. Throws
// Error if a value is wrong, or if other machines can reach the address and there is no token.
HttpOptions http_options(const std::string& option, const std::string& text, const std::string& token_option,
                         const std::string& token_file);

}  // namespace ring
