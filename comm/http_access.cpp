#include "comm/http_access.h"

#include <openssl/evp.h>

#include "comm/secret.h"
#include "core/check.h"

namespace ring {
namespace {

std::string base64(const std::string& text) {
  std::string out(4 * ((text.size() + 2) / 3) + 1, '\0');  // ends with 0
  const auto* bytes = reinterpret_cast<const unsigned char*>(text.data());
  EVP_EncodeBlock(reinterpret_cast<unsigned char*>(out.data()), bytes, static_cast<int>(text.size()));
  out.pop_back();
  return out;
}

// "localhost" of "localhost:8080", "::1" of "[::1]:8080".
std::string host_of(const std::string& header) {
  if (header.starts_with("[")) return header.substr(1, header.find(']') - 1);
  return header.substr(0, header.find(':'));
}

bool names_this_machine(const std::string& header) { return is_loopback(host_of(header)); }

}  // namespace

HttpAccess::HttpAccess(const Endpoint& at, const std::string& token) {
  if (token.empty() && !is_loopback(at.host))
    fail("other machines can reach ", to_string(at), ": give a file with a token, or listen at 127.0.0.1");
  if (token.empty()) return;
  bearer_ = "Bearer " + token;
  basic_ = "Basic " + base64(str(kHttpUser, ":", token));
}

int HttpAccess::refusal(const HttpVisitor& v) const {
  if (!bearer_.empty()) {
    const bool known = same_secret(v.authorization, bearer_) || same_secret(v.authorization, basic_);
    return known ? 0 : 401;
  }
  const bool here = v.host.empty() || names_this_machine(v.host);
  const std::string http = "http://";
  const bool own = v.origin.empty() || (v.origin.starts_with(http) && names_this_machine(v.origin.substr(http.size())));
  return here && own ? 0 : 403;
}

}  // namespace ring
