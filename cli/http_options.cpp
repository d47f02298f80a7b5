#include "cli/http_options.h"

#include "core/check.h"
#include "job/secret.h"

namespace ring {

HttpOptions http_options(const std::string& option, const std::string& text, const std::string& token_option,
                         const std::string& token_file) {
  if (!http_available())
    fail(option, ": this build has no HTTP support. Install libmicrohttpd-dev, then configure and build again");
  HttpOptions o{.at = parse_http_endpoint(option, text)};
  if (!token_file.empty()) o.token = read_secret(token_file);
  if (o.token.empty() && !is_loopback(o.at.host))
    fail(option, ": other machines can reach ", o.at.host, ", so a token is required. Give ", token_option,
         " FILE (`ringmaster launch --make-secret FILE` writes one), or listen on 127.0.0.1");
  return o;
}

}  // namespace ring
